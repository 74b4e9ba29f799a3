"""Which layers of a model have a sliding window, and how positions turn their queries and keys."""

from collections.abc import Sequence

from minivllm.config.hf.parts import LayerSpec
from minivllm.config.hf.reader import Reader
from minivllm.config.hf.rope import rope_of


def layers_of(
    read: Reader, window: int | None = None, windowed: Sequence[bool] | None = None, turned: Sequence[bool] | None = None
) -> tuple[LayerSpec, ...]:
    """`windowed`: the layers that have `window`, unless the file's layer_types says it; all without both. `turned`: those
    with a rotary embedding; None: all.
    """
    count = read.count("num_hidden_layers")
    kinds = read.get("layer_types")
    if isinstance(kinds, list) and window:
        windowed = [kind == "sliding_attention" for kind in kinds]
    windowed, turned = windowed or [True] * count, turned or [True] * count
    if len(windowed) < count or len(turned) < count:
        read.refuse(f"it describes fewer than its {count} layers")
    if window:
        window = read.count("sliding_window")
    layers = []
    for index in range(count):
        has_window = bool(window) and windowed[index]
        rope = rope_of(read, "sliding_attention" if has_window else "full_attention") if turned[index] else None
        layers.append(LayerSpec(window=window or 0 if has_window else 0, rope=rope))
    return tuple(layers)


def uniform_layers(read: Reader, window: int | None) -> tuple[LayerSpec, ...]:
    """All with the same window, whatever layer_types says."""
    count = read.count("num_hidden_layers")
    return (LayerSpec(window=read.count("sliding_window") if window else 0, rope=rope_of(read)),) * count


def pattern_of(read: Reader, default: int) -> list[bool]:
    """Windows in all but each n-th layer; EXAONE 4 writes n as LLLG."""
    pattern = read.get("sliding_window_pattern", default)
    every = len(pattern) if isinstance(pattern, str) else int(pattern)
    count = read.count("num_hidden_layers")
    return [bool(every) and (index + 1) % every != 0 for index in range(count)]
