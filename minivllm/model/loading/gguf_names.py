"""The tensors of a GGUF file by the names that a Hugging Face checkpoint has for them. Used by `gguf`."""

import re
from collections.abc import Iterator

from minivllm.config.model_spec import ModelSpec
from minivllm.utils.gguf import GGUFFile, TensorInfo

_USUAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA2 = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
# Where an architecture's names are not the usual ones.
_OTHER = {
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA2,
    "Glm4ForCausalLM": {
        "post_attention_norm": "post_self_attn_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "MixtralForCausalLM": {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    },
    "Olmo2ForCausalLM": {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "OlmoeForCausalLM": _EXPERTS,
    "Phi3ForCausalLM": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "Qwen2MoeForCausalLM": _EXPERTS,
    "Qwen3MoeForCausalLM": _EXPERTS,
    "SeedOssForCausalLM": {"post_attention_norm": "post_attention_layernorm"},
    "Starcoder2ForCausalLM": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
}
_NO_WEIGHTS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}  # config.gguf_model reads them


def named_tensors(file: GGUFFile, spec: ModelSpec) -> Iterator[tuple[str, TensorInfo]]:
    """A tensor whose name we do not know keeps it, for the loader to complain of."""
    known = {**_USUAL, **_OTHER.get(spec.architecture, {})}
    for name, info in file.tensors.items():
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        ours = known.get(match[2]) if match else None
        if name in _NO_WEIGHTS:
            continue
        if match is None or ours is None:
            yield name, info
            continue
        ours = (f"model.layers.{match[1]}." if match[1] else "") + f"{ours}.{match[3]}"
        if "{}" in ours:
            yield from ((ours.format(index), expert) for index, expert in enumerate(_experts(info)))
        elif match[2] == "ffn_gate_inp_shexp":  # written as a vector
            yield ours, info.with_shape((1, info.shape[-1]), info.begin, info.end)
        else:
            yield ours, info


def _experts(info: TensorInfo) -> Iterator[TensorInfo]:
    """Of a tensor with the matrices of all experts, each."""
    count, *shape = info.shape
    size = (info.end - info.begin) // count
    for begin in range(info.begin, info.end, size):
        yield info.with_shape(tuple(shape), begin, begin + size)
