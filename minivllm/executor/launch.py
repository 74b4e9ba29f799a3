"""What executor, nodes and worker processes tell each other: `WorkerLaunch` on a worker's stdin, then messages by their first
byte; `Hello` and what answers it before them, if there are several nodes."""

from typing import Any

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.distributed.groups import Place

# First byte of a message to the workers; the last one is for a node: it shall end, and all is well.
STEP, CALL, BYE = b"s", b"c", b"e"
# First byte of a reply: result of a step, answer to a call, a worker's failure; of a node, how a worker died.
RESULT, ANSWER, BROKEN, DEAD = b"r", b"a", b"b", b"d"


class Call(msgspec.Struct, array_like=True):
    number: int
    method: str
    args: tuple[Any, ...]


class RingEnd(msgspec.Struct):
    """Descriptors of one end of a ring."""

    memory: int
    bell: int


class WorkerLaunch(msgspec.Struct):
    config: EngineConfig
    place: Place
    rendezvous: str
    plans: RingEnd
    replies: int  # descriptor of a pipe to the executor
    previous: RingEnd | None = None  # from the stage before
    following: RingEnd | None = None  # to the stage after


class Hello(msgspec.Struct):
    """A node's first word to node 0."""

    node_rank: int
    version: str
    config: dict[str, Any]  # its EngineConfig as msgpack has it


class Welcome(msgspec.Struct, tag=True):
    """All nodes are there."""

    seed: int


class Refused(msgspec.Struct, tag=True):
    message: str
