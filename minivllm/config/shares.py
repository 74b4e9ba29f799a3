"""Which part of a model's dimensions each tensor parallel rank has. Read by the layers, the KV cache and `config.resolve`."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minivllm.config.model_spec import ModelSpec
from minivllm.errors import ConfigError

_GROUP = 32  # weights that share a scale where they are quantized


class OneOf(Protocol):
    """A rank among those that share each layer."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


class Rank(NamedTuple):
    rank: int
    size: int


def all_ranks(size: int) -> list[Rank]:
    return [Rank(rank, size) for rank in range(size)]


@dataclass(frozen=True, slots=True)
class Share:
    """The part from `begin` to `end` of a dimension of `whole`."""

    whole: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def is_whole(self) -> bool:
        return self.size == self.whole

    def times(self, count: int) -> "Share":
        """The same in elements, where this counts pieces of `count`."""
        return Share(self.whole * count, self.begin * count, self.end * count)

    def per(self, count: int) -> "Share":
        """The same in pieces of `count` elements, as packed numbers and the scales of groups have it."""
        for edge in (self.begin, self.end):
            if edge % count and edge != self.whole:
                raise ConfigError(
                    f"a tensor parallel rank would have the weights {self.begin} to {self.end} of {self.whole}, which are "
                    f"quantized in groups of {count}: choose another --tensor-parallel-size.",
                    param="tensor_parallel_size",
                )
        return Share(-(-self.whole // count), self.begin // count, -(-self.end // count))

    def each(self, *parts: "Share") -> tuple["Share", ...]:
        """For a stack of `whole` times these parts: the parts in this share, nothing of the others."""
        none = tuple(Share(part.whole, 0, 0) for part in parts)
        return tuple(part for index in range(self.whole) for part in (parts if self.begin <= index < self.end else none))


def whole(size: int) -> Share:
    return Share(size, 0, size)


def share_of(size: int, of: OneOf, what: str) -> Share:
    """Even parts, or as even as they get; `ConfigError` if there are fewer elements than ranks. `what` is named in it."""
    if size < of.size:
        raise _indivisible(what, size, of)
    return Share(size, size * of.rank // of.size, size * (of.rank + 1) // of.size)


def intermediate_share(size: int, of: OneOf) -> Share:
    """Of what lies between two matrices of a feed-forward layer, in whole groups of quantized weights if there are enough."""
    unit = _GROUP if size % _GROUP == 0 and size // _GROUP >= of.size else 1
    return share_of(size // unit, of, "Intermediate size").times(unit)


def vocabulary_share(spec: ModelSpec, of: OneOf) -> Share:
    return share_of(spec.vocab_size, of, "Vocabulary size")


def expert_share(count: int, of: OneOf) -> Share:
    return share_of(count, of, "Number of experts")


def head_shares(spec: ModelSpec, of: OneOf) -> tuple[Share, Share]:
    """Of query heads and of key/value heads.

    A key/value head goes with all its queries. Where there are fewer of them than ranks, several ranks have the same one and
    divide its queries.
    """
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    if of.size <= kv_heads:
        kv = share_of(kv_heads, of, "")
        return kv.times(heads // kv_heads), kv
    what = f"Total number of attention heads, which share {kv_heads} key/value heads,"
    if of.size % kv_heads:
        raise _indivisible(what, heads, of)
    own = of.rank * kv_heads // of.size
    return share_of(heads, of, what), Share(kv_heads, own, own + 1)


def check_shares(spec: ModelSpec, num_ranks: int, whole_experts: bool) -> None:
    """ConfigError, before any rank starts, if there is nothing for some rank in a layer."""
    of = Rank(0, num_ranks)
    head_shares(spec, of)
    vocabulary_share(spec, of)
    intermediate_share(spec.intermediate_size, of)
    if spec.moe is not None and whole_experts:
        expert_share(spec.moe.num_experts, of)
    elif spec.moe is not None:
        intermediate_share(spec.moe.intermediate_size, of)


def _indivisible(what: str, size: int, of: OneOf) -> ConfigError:
    return ConfigError(f"{what} ({size}) must be divisible by tensor parallel size ({of.size}).", param="tensor_parallel_size")
