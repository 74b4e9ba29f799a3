"""`WorkerProcesses`: the child processes of `MultiprocExecutor`, or of another node, with their ends of rings and pipes."""

import contextlib
import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, BinaryIO, cast

import msgspec

from minivllm.executor.launch import RingEnd, WorkerLaunch
from minivllm.executor.world import World, rendezvous_of
from minivllm.ipc.frames import write_frame
from minivllm.ipc.shm_ring import RingWriter, open_ring

_MODULE = "minivllm.executor.worker_process"
_STDERR = 2  # the workers' stdout goes there too: ours belongs to the user
_EXIT_SECONDS = 3.0  # given to workers to leave by themselves before they are killed
_LAST_WORDS_SECONDS = 0.2  # a worker that dies takes others with it: this long until all are seen


class WorkerProcesses:
    """A worker lives as long as its stdin, which we hold, is open: none is left when this process ends, however it does."""

    plans: RingWriter  # to all of them
    replies: "list[Connection[Any, Any]]"  # pipes from them

    def __init__(self, world: World):
        self.replies = []
        self._popens: list[subprocess.Popen[bytes]] = []
        self._ranks, step = world.local_ranks, world.layout.tensor_size
        rendezvous = rendezvous_of(world.config)
        plans = open_ring(len(self._ranks))
        num_links = len(self._ranks) - step if world.layout.num_machines == 1 else 0
        links = [open_ring(1) for _ in range(num_links)]  # link r leads on from rank r
        self.plans = RingWriter(plans.memory, plans.ropes)
        theirs = [plans.memory, *plans.bells, *(end for link in links for end in (link.memory, *link.bells, *link.ropes))]
        try:
            for rank in self._ranks:
                receiving, sending = os.pipe()
                theirs.append(sending)  # a pipe ends with the worker
                self.replies.append(Connection(receiving, writable=False))
                place, before = world.layout.place(rank), rank - step
                launch = WorkerLaunch(
                    config=world.config,
                    place=place,
                    rendezvous=rendezvous,
                    plans=RingEnd(plans.memory, plans.bells[place.local_rank]),
                    replies=sending,
                    previous=RingEnd(links[before].memory, links[before].bells[0]) if links and before >= 0 else None,
                    following=RingEnd(links[rank].memory, links[rank].ropes[0]) if rank < len(links) else None,
                )
                self._popens.append(_start(launch))
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def kill(self) -> None:
        for popen in self._popens:
            popen.kill()

    def death(self) -> str | None:
        """How a worker came to its end, in words. One that was killed from outside comes before those that then left."""
        time.sleep(_LAST_WORDS_SECONDS)
        polled = zip(self._popens, self._ranks, strict=True)
        ended = [(code, rank, popen.pid) for popen, rank in polled if (code := popen.poll()) is not None]
        if not ended:
            return None
        code, rank, pid = min(ended)
        how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
        return f"Worker {rank} (process {pid}) {how}."

    def close(self) -> None:
        """End and reap them. May be called twice."""
        for popen in self._popens:
            cast(BinaryIO, popen.stdin).close()
        deadline = time.monotonic() + _EXIT_SECONDS
        for popen in self._popens:
            try:
                popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
        for connection in self.replies:
            connection.close()
        self.replies = []
        self.plans.close()


def _start(launch: WorkerLaunch) -> "subprocess.Popen[bytes]":
    ends = [end for end in (launch.plans, launch.previous, launch.following) if end is not None]
    descriptors = {launch.replies, *(end.memory for end in ends), *(end.bell for end in ends)}
    popen = subprocess.Popen(
        [sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=_STDERR, pass_fds=tuple(descriptors)
    )
    with contextlib.suppress(BrokenPipeError):  # it died already, as its pipe will tell
        write_frame(cast(BinaryIO, popen.stdin), msgspec.msgpack.encode(launch))
    return popen
