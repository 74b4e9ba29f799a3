"""A tiny random model of any architecture that transformers has, by shrinking the numbers in its default configuration."""

from dataclasses import fields
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS = 3
_SMALL: dict[int | float | None, str] = {
    160: "vocab_size vocab_size_per_layer_input",
    1: "bos_token_id first_k_dense_replace n_shared_experts num_shared_experts n_group topk_group num_kv_shared_layers "
    "initializer_factor num_dense_layers moe_layer_start_index decoder_start_token_id",
    2: "eos_token_id num_key_value_heads num_kv_heads multi_query_group_num num_experts_per_tok num_experts_per_token "
    "moe_topk moe_top_k moe_k top_k_experts num_encoder_layers expert_n_group",
    LAYERS: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers",
    0: "pad_token_id",
    0.2: "initializer_range init_std",
    4: "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads encoder_attention_heads "
    "qk_rope_head_dim",
    6: "num_experts num_local_experts n_routed_experts moe_num_experts",
    7: "sliding_window",
    8: "rotary_dim hidden_size_per_layer_input laurel_rank index_head_dim",
    10: "v_head_dim",
    12: "qk_nope_head_dim",
    16: "head_dim global_head_dim d_head attention_head_dim",
    20: "kv_lora_rank",
    24: "moe_intermediate_size q_lora_rank expert_intermediate_size",
    40: "shared_expert_intermediate_size shared_intermediate_size moe_shared_expert_intermediate_size",
    64: "hidden_size d_model n_embd dim embedding_size d_embed max_position_embeddings n_positions n_ctx max_seq_len "
    "max_sequence_length word_embed_proj_dim",
    96: "intermediate_size ffn_dim n_inner decoder_ffn_dim encoder_ffn_dim ffn_hidden_size d_ff dense_intermediate_size "
    "ffn_size mlp_intermediate_size",
}
SMALL: dict[str, Any] = {"is_decoder": True}
SMALL |= {name: value for value, names in _SMALL.items() for name in names.split()}
# What shrinking alone does not do.
_ATTENTION_ONLY = ["full_attention"] * LAYERS
ALSO: dict[str, dict[str, Any]] = {
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1000.0, "clip_qkv": 1.0},
        "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 6, "moe_top_k": 2},
    },
    "granitemoehybrid": {"layer_types": _ATTENTION_ONLY},
    "hrm_text": {"initializer_range": 0.1},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "reformer": {"attn_layers": ["local"] * LAYERS, "axial_pos_embds": False},
    "xlm": {"emb_dim": 64},
    "longcat_flash": {"expert_ffn_hidden_size": 24, "zero_expert_num": 2},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "cohere_compass_text": {"layer_types": _ATTENTION_ONLY},
}
_MOST_PARAMETERS = 20_000_000


def tiny_config(model_type: str, **values: Any) -> transformers.PreTrainedConfig:
    kind = CONFIG_MAPPING[model_type]
    known = {field.name for field in fields(kind)} if hasattr(kind, "__dataclass_fields__") else set()
    small = {name: value for name, value in SMALL.items() if name in known}
    if "kv_lora_rank" in known:  # latent attention
        small |= {name: value for name, value in {"head_dim": 4, "num_key_value_heads": 4}.items() if name in known}
    types = list(dict.fromkeys(getattr(kind(), "layer_types", None) or []))
    if types and "layer_types" in known:
        small["layer_types"] = [types[layer % len(types)] for layer in range(LAYERS)]
    return kind(**{**small, **ALSO.get(model_type, {}), **values})


def tiny_model(model_type: str, **values: Any) -> transformers.PreTrainedModel:
    """In float32, with no parameter at a value that hides it."""
    config = tiny_config(model_type, **values)
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in kind(config).parameters())
    assert count < _MOST_PARAMETERS, f"{count:,} parameters: its configuration was not made small"
    torch.manual_seed(sum(map(ord, model_type)))
    model = kind(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or "norm" in name:
                parameter += torch.randn_like(parameter) * 0.2
    return model
