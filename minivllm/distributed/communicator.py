"""`connect`: how one rank reaches those that share its layers. Called by the worker."""

import importlib
from urllib.parse import urlsplit

from minivllm.distributed.groups import Place
from minivllm.kernels import extension_error
from minivllm.kernels.communicator import ALONE, Communicator


def connect(device: str, rendezvous: str, place: Place, use_extension: bool = True) -> Communicator:
    """Waits until all ranks that share layers with this one are there.

    rendezvous: the same for all workers of one engine core, and for no others; tcp://host:port where the first of them listens,
    or any name among processes of one machine; tcp://host:port#name has a name for those of each machine, too.
    Tensors are on `device`.
    """
    if place.tensor_size == 1:
        return ALONE
    name = urlsplit(rendezvous).fragment if "://" in rendezvous else rendezvous
    is_local = bool(name) and place.local_size % place.tensor_size == 0  # machines are filled rank by rank
    native = device == "cpu" and is_local and use_extension and extension_error() is None
    # Only one of them can be loaded everywhere.
    module = importlib.import_module(f"minivllm.distributed.{'shared_memory' if native else 'torch_group'}")
    connected: Communicator = module.connect(device, name if native else rendezvous, place)
    return connected
