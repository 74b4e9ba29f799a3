"""Where the sockets between engine and core meet. Apart from the sockets, since a core is started before zmq is imported."""

import os
import sys
import tempfile


def new_address() -> str:
    """An address that nobody else uses: an abstract socket on Linux, else a file in a fresh private folder."""
    if sys.platform == "linux":
        return f"ipc://@minivllm-{os.urandom(16).hex()}"
    return f"ipc://{tempfile.mkdtemp(prefix='minivllm-')}/socket"
