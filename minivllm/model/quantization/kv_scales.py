"""Scales of a KV cache in 8-bit floats, as checkpoints have them: a number for the keys and one for the values of a layer."""

from minivllm.model.loading.source import TensorSource

# Of keys, of values, of both; and of what we keep in its own type: queries, and the weights of values.
_ENDS = (".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale",
         ".q_scale", ".prob_scale", ".q_proj.output_scale")  # fmt: skip


def is_kv_scale(name: str) -> bool:
    return name.endswith(_ENDS)


def read_kv_scales(source: TensorSource, attention: str) -> tuple[float, float]:
    """By the name of an attention layer, what its keys and its values were divided by; 1 where nothing is said."""
    found = source.shapes()
    scales = []
    for kind in "kv":
        within = f"{attention}.{kind}_proj"
        names = (f"{attention}.{kind}_scale", f"{within}.{kind}_scale", f"{within}.output_scale", f"{attention}.kv_scale")
        name = next((name for name in names if name in found), None)
        scales.append(1.0 if name is None else source.read(name).float().max().item())
    return scales[0], scales[1]
