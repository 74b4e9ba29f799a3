"""A Llama of a few kilobytes with random weights, for tests that start several workers; transformers is not needed."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from scripted_core import make_tokenizer

VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, DIM = 160, 48, 64, 4, 4, 2, 12


def write_tiny_llama(folder: Path, tied: bool = False, experts: int = 0) -> Path:
    """The weights are large enough for texts that do not repeat themselves. With experts it is a Mixtral."""
    tokenizer = make_tokenizer()
    vocab = max(VOCAB, tokenizer.size)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": HIDDEN}
    config |= {"intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "head_dim": DIM}
    config |= {"num_key_value_heads": KV_HEADS, "max_position_embeddings": 256, "torch_dtype": "float32"}
    config |= {"tie_word_embeddings": tied}
    if experts:
        config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
        config |= {"num_local_experts": experts, "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    shapes = {"model.embed_tokens": (vocab, HIDDEN), "model.norm": (HIDDEN,)} | ({} if tied else {"lm_head": (vocab, HIDDEN)})
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm": (HIDDEN,),
                "self_attn.q_proj": (HEADS * DIM, HIDDEN),
                "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
                "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HEADS * DIM),
                "post_attention_layernorm": (HIDDEN,),
                **(_experts(experts) if experts else _mlp("mlp", "gate_proj", "up_proj", "down_proj")),
            }.items()
        }
    generator = torch.Generator().manual_seed(3)
    tensors = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}
    save_file({name: tensor + (tensor.dim() == 1) for name, tensor in tensors.items()}, str(folder / "model.safetensors"))
    return folder


def _mlp(name: str, gate: str, up: str, down: str) -> dict[str, tuple[int, int]]:
    return {f"{name}.{gate}": (FFN, HIDDEN), f"{name}.{up}": (FFN, HIDDEN), f"{name}.{down}": (HIDDEN, FFN)}


def _experts(count: int) -> dict[str, tuple[int, int]]:
    shapes = {"block_sparse_moe.gate": (count, HIDDEN)}
    for number in range(count):
        shapes |= _mlp(f"block_sparse_moe.experts.{number}", "w1", "w3", "w2")
    return shapes
