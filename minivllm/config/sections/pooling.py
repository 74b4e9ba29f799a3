"""What a pooling model makes of hidden states. Part of `EngineConfig`, made by `config.pooling`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolingConfig:
    """`types`: ways of pooling, whose results are put side by side. `dense`: folders of layers behind them."""

    task: str  # "embed" or "classify"
    types: tuple[str, ...]
    width: int  # of a result: numbers of an embedding, or classes
    normalize: bool = True  # embed
    dense: tuple[str, ...] = ()  # embed
    is_matryoshka: bool = False  # embed: made for fewer dimensions
    matryoshka_dimensions: tuple[int, ...] = ()  # embed: these; empty: any
    labels: tuple[str, ...] = ()  # classify
    lower_case: bool = False  # texts are to be lower-cased before they are tokenized
    activation: str = "softmax"  # classify: "softmax", "sigmoid" or "identity"

    @property
    def needs_all_tokens(self) -> bool:
        """Whether the hidden states of all tokens count, or only the last."""
        return self.types != ("last",)
