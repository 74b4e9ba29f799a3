"""`ForwardInputs`: one step as tensors on the device."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minivllm.model.attention.metadata import AttentionMetadata


@dataclass(slots=True)
class ForwardInputs:
    """Tokens stand sequence by sequence, in the order of the plan."""

    input_ids: Tensor  # int64 [num_tokens]; after the first pipeline stage: hidden states [num_tokens, hidden_size]
    positions: Tensor  # int64 [num_tokens]
    attention: AttentionMetadata
    sample_rows: Tensor  # int64 [num_samples]: rows of the hidden states whose logits give a next token
    sample_slots: npt.NDArray[np.int64]  # [num_samples]: the slots that get it
    query_start: npt.NDArray[np.int32]  # [num_seqs + 1], as in `attention`, on the host
    token_types: Tensor | None = None  # int64 [num_tokens], if there is a pair of texts: 1 in the second
