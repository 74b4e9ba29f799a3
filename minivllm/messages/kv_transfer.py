"""`KVTransferParams`: what a request says of blocks that another engine has, or is to have."""

from typing import Annotated

import msgspec
from msgspec import Meta

_Name = Annotated[str, Meta(max_length=128)]


class KVTransferParams(msgspec.Struct, omit_defaults=True):
    """Names as in vLLM, whose other fields are ignored. A producer's answer holds those that a consumer is to be sent."""

    do_remote_decode: bool = False  # keep the prompt's blocks for another engine
    do_remote_prefill: bool = False  # get them from the engine that the others name
    remote_engine_id: _Name | None = None
    remote_request_id: _Name | None = None  # a secret that nobody can guess
    remote_host: _Name | None = None
    remote_port: int | None = None
    remote_num_blocks: int = 0  # for people to read
