"""What every process that we start does at its beginning, so that it goes with its parent and not before."""

import faulthandler
import os
import signal
import sys
import threading


def leave_signals_to_parent() -> None:
    """Those to a whole group (Ctrl-C, service managers) are the parent's business: it drains first, then closes our stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()


def exit_with_parent() -> None:
    """From now on: the other end of stdin is the parent's, and closes however that one dies. What is sent has been read."""
    threading.Thread(target=_wait_and_exit, name="parent-watch", daemon=True).start()


def _wait_and_exit() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)
