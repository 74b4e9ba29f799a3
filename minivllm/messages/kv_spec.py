"""What the scheduler must know of the model's KV cache; made by the worker, read by `core.startup`."""

import msgspec


class KVSpec(msgspec.Struct, tag=True):
    block_size: int  # tokens a block
    bytes_per_block: int  # over all layers, K and V
    sliding_window: int | None = None  # tokens, if every layer has the same window
