"""Ends what outlives a Ray cluster of our own: `python -m minivllm.executor.ray_keeper PID…`, in the background.

If the process that called `ray.init` dies at once, so do its raylet and its other children: the kernel sees to that. But the
raylet's children, which Ray calls agents, then try for a minute to tell a server that is gone, too.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO, cast

_MODULE = "minivllm.executor.ray_keeper"
_GRACE_SECONDS = 1.0  # for those that leave by themselves


class RayKeeper:
    """Lives as long as its stdin, which we hold, is open, and a little longer. Keeps nothing where we started no cluster."""

    def __init__(self) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        raylets = [pid for pid in _children(os.getpid()) if _name(pid) == "raylet"]
        pids = [str(pid) for raylet in raylets for pid in _children(raylet)]
        if pids:  # in a session of its own: what is sent to our group is not for it
            command = [sys.executable, "-m", _MODULE, *pids]
            self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """End and reap it, and what it keeps."""
        if self._popen is not None:
            cast(BinaryIO, self._popen.stdin).close()
            self._popen.wait()


def _children(pid: int) -> list[int]:
    """Of every thread of a process; none where the system does not list them."""
    lists = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            lists.append(path.read_text())
    return [int(child) for text in lists for child in text.split()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""


def main(pids: list[str]) -> None:
    running = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            running.append(os.pidfd_open(int(pid)))  # readable when it has ended; its number may be another's then
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _GRACE_SECONDS
    while running and (left := deadline - time.monotonic()) > 0:
        ended, _, _ = select.select(running, [], [], left)
        running = [descriptor for descriptor in running if descriptor not in ended]
    for descriptor in running:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
