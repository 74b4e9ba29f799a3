"""What every process that we start does at its beginning, so that it goes with its parent and not before."""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable

FAREWELL = b"\0"  # a parent that leaves in order writes it before it closes our stdin

_at_farewell: list[Callable[[], None]] = []


def leave_signals_to_parent() -> None:
    """Those to a whole group (Ctrl-C, service managers) are the parent's business: it drains first, then closes our stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()


def exit_with_parent(on_byte: Callable[[int], object] | None = None) -> None:
    """From now on: the other end of stdin is the parent's, and closes however that one dies. What is sent has been read.

    `on_byte` is told each byte that still comes, in a thread.
    """
    threading.Thread(target=_wait_and_exit, args=(on_byte,), name="parent-watch", daemon=True).start()


def when_parent_leaves(call: Callable[[], None]) -> None:
    """`call`, from a thread of its own, if the parent leaves in order: it has not died, and we go next."""
    _at_farewell.append(call)


def _wait_and_exit(on_byte: Callable[[int], object] | None) -> None:
    in_order = False
    while data := os.read(sys.stdin.fileno(), 1):
        in_order = True
        if on_byte is not None:
            on_byte(data[0])
    if in_order:
        for call in _at_farewell:
            call()
    os._exit(0)
