"""Picks the attention back end: the first candidate that does not refuse."""

import torch

from minivllm.config.model_spec import ModelSpec
from minivllm.errors import ConfigError
from minivllm.model.attention.backend import AttentionBackend
from minivllm.model.attention.bidirectional import BidirectionalBackend
from minivllm.model.attention.latent import LatentBackend
from minivllm.model.attention.paged import PagedBackend
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

CANDIDATES: list[type[AttentionBackend]] = [PagedBackend, LatentBackend, BidirectionalBackend]


def select_backend(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: str) -> type[AttentionBackend]:
    """The first of CANDIDATES that can serve the model; `ConfigError` with every candidate's reason if none can."""
    reasons: list[str] = []
    for candidate in CANDIDATES:
        reason = candidate.refusal(spec, dtype, kv_dtype, device)
        if reason is None:
            logger.debug("attention: %s%s", candidate.name, f" ({'; '.join(reasons)})" if reasons else "")
            return candidate
        reasons.append(f"{candidate.name}: {reason}")
    raise ConfigError(f"no attention back end can serve this model on {device}: {'; '.join(reasons)}.")
