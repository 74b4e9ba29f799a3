"""What a `SlotResult` means for its request: tokens accepted up to a stop, logprobs gathered, the output to send."""

from minivllm.core.scheduler.request import Request
from minivllm.core.scheduler.stopping import check_stop, is_text_at_end
from minivllm.messages.output import FinishReason, TokenOutput
from minivllm.messages.step import SlotResult


def accept(request: Request, result: SlotResult) -> TokenOutput | None:
    """Put the result into the request. Returns the output to send, if there is one; `finish_reason` in it ends the request."""
    if result.error is not None:
        return _failed_step(request, result)
    if result.prompt_logprobs:
        request.prompt_logprobs += result.prompt_logprobs
        request.num_prompt_logprobs += len(result.prompt_logprobs)
    if not result.token_ids and result.pooled is None:
        return None
    output = _output(request)
    request.num_pending -= 1
    if result.pooled is not None:
        output.pooled, output.finish_reason = result.pooled, FinishReason.STOP
        return output
    if request.data.sampling_params.max_tokens == 0:  # only the prompt's logprobs are wanted
        output.finish_reason = FinishReason.LENGTH
    else:
        for token in result.token_ids:
            request.tokens.append(token)
            output.token_ids.append(token)
            if request.grammar is not None:
                request.grammar.accept(token)
            if (stop := check_stop(request)) is not None:
                output.finish_reason, output.stop_reason = stop
                output.grammar_ended = is_text_at_end(request)
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


def _failed_step(request: Request, result: SlotResult) -> TokenOutput:
    grammar_error = request.grammar.error if request.grammar is not None else None
    output = failure(request, grammar_error or result.error or "")
    output.error_param = "structured_outputs" if grammar_error else result.error_param
    return output


def _output(request: Request) -> TokenOutput:
    return TokenOutput(
        request_id=request.data.request_id,
        token_ids=[],
        num_cached_tokens=request.num_cached_tokens or 0,
        num_preemptions=request.num_preemptions,
        scheduled_time=request.scheduled_time,
    )
