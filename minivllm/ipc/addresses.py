"""Where the sockets between engine and core meet. Apart from the sockets, since a core is started before zmq is imported."""

import os
import sys
import tempfile


def new_address() -> str:
    """An address that nobody else uses: an abstract socket on Linux, else a file in a fresh private folder."""
    if sys.platform == "linux":
        return f"ipc://@minivllm-{os.urandom(16).hex()}"
    return f"ipc://{tempfile.mkdtemp(prefix='minivllm-')}/socket"


def of_client(address: str, client: int) -> str:
    """Where a core meets that client of several; the first one has the address itself."""
    return f"{address}.{client}" if client else address


def unix_path(address: str) -> str:
    """The same address, for Python's own sockets."""
    return address.removeprefix("ipc://").replace("@", "\0", 1)
