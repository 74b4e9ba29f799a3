"""Log probabilities as users see them, from the ids and numbers that the core sends."""

from minivllm.messages.output import Logprob
from minivllm.messages.step import TokenLogprobs
from minivllm.text.tokenizer import Tokenizer


def to_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Entries of one position: the chosen token is the first key, the alternatives follow from the most probable on.

    Without a tokenizer (`detokenize=False`) the entries have no `decoded_token`.
    """
    ids, values = entry.token_ids, entry.logprobs
    text_of = tokenizer.token_text if tokenizer is not None else _no_text
    found = {ids[0]: Logprob(values[0], entry.rank, text_of(ids[0]))}
    for rank, index in enumerate(ids[1:], 1):
        if index not in found:
            found[index] = Logprob(values[rank], rank, text_of(index))
    return found


def _no_text(token_id: int) -> None:
    return None
