"""Starts engine-core processes. `minivllm serve` keeps one spare from its first moment, when there is no config yet.

Importing torch takes a core longer than everything the command does before it has a config. So this imports next to nothing.
"""

import subprocess
import sys
from typing import NamedTuple

from minivllm.ipc.addresses import new_address

MODULE = "minivllm.core.process"
STDERR = 2  # the child's stdout goes there too: our stdout belongs to the user


class Spawned(NamedTuple):
    """A core that waits for its config on stdin; nobody has bound its addresses yet."""

    popen: "subprocess.Popen[bytes]"
    input_address: str
    output_address: str


_spares: list[Spawned] = []


def start_spare() -> None:
    """Start a core before it is wanted. Whoever calls this calls `end_spare` at the end, whatever happens between."""
    _spares.append(_spawn())


def take() -> Spawned:
    """The spare core, or a new one. It is the caller's now."""
    return _spares.pop() if _spares else _spawn()


def end_spare() -> None:
    """End the spare core, if it was not taken."""
    while _spares:
        popen = _spares.pop().popen
        popen.kill()
        popen.communicate()


def _spawn() -> Spawned:
    addresses = new_address(), new_address()
    popen = subprocess.Popen([sys.executable, "-m", MODULE, *addresses], stdin=subprocess.PIPE, stdout=STDERR)
    return Spawned(popen, *addresses)
