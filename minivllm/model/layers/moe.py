"""Mixture of experts: a router, its experts, and perhaps one expert that all tokens share."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.config.hf.parts import MoESpec
from minivllm.config.model_spec import ModelSpec
from minivllm.config.shares import expert_share, intermediate_share, whole
from minivllm.kernels import Ops
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.mlp import GatedMLP
from minivllm.model.layers.shard import Parameter
from minivllm.model.quantization.grouped import Form


class MixtureMLP(Layer):
    def __init__(self, spec: ModelSpec, moe: MoESpec, ops: Ops, dtype: torch.dtype):
        hidden_size = spec.hidden_size
        self.gate = Router(hidden_size, moe)
        self.score_bias: Tensor | None = self.gate.declare(moe.num_experts, dtype=torch.float32) if moe.score_bias else None
        self.experts = Experts(hidden_size, moe, ops, dtype)
        self.shared_experts = GatedMLP(spec, ops, dtype, moe.shared_size, reduce=False) if moe.shared_size else None
        self.shared_gate: Tensor | None = self.gate.declare(1, hidden_size, dtype=dtype) if moe.shared_gate else None
        self._moe = moe
        self._ops = ops.moe
        self._group = ops.group

    def __call__(self, x: Tensor) -> Tensor:
        experts, shares = self._route(self.gate(x))
        mixed = self.experts(x, experts, shares)
        if self.shared_experts is not None:
            shared = self.shared_experts(x)
            mixed = mixed + (shared if self.shared_gate is None else F.linear(x, self.shared_gate).sigmoid() * shared)
        return self._group.all_reduce(mixed)

    def _route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """fp32 [num_tokens, num_experts] -> experts of each token, int64 [num_tokens, top_k], and shares, fp32 alike."""
        moe = self._moe
        if moe.score == "sparsemixer":
            return _sparsemixer(logits, moe)
        if moe.num_groups > 1:
            return _route_by_groups(logits, moe, self.score_bias)
        bias = None if self.score_bias is None else self.score_bias.flatten()
        return self._ops.route(
            logits, moe.top_k, bias, sigmoid=moe.score == "sigmoid", renormalize=moe.renormalize, scale=moe.scale
        )


class Router(Layer):
    """A score for each expert. Small, and its choices are sensitive: in fp32, and never quantized."""

    def __init__(self, hidden_size: int, moe: MoESpec):
        self.weight = self.declare(moe.num_experts, hidden_size, dtype=torch.float32)
        self.bias: Tensor | None = self.declare(moe.num_experts, dtype=torch.float32) if moe.bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """fp32 [num_tokens, num_experts]"""
        return F.linear(x.float(), self.weight, self.bias)


class Experts(Layer):
    """The feed-forward layers, each linear layer of all experts as one parameter: a part of every expert, or some experts."""

    def __init__(self, hidden_size: int, moe: MoESpec, ops: Ops, dtype: torch.dtype):
        group, count = ops.group, moe.num_experts
        if ops.whole_experts:
            own = expert_share(count, group)
            size = whole(moe.intermediate_size)
        else:
            own, size = whole(count), intermediate_share(moe.intermediate_size, group)
        outs = own.each(whole(hidden_size))
        self.gate_up = self.declare(own.each(size, size), hidden_size, dtype=dtype)
        self.down = self.declare(outs, size, dtype=dtype)
        self.gate_up_bias: Tensor | None = self.declare(own.each(size, size), dtype=dtype) if moe.bias else None
        self.down_bias: Tensor | None = self.declare(outs, dtype=dtype) if moe.bias else None
        self.share_read = moe.top_k / count
        self._own = own
        self._adds_bias = ops.whole_experts or group.rank == 0  # in a sum over the ranks it counts once
        self._forms: dict[str, Form] = {}  # of what is kept packed
        self._dtype = dtype
        self._limit = moe.swiglu_limit
        self._ops = ops.moe

    def keep_packed(self, name: str, form: Form) -> None:
        """Before loading: of gate_up or down, take values, scales and least in place of the weight."""
        weight: Parameter = getattr(self, name)
        rows, (whole_columns,) = weight.shard.dims
        setattr(self, name, None)
        for part, (columns, dtype) in form.parts(whole_columns).items():
            setattr(self, f"{name}:{part}", self.declare(rows, columns, dtype=dtype))
        self._forms[name] = form

    def finish_loading(self) -> None:
        self.gate_up, self.down = self._packed("gate_up"), self._packed("down")
        if self.gate_up_bias is not None and self.down_bias is not None:
            self.gate_up_bias = self.gate_up_bias.view(self._own.size, -1)
            self.down_bias = self.down_bias.view(self._own.size, -1) if self._adds_bias else None

    def _packed(self, name: str) -> Any:
        form, weight = self._forms.get(name), getattr(self, name)
        if form is None:
            return self._ops.pack(weight.view(self._own.size, -1, weight.shape[1]))
        stacks = []
        for part in ("values", "scales", "least"):
            tensor: Tensor = getattr(self, f"{name}:{part}")
            stacks.append(tensor.view(self._own.size, -1, tensor.shape[1]))
            setattr(self, f"{name}:{part}", None)
        return self._ops.pack_groups(*stacks, form.bits, form.codes, self._dtype)

    def __call__(self, x: Tensor, experts: Tensor, shares: Tensor) -> Tensor:
        """experts: int64 [num_tokens, top_k]; shares: fp32 alike."""
        if not self._own.is_whole:
            here = (experts >= self._own.begin) & (experts < self._own.end)
            experts = torch.where(here, experts - self._own.begin, self._own.size)
        return self._ops.mix(
            x, experts, shares, self.gate_up, self.down, self.gate_up_bias, self.down_bias, limit=self._limit
        )  # fmt: skip


def _route_by_groups(logits: Tensor, moe: MoESpec, score_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """As kernels.moe.route, but experts come from the best groups only."""
    scores = logits.sigmoid() if moe.score == "sigmoid" else logits.softmax(-1)
    groups = (scores if score_bias is None else scores + score_bias.flatten()).unflatten(-1, (moe.num_groups, -1))
    merit = groups.topk(2, dim=-1).values.sum(-1) if moe.group_score == "top2" else groups.amax(-1)
    best = torch.zeros_like(merit, dtype=torch.bool).scatter_(1, merit.topk(moe.top_groups, dim=-1).indices, True)
    experts = groups.masked_fill(~best[..., None], float("-inf")).flatten(1).topk(moe.top_k, dim=-1).indices
    shares = scores.gather(1, experts)
    if moe.renormalize:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return experts, shares * moe.scale


def _sparsemixer(logits: Tensor, moe: MoESpec) -> tuple[Tensor, Tensor]:
    """Liu et al. 2024, as it works once trained: choice after choice of the best, whose share is that among those within
    `jitter` of it.
    """
    left = logits.clone()
    experts, shares = [], []
    for _ in range(moe.top_k):
        best, chosen = left.max(-1, keepdim=True)
        far = (best - left) / logits.abs().clamp(min=best) > 2 * moe.jitter
        shares.append(left.masked_fill(far, float("-inf")).softmax(-1).gather(1, chosen))
        experts.append(chosen)
        left.scatter_(1, chosen, float("-inf"))
    return torch.cat(experts, dim=1), torch.cat(shares, dim=1)
