"""Does the newest token end the request?"""

from minivllm.core.scheduler.request import Request
from minivllm.messages.output import FinishReason


def check_stop(request: Request) -> tuple[FinishReason, int | None] | None:
    """Finish reason and stop reason if the last token of `request.tokens` ends it, else None.

    The stop reason is the token's id for `stop_token_ids`, None for EOS. Stop strings are found where the text is.
    Before `min_tokens` only a length limit ends it; the sampler does not choose EOS and stop ids then.
    """
    data = request.data
    params = data.sampling_params
    if request.num_output_tokens >= params.min_tokens:
        token = request.tokens[-1]
        if token in data.eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP, None
        if token in params.stop_token_ids:
            return FinishReason.STOP, token
    if len(request.tokens) >= request.max_length:
        return FinishReason.LENGTH, None
    return None
