"""Main of a worker process: `python -m minivllm.executor.worker_process`, a `WorkerLaunch` on stdin.

It does what the executor's messages say, one after the other, and lives as long as its stdin is open: the executor holds the
other end, so that this process ends with its parent, however that one dies.
"""

import gc
import os
import sys
from multiprocessing.connection import Connection

import msgspec

from minivllm.config.env import logging_level
from minivllm.distributed.pipeline import LinkEnds
from minivllm.errors import one_line
from minivllm.executor.launch import ANSWER, BROKEN, RESULT, STEP, WorkerLaunch
from minivllm.executor.replies import answer, decode_call, decode_plan, encode
from minivllm.ipc.child import exit_with_parent, leave_signals_to_parent
from minivllm.ipc.frames import read_frame
from minivllm.ipc.shm_ring import RingReader, RingWriter
from minivllm.utils.logging import get_logger, only_warnings, set_level
from minivllm.worker.worker import Worker

logger = get_logger(__name__)


def main() -> None:
    """Leaves by os._exit, so that no thread of a native library can hold it back."""
    leave_signals_to_parent()
    try:
        launch = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=WorkerLaunch)
        exit_with_parent()
        set_level(logging_level())
        if launch.place.rank > 0 or launch.config.parallel.data_parallel_rank > 0:  # one speaks for all
            only_warnings()
        _serve(launch)
    except EOFError:
        pass  # the core is gone, or the neighbouring stage, which the core will hear of
    os._exit(1)


def _serve(launch: WorkerLaunch) -> None:
    place = launch.place
    plans = RingReader(launch.plans.memory, launch.plans.bell, place.local_rank, place.local_size)
    replies = Connection(launch.replies, readable=False)
    before, after = launch.previous, launch.following
    links = LinkEnds(
        None if before is None else RingReader(before.memory, before.bell),
        None if after is None else RingWriter(after.memory, [after.bell]),
    )
    worker = Worker(launch.config, place, launch.rendezvous, links)
    gc.disable()
    while True:
        message = plans.read()
        body = memoryview(message)[1:]
        if message[:1] != STEP:
            call = decode_call(body)
            replies.send_bytes(ANSWER + encode(answer(worker, place.rank, call.method, call.args, call.number)))
            continue
        if not gc.isenabled():
            gc.freeze()  # what is here now stays; later collections need not look at it
            gc.enable()
        try:
            result = worker.execute(decode_plan(body))
        except EOFError:
            raise
        except Exception as e:
            logger.exception("worker %d failed", place.rank)
            replies.send_bytes(BROKEN + f"Worker {place.rank} failed: {one_line(e)}".encode())
            continue
        if place.speaks:
            replies.send_bytes(RESULT + encode(result))


if __name__ == "__main__":
    main()
