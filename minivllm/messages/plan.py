"""What a model would take of a machine, found out without loading it."""

from msgspec import Struct

from minivllm.messages.kv_spec import KVSpec

# As measured with the engine, see docs/performance.md.
_CONTEXT_SHARE = 0.8  # keys and values are read at so much of that rate
_WHOLE_STEP = 1.15  # times what matrices and contexts take


class WorkerPlan(Struct, frozen=True, tag=True):
    """Of one worker, which may have a share of the model only."""

    weight_bytes: int
    read: list[tuple[float, int]]  # bytes of weights by the share of them that a step with one token reads
    free_bytes: int  # of memory now
    kv_spec: KVSpec
    kv_bytes: int  # for the KV cache, once the weights are loaded
    rates: list[tuple[int, float]]  # bytes of weights a second that are multiplied with so many rows, as measured
    read_rate: float  # bytes a second that are merely read

    def read_bytes(self, batch: int) -> float:
        """Of the weights, by a step with so many tokens: of what each reads a share (experts), the others read other shares."""
        return sum(size * (1 - (1 - share) ** batch) for share, size in self.read)

    def weight_seconds(self, batch: int) -> float:
        """What reading and multiplying the weights takes: on the line between two of `rates`, or beyond the last two."""
        known = [(rows, 1 / rate) for rows, rate in self.rates]
        at = next((i for i, (rows, _) in enumerate(known) if rows >= batch), len(known) - 1)
        (before, low), (after, high) = known[max(at - 1, 0)], known[max(at, 1)]
        return self.read_bytes(batch) * (low + (high - low) * (batch - before) / (after - before))


class Plan(Struct, frozen=True):
    worker: WorkerPlan
    num_stages: int  # of the model, each a worker's
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

    def decode_rate(self, context: int, batch: int = 1) -> float:
        """Tokens a second of so many requests behind so many tokens each, to be expected by what was measured."""
        worker, each = self.worker, max(1, batch // self.num_stages)
        kv_bytes = each * context * self.kv_bytes_per_token
        seconds = worker.weight_seconds(each) + kv_bytes / (worker.read_rate * _CONTEXT_SHARE)
        return min(1, batch / self.num_stages) * each / (seconds * _WHOLE_STEP)
