"""Which linear layers of a model tensor parallel ranks divide, by the plan that transformers has for it.

Attention by heads and feed-forward layers by what lies between their matrices; only where the plan divides all of one as Llama
does. Every rank has the whole of the rest.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import Share, head_shares, intermediate_share, whole
from minivllm.kernels.communicator import Communicator

_COMES_OUT = {"colwise": True, "rowwise": False}  # styles of the plan: whether the share is of what comes out
_COUNTS = (("num_heads", "num_attention_heads"), ("num_key_value_heads", "num_kv_heads"))

Shares = dict[str, tuple[Share, Share]]  # what goes in and what comes out, by the layer's path


def shares_of(model: PreTrainedModel, spec: ModelSpec, group: Communicator) -> Shares:
    """Attention modules are told how many heads are left to them."""
    plan: Mapping[str, str] = model._tp_plan or {}
    found: Shares = {}
    if group.size == 1:
        return found
    for path, module in model.named_modules():
        linears = {name: child for name, child in module.named_children() if type(child) is nn.Linear}
        styles = {name: plan.get(re.sub(r"\.\d+(?=\.)", ".*", f"{path}.{name}"), "") for name in linears}
        if not linears or set(styles.values()) != set(_COMES_OUT):
            continue
        own = _attention(module, linears, styles, spec, group) or _feed_forward(linears, styles, group)
        found |= {f"{path}.{name}": share for name, share in own.items()}
    return found


def _attention(
    module: Any, linears: Mapping[str, nn.Linear], styles: Mapping[str, str], spec: ModelSpec, group: Communicator
) -> Shares:
    dim = getattr(module, "head_dim", None)
    if set(linears) != {"q_proj", "k_proj", "v_proj", "o_proj"} or not isinstance(dim, int) or module._parameters:
        return {}
    q, k, v, o = (linears[name] for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    if styles["o_proj"] != "rowwise" or q.out_features != o.in_features or k.out_features != v.out_features:
        return {}
    heads, kv_heads = head_shares(
        replace(spec, num_heads=q.out_features // dim, num_kv_heads=k.out_features // dim), group
    )  # fmt: skip
    for share, names in zip((heads, kv_heads), _COUNTS, strict=True):
        for name in names:
            if getattr(module, name, None) == share.whole:
                setattr(module, name, share.size)
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = heads.size // kv_heads.size
    kv = (whole(k.in_features), kv_heads.times(dim))
    return {
        "q_proj": (whole(q.in_features), heads.times(dim)),
        "k_proj": kv,
        "v_proj": kv,
        "o_proj": (heads.times(dim), whole(o.out_features)),
    }


def _feed_forward(linears: Mapping[str, nn.Linear], styles: Mapping[str, str], group: Communicator) -> Shares:
    between = {linear.out_features if _COMES_OUT[styles[name]] else linear.in_features for name, linear in linears.items()}
    if "o_proj" in linears or len(between) != 1:
        return {}
    share = intermediate_share(between.pop(), group)
    return {
        name: (whole(linear.in_features), share) if _COMES_OUT[styles[name]] else (share, whole(linear.out_features))
        for name, linear in linears.items()
    }
