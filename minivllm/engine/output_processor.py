"""`OutputProcessor`: the core's batches of token outputs → the streams of user requests, and the metrics of it all."""

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

from minivllm.engine.choice import Choice
from minivllm.engine.fanout import divide
from minivllm.engine.request_stream import RequestStream
from minivllm.errors import ClientError, DeadlineError, MinivllmError, ServerError
from minivllm.messages.output import TokenOutput, TokenOutputs
from minivllm.messages.request import EngineRequest
from minivllm.metrics.recorder import FinishedRequest, Metrics, StepRecord
from minivllm.text.tokenizer import Tokenizer
from minivllm.utils.board import Board


class OutputProcessor:
    """Knows every request that runs. A request leaves when its last choice ends, or by `drop`, `abort` or `fail_all`."""

    def __init__(self, tokenizer: Tokenizer, metrics: Metrics, board: Board | None = None):
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._choices: dict[str, tuple[RequestStream, Choice, EngineRequest]] = {}  # by the core's request id
        self._streams: dict[RequestStream, list[str]] = {}  # with the core's ids of its choices
        self._num_open = (board or Board(1)).take(1)

    @property
    def num_sequences(self) -> int:
        return len(self._choices)

    @property
    def num_sequences_of_all(self) -> int:
        """Those of all API processes."""
        return int(self._num_open.total())

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def streams(self) -> Mapping[RequestStream, Sequence[str]]:
        """What is open, oldest first, with the core's ids of its choices."""
        return self._streams

    def add(self, request_id: str, prompt: str | None, request: EngineRequest) -> tuple[RequestStream, list[EngineRequest]]:
        """Open the stream of a request; the requests returned are to be sent to the core."""
        stream = RequestStream(request_id, prompt, request, self._tokenizer)
        children = divide(request)
        for child, choice in zip(children, stream.choices, strict=True):
            self._choices[child.request_id] = stream, choice, child
        self._streams[stream] = [child.request_id for child in children]
        self._count()
        return stream, children

    def process(self, batch: TokenOutputs) -> tuple[list[RequestStream], list[str]]:
        """The streams that got something (one with n > 1 maybe more than once), and the ids that the core must abort."""
        touched: list[RequestStream] = []
        aborts: list[str] = []
        record, now = StepRecord(), batch.time
        for output in batch.outputs:
            entry = self._choices.get(output.request_id)
            if entry is None:
                continue  # it was aborted meanwhile
            stream, choice, _ = entry
            last_time, num_before = choice.last_token_time, choice.num_tokens
            hit = stream.feed(choice, output, now)
            touched.append(stream)
            record.num_generation_tokens += choice.num_tokens - num_before
            if last_time is not None:
                record.token_seconds.append(now - last_time)
            elif output.error is None:
                record.num_prompt_tokens += len(stream.request.prompt_token_ids)
                record.num_cached_tokens += output.num_cached_tokens
                if output.token_ids:
                    record.first_token_seconds.append(now - stream.metrics.arrival_time)
            if choice.finish_reason is not None:
                self._end(stream, choice, output, record)
                if hit:
                    aborts.append(output.request_id)
                if output.error is not None:
                    aborts += self._break(stream, _error(output.error, output.error_param))
        self._metrics.recorders[batch.engine].record_step(record, batch.stats)
        self._count()
        return touched, aborts

    def drop(self, stream: RequestStream) -> list[str]:
        """Nobody reads this stream any more. Returns the ids that the core must abort."""
        return self._close(stream, "abort")

    def drop_all(self) -> list[str]:
        return [core_id for stream in list(self._streams) for core_id in self._close(stream, "abort")]

    def end_choices(self, stream: RequestStream, indices: Iterable[int]) -> list[str]:
        """The reader wants no more of these choices: they end as if the model had stopped. Returns ids to abort."""
        core_ids = self._streams.get(stream, ())
        aborts = self._end_all(stream, [core_ids[index] for index in indices if core_ids], "stop")
        if stream.finished:
            self._streams.pop(stream, None)
        return aborts

    def expire(self, stream: RequestStream) -> list[str]:
        """Its time is up: what it has so far is its answer, and an error if that is nothing. Returns ids to abort."""
        if not any(choice.num_tokens for choice in stream.choices):
            return self._break(stream, DeadlineError("The request's timeout_ms ran out before its first token."))
        aborts = self._close(stream, "timeout")
        stream.wake()
        return aborts

    def abort(self, request_id: str) -> list[str]:
        """End the streams of a user's request id with finish reason "abort". Returns the ids that the core must abort."""
        aborts = []
        for stream in [each for each in self._streams if each.request_id == request_id]:
            aborts += self._close(stream, "abort")
            stream.wake()
        return aborts

    def fail_all(self, error: MinivllmError) -> None:
        """The core is dead."""
        for stream in list(self._streams):
            self._break(stream, error)

    def _end(self, stream: RequestStream, choice: Choice, output: TokenOutput, record: StepRecord) -> None:
        del self._choices[output.request_id]
        record.finished.append(_finished(stream, choice))
        if stream.finished:
            del self._streams[stream]

    def _break(self, stream: RequestStream, error: MinivllmError) -> list[str]:
        stream.error = error
        aborts = self._close(stream, "timeout" if isinstance(error, DeadlineError) else "error")
        stream.wake()
        return aborts

    def _close(self, stream: RequestStream, reason: str) -> list[str]:
        return self._end_all(stream, self._streams.pop(stream, ()), reason)

    def _end_all(self, stream: RequestStream, core_ids: Iterable[str], reason: str) -> list[str]:
        """Those of the choices that have not ended yet; returns their ids."""
        now, aborts = monotonic(), []
        for core_id in core_ids:
            entry = self._choices.pop(core_id, None)
            if entry is not None:
                _, choice, child = entry
                choice.end(reason)
                stream.close_choice(now)
                self._metrics.recorders[child.data_parallel_rank].record_finished(_finished(stream, choice))
                aborts.append(core_id)
        self._count()
        return aborts

    def _count(self) -> None:
        self._num_open.own[0] = len(self._choices)
        if not self._choices:
            self._metrics.set_idle()


def _error(message: str, param: str | None) -> MinivllmError:
    return ServerError(message) if param is None else ClientError(message, param=param)


def _finished(stream: RequestStream, choice: Choice) -> FinishedRequest:
    params = stream.request.sampling_params
    return FinishedRequest(
        reason=choice.finish_reason or "abort",
        num_prompt_tokens=len(stream.request.prompt_token_ids),
        num_generation_tokens=choice.num_tokens,
        n=params.n,
        max_tokens=params.max_tokens if stream.request.pooling_params is None else None,
        times=stream.metrics,
    )
