"""Does memory grow? Thousands of tiny requests one after another, and the memory of all processes before and after.

Pages of files do not count: what a process pays for a shared library depends on who else has it mapped.

python benchmarks/soak.py MODEL [--requests 10000]
"""

import argparse
import http.client
import json
import time

from served import memory_mib, served

OWN = ("Pss_Anon:", "Pss_Shmem:")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--requests", type=int, default=10000)
    args = ap.parse_args()
    headers = {"Content-Type": "application/json"}
    # a small cache, filled by the warm-up: lazily touched KV pages must not look like a leak
    flags = ("--num-gpu-blocks-override", "64", "--max-model-len", "512", "--disable-log-requests")
    with served(args.model, *flags) as (process, port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port)

        def one(number: int) -> None:
            body = {"prompt": f"Request number {number} says", "max_tokens": 2, "temperature": 0}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 200

        for number in range(1000):
            one(-number)
        before, began = memory_mib(process.pid, OWN), time.perf_counter()
        for number in range(args.requests):
            one(number)
            if (number + 1) % 1000 == 0:
                grown = memory_mib(process.pid, OWN) - before
                rate = (number + 1) / (time.perf_counter() - began)
                print(f"{number + 1} requests, {rate:.0f} a second: {before:.1f} MiB {grown:+.2f} MiB", flush=True)


if __name__ == "__main__":
    main()
