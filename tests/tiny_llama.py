"""A Llama of a few kilobytes with random weights, for tests that start several workers; transformers is not needed."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from scripted_core import make_tokenizer

VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, DIM = 160, 48, 64, 4, 4, 2, 12


def write_tiny_llama(folder: Path, tied: bool = False) -> Path:
    """The weights are large enough for texts that do not repeat themselves."""
    tokenizer = make_tokenizer()
    vocab = max(VOCAB, tokenizer.size)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": HIDDEN}
    config |= {"intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "head_dim": DIM}
    config |= {"num_key_value_heads": KV_HEADS, "max_position_embeddings": 256, "torch_dtype": "float32"}
    config |= {"tie_word_embeddings": tied}
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
                "mlp.gate_proj": (FFN, HIDDEN),
                "mlp.up_proj": (FFN, HIDDEN),
                "mlp.down_proj": (HIDDEN, FFN),
            }.items()
        }
    generator = torch.Generator().manual_seed(3)
    tensors = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}
    save_file({name: tensor + (tensor.dim() == 1) for name, tensor in tensors.items()}, str(folder / "model.safetensors"))
    return folder
