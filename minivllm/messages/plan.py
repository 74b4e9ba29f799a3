"""What a model would take of a machine, found out without loading it."""

from msgspec import Struct

from minivllm.messages.kv_spec import KVSpec


class WorkerPlan(Struct, frozen=True):
    """Of one worker, which may have a share of the model only."""

    weight_bytes: int
    read_bytes: int  # of the weights, by a step with one token
    free_bytes: int  # of memory now
    kv_spec: KVSpec
    kv_bytes: int  # for the KV cache, once the weights are loaded
    bandwidth: float  # bytes a second


class Plan(Struct, frozen=True):
    worker: WorkerPlan
    num_blocks: int
    block_size: int
    max_model_len: int
    problem: str | None = None  # why it would not start

    @property
    def kv_bytes_per_token(self) -> int:
        return self.worker.kv_spec.bytes_per_block // self.block_size

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def concurrency(self) -> float:
        """Requests of the greatest length that the KV cache holds."""
        return self.num_blocks / -(-self.max_model_len // self.block_size)

    def decode_rate(self, context: int) -> float:
        """Tokens a second of one request behind so many tokens, if reading is what takes the time."""
        return self.worker.bandwidth / (self.worker.read_bytes + context * self.kv_bytes_per_token)
