"""`Reader`: fields of a config.json under their usual names, with types checked."""

from collections.abc import Mapping
from typing import Any

from minivllm.errors import ConfigError

# What the same field is called in other families.
_ALIASES = {
    "hidden_size": ("n_embd", "d_model", "n_embed"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "hidden_act": ("hidden_activation", "activation_function", "activation"),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "rope_theta": ("rotary_emb_base",),
    "partial_rotary_factor": ("rotary_pct",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k",),
    "sliding_window_pattern": ("_sliding_window_pattern",),
}


class Reader:
    def __init__(self, config: Mapping[str, Any], architecture: str):
        self.architecture = architecture
        self._config = dict(config)
        for name, others in _ALIASES.items():
            if self._config.get(name) is None:
                found = [config[other] for other in others if config.get(other) is not None]
                self._config |= {name: found[0]} if found else {}

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` if it is absent or null."""
        value = self._config.get(name)
        return default if value is None else value

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.get(name, default))

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(f"{name} must be a number, got {value!r}")
        return float(value)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if value is None:
            raise ConfigError(
                f"Model architectures ['{self.architecture}'] are not supported for now: config.json has no {name}.",
                param="model",
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(f"{name} must be a positive integer, got {value!r}")
        return int(value)

    def with_defaults(self, **values: Any) -> "Reader":
        """The same with other values where a field is absent or null."""
        return self.replaced(**{name: value for name, value in values.items() if self.get(name) is None})

    def replaced(self, **values: Any) -> "Reader":
        return Reader({**self._config, **values}, self.architecture)

    def refuse(self, what: str) -> None:
        raise ConfigError(f"the model's config.json cannot be used: {what}.", param="model")
