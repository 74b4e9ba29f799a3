"""What a `SlotResult` means for its request: tokens accepted up to a stop, logprobs gathered, the output to send."""

from minivllm.core.scheduler.request import Request
from minivllm.core.scheduler.stopping import check_stop
from minivllm.messages.output import FinishReason, TokenOutput
from minivllm.messages.step import SlotResult


def accept(request: Request, result: SlotResult) -> TokenOutput | None:
    """Put the result into the request. Returns the output to send, if there is one; `finish_reason` in it ends the request."""
    if result.error is not None:
        return failure(request, result.error)
    if result.prompt_logprobs:
        request.prompt_logprobs += result.prompt_logprobs
        request.num_prompt_logprobs += len(result.prompt_logprobs)
    if not result.token_ids:
        return None
    output = _output(request)
    request.num_pending -= 1
    if request.data.sampling_params.max_tokens == 0:  # only the prompt's logprobs are wanted
        output.finish_reason = FinishReason.LENGTH
    else:
        for token in result.token_ids:
            request.tokens.append(token)
            output.token_ids.append(token)
            if (stop := check_stop(request)) is not None:
                output.finish_reason, output.stop_reason = stop
                break
        if result.logprobs is not None:
            output.logprobs = result.logprobs[: len(output.token_ids)]
    if request.prompt_logprobs:
        output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, []
    return output


def failure(request: Request, error: str) -> TokenOutput:
    """The output that ends a request alone with an error."""
    output = _output(request)
    output.finish_reason = FinishReason.ERROR
    output.error = error
    return output


def _output(request: Request) -> TokenOutput:
    return TokenOutput(
        request_id=request.data.request_id,
        token_ids=[],
        num_cached_tokens=request.num_cached_tokens or 0,
        num_preemptions=request.num_preemptions,
        scheduled_time=request.scheduled_time,
    )
