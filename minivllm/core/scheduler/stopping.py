"""Does the newest token end the request?"""

from minivllm.core.scheduler.request import Request
from minivllm.messages.output import FinishReason


def check_stop(request: Request) -> tuple[FinishReason, int | None] | None:
    """Finish reason and stop reason if the last token of `request.tokens` ends it, else None.

    The stop reason is the token's id for `stop_token_ids`, None for EOS. Stop strings are found where the text is.
    Before `min_tokens` only a length limit ends it, or a grammar that cannot go on; the sampler does not choose EOS and stop
    ids then.
    """
    data = request.data
    params = data.sampling_params
    if request.num_output_tokens >= params.min_tokens:
        token = request.tokens[-1]
        if token in data.eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP, None
        if token in params.stop_token_ids:
            return FinishReason.STOP, token
    if request.grammar is not None and request.grammar.ended:
        return FinishReason.STOP, None
    if len(request.tokens) >= request.max_length:
        return FinishReason.LENGTH, None
    return None


def is_text_at_end(request: Request) -> bool:
    """Whether an end found by `check_stop` came with a token of text, not with one that stands for the end."""
    data, token = request.data, request.tokens[-1]
    ended = request.grammar is not None and request.grammar.ended
    return ended and token not in data.eos_token_ids and token not in data.sampling_params.stop_token_ids
