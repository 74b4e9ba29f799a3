"""Mixtures of experts: what the weights of routers and experts are called."""

from typing import Any

from torch import Tensor

from minivllm.config.model_spec import ModelSpec
from minivllm.model.families.decoder import DecoderForCausalLM
from minivllm.model.layers.shard import Layout

_MERGED = DecoderForCausalLM.weight_map


class MixtureForCausalLM(DecoderForCausalLM):
    """Of Qwen 3, OLMoE, GLM-4.5 and DeepSeek."""

    weight_map = {
        **_MERGED,
        "gate_up": ("{}.gate_proj.weight", "{}.up_proj.weight"),
        "down": ("{}.down_proj.weight",),
        "score_bias": ("gate.e_score_correction_bias",),
    }

    def ignores(self, name: str) -> bool:
        # Some checkpoints have layers more, that predict further tokens.
        beyond = name.startswith("model.layers.") and int(name.split(".")[2]) >= self.spec.num_layers
        return beyond or name.startswith("model.mtp_") or super().ignores(name)


class Qwen2MoeForCausalLM(MixtureForCausalLM):
    weight_map = {
        **MixtureForCausalLM.weight_map,
        "shared_experts": ("shared_expert",),
        "shared_gate": ("shared_expert_gate.weight",),
    }


class ErnieMoeForCausalLM(MixtureForCausalLM):
    weight_map = {**MixtureForCausalLM.weight_map, "score_bias": ("moe_statics.e_score_correction_bias",)}
    layouts = {"score_bias": Layout(lambda shape: (1, *shape), lambda tensor: tensor.flatten())}


class MixtralForCausalLM(MixtureForCausalLM):
    """Also of Phi-3.5 MoE."""

    weight_map = {
        **_MERGED,
        "mlp": ("block_sparse_moe",),
        "gate_up": ("{}.w1.weight", "{}.w3.weight"),
        "down": ("{}.w2.weight",),
    }


class GraniteMoeForCausalLM(MixtureForCausalLM):
    """All experts in one tensor."""

    weight_map = {
        **_MERGED,
        "mlp": ("block_sparse_moe",),
        "gate": ("router.layer",),
        "experts": ("",),
        "gate_up": ("input_linear.weight",),
        "down": ("output_linear.weight",),
    }

    def __init__(self, spec: ModelSpec, *build: Any):
        super().__init__(spec, *build)
        count = _experts(spec)
        together = Layout(lambda shape: (count, shape[0] // count, shape[1]), lambda tensor: tensor.flatten(0, 1))
        self.layouts = {"gate_up": together, "down": together}


class GptOssForCausalLM(MixtureForCausalLM):
    """All experts in one tensor, transposed, the rows of gate and up in turn."""

    weight_map = {
        **_MERGED,
        "gate": ("router",),
        "gate_up": ("gate_up_proj",),
        "down": ("down_proj",),
        "gate_up_bias": ("gate_up_proj_bias",),
        "down_bias": ("down_proj_bias",),
    }

    def __init__(self, spec: ModelSpec, *build: Any):
        super().__init__(spec, *build)
        count = _experts(spec)

        def stored(shape: tuple[int, ...]) -> tuple[int, ...]:
            return count, shape[1], shape[0] // count

        def by_expert(shape: tuple[int, ...]) -> tuple[int, ...]:
            return count, shape[0] // count

        def apart(tensor: Tensor) -> Tensor:
            """[..., 2 * size] of pairs -> gates, then ups"""
            return tensor.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)

        self.layouts = {
            "gate_up": Layout(stored, lambda tensor: apart(tensor).transpose(1, 2).flatten(0, 1)),
            "down": Layout(stored, lambda tensor: tensor.transpose(1, 2).flatten(0, 1)),
            "gate_up_bias": Layout(by_expert, lambda tensor: apart(tensor).flatten()),
            "down_bias": Layout(by_expert, lambda tensor: tensor.flatten()),
        }


def _experts(spec: ModelSpec) -> int:
    assert spec.moe is not None
    return spec.moe.num_experts
