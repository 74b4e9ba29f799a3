"""Main of the engine-core process: `python -m minivllm.core.process INPUT_ADDRESS OUTPUT_ADDRESS`, the config on stdin.

Between the sockets it does what `EngineCore` says. It lives as long as its stdin is open: the launcher holds the other
end, so that this process ends with its parent, however that one dies.
"""

import gc
import os
import sys
from typing import Any

import msgspec
import zmq

from minivllm.errors import ConfigError, MinivllmError, one_line

try:
    from minivllm.config.engine_config import EngineConfig
    from minivllm.config.env import logging_level
except ConfigError:  # of the environment: the parent says it, and once is enough
    sys.exit(1)
from minivllm.core.clients import Clients, Socket
from minivllm.core.engine_core import EngineCore
from minivllm.ipc.child import exit_with_parent, leave_signals_to_parent
from minivllm.ipc.codec import decode_input, encode
from minivllm.ipc.frames import read_frame
from minivllm.messages.output import CallReply, EngineDead
from minivllm.messages.request import AbortRequests, AddRequests, CallMethod
from minivllm.utils.logging import get_logger, only_warnings, set_level

logger = get_logger(__name__)


def main(argv: list[str]) -> None:
    """Serve until the parent goes away. Leaves by os._exit, so that no thread of a native library can hold it back."""
    input_address, output_address = argv
    leave_signals_to_parent()
    set_level(logging_level())
    clients = Clients(input_address, output_address)
    try:
        core = _start(clients)
        _serve(core, clients.open_inbox(), clients)
    except EOFError:
        pass  # the parent went away before it told us what to do
    except ConfigError as e:
        clients.tell_all(EngineDead(e.message, is_config=True))
    except Exception as e:
        logger.exception("the engine core failed")
        clients.tell_all(EngineDead(one_line(e)))
    clients.close()
    os._exit(1)


def _start(clients: Clients) -> EngineCore:
    """Torch is imported while the parent still makes the config, without collecting garbage: that saves 0.2 s of 1.5."""
    gc.disable()
    from minivllm.core.startup import build_core

    config = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=EngineConfig)
    clients.expect(config.parallel.num_api_processes)
    first = config.parallel.data_parallel_rank == 0  # of several cores it speaks for all
    if not first:
        only_warnings()
    exit_with_parent()
    core, ready = build_core(config, progress=first and sys.stderr.isatty())
    gc.freeze()  # what is here now stays; later collections need not look at it
    gc.enable()
    clients.tell_all(ready)
    return core


def _serve(core: EngineCore, inbox: Socket, clients: Clients) -> None:
    """The loop: sleep while there is nothing to do, else take in what came between two steps."""
    idle = zmq.Poller()
    for source in (inbox, *core.executor.descriptors):
        idle.register(source, zmq.POLLIN)
    while True:
        if not core.has_work() and any(source is not inbox for source, _ in idle.poll()):
            core.executor.check_health()
        while inbox.poll(0):
            _handle(core, inbox.recv(), clients)
        if core.has_work() and (outputs := core.step()) is not None:
            clients.deliver(outputs)


def _handle(core: EngineCore, data: bytes, clients: Clients) -> None:
    match decode_input(data):
        case AddRequests(requests, client):
            clients.note_added([request.request_id for request in requests], client)
            core.add(requests)
        case AbortRequests(request_ids):
            clients.note_aborted(request_ids)
            core.abort(request_ids)
        case CallMethod(call_id, method, args, client):
            clients.reply(_reply(core, call_id, method, args), client)


def _reply(core: EngineCore, call_id: int, method: str, args: list[Any]) -> bytes:
    try:
        return encode(CallReply(call_id, core.call(method, args)))
    except Exception as e:
        if not isinstance(e, MinivllmError):
            logger.exception("remote method %s failed", method)
        return encode(CallReply(call_id, error=one_line(e)))


if __name__ == "__main__":
    main(sys.argv[1:])
