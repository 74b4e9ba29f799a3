"""What attention must know of the sequences in one step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class AttentionMetadata:
    """Tokens of the step stand in rows, sequence by sequence: rows query_start[s] to query_start[s + 1] are sequence s."""

    query_start: Tensor  # int32 [num_seqs + 1]
    context_lens: Tensor  # int32 [num_seqs]: keys of the sequence, this step's included
    block_tables: Tensor  # int32 [num_seqs, max_blocks]
    slot_mapping: Tensor  # int64 [num_tokens]: block * block_size + offset where the token's key and value go
