#!/bin/sh
# One model over two machines by Ray. Both need `pip install 'minivllm[ray]'` and the model's folder at the same path.
#
#   first machine:   RAY_AUTH_TOKEN=SECRET ./two_nodes_ray.sh head MODEL
#   second machine:  RAY_AUTH_TOKEN=SECRET ./two_nodes_ray.sh join ADDRESS_OF_THE_FIRST
#
# A worker takes one of Ray's CPUs, so each machine gets one worker. With GPUs it takes a GPU: leave --num-cpus away.
set -e
: "${RAY_AUTH_TOKEN:?is a secret of 32 characters or more, the same on both machines}"
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
case "$1" in
head)
    ray start --head --port 6379 --num-cpus 1
    trap 'ray stop' EXIT
    until ray status | grep -q "/2.0 CPU"; do sleep 1; done
    minivllm serve "$2" --tensor-parallel-size 2 --distributed-executor-backend ray --cpu-threads "$(nproc)"
    ;;
join)
    exec ray start --address "$2:6379" --num-cpus 1 --block
    ;;
*)
    echo "usage: $0 head MODEL | join ADDRESS" >&2
    exit 2
    ;;
esac
