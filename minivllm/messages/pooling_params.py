"""`PoolingParams`: what is made of the hidden states of one text. Built by users and by the HTTP codecs."""

import msgspec

from minivllm.errors import ClientError

TASKS = ("embed", "classify", "token_embed")


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Pooling parameters with the names of vLLM; values out of range raise `ClientError`.

    `task` None: the model's own. `dimensions`: only the first so many numbers of an embedding, for models made for it.
    `use_activation` False: not normalised, or logits in the place of probabilities; None: as the model says.
    `truncate_prompt_tokens`: keep so many tokens of a text, special ones included; -1: as many as the model takes.
    """

    task: str | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "right"  # the side that is cut away
    skip_reading_prefix_cache: bool = False  # set by the engine where hidden states of all tokens are needed

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise ClientError(f"Unsupported task: {self.task!r} Supported tasks: {TASKS}", param="task", value=self.task)
        if self.truncation_side not in ("left", "right"):
            raise ClientError("truncation_side must be left or right.", param="truncation_side", value=self.truncation_side)
        _check("dimensions", self.dimensions, 1, "Dimensions must be greater than 0")
        tokens = self.truncate_prompt_tokens
        if tokens == 0:
            raise ClientError("truncate_prompt_tokens must be -1 or at least 1, got 0.", param="truncate_prompt_tokens")
        _check("truncate_prompt_tokens", tokens, -1, f"truncate_prompt_tokens must be at least -1, got {tokens}.")


def _check(name: str, value: object, least: int, message: str) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ClientError(f"{name} must be an integer, got {value}.", param=name, value=value)
    if value < least:
        raise ClientError(message, param=name, value=value)
