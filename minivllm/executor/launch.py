"""What a worker process is told at its start: `WorkerLaunch`, a frame on its stdin."""

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.distributed.groups import Place

# First byte of a message to the workers.
STEP, CALL = b"s", b"c"
# First byte of a reply.
RESULT, ANSWER, BROKEN = b"r", b"a", b"b"


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
