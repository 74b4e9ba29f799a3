"""`WaitingRoom`: requests whose grammar is being compiled. Held by `EngineCore`; who comes out goes to the scheduler."""

import concurrent.futures
from concurrent.futures import Future

import msgspec

from minivllm.core.grammar.grammar import Grammar
from minivllm.core.grammar.manager import GrammarManager
from minivllm.core.grammar.reasoning_gate import ReasoningGate
from minivllm.messages.output import FinishReason, TokenOutput
from minivllm.messages.request import EngineRequest
from minivllm.messages.stats import RequestState
from minivllm.messages.structured_outputs import StructuredOutputsParams

_PATIENCE = 0.002  # seconds


class WaitingRoom:
    def __init__(self, manager: GrammarManager):
        self._manager = manager
        self._waiting: dict[str, tuple[EngineRequest, StructuredOutputsParams, Future[Grammar]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: EngineRequest, params: StructuredOutputsParams) -> None:
        self._waiting[request.request_id] = request, params, self._manager.compile(params)

    def abort(self, request_id: str) -> bool:
        """False if it is not here."""
        return self._waiting.pop(request_id, None) is not None

    def states(self) -> list[RequestState]:
        requests = [request for request, _, _ in self._waiting.values()]
        return [
            RequestState(request.request_id, False, "grammar", len(request.prompt_token_ids), 0, 0, 0, 0.0)
            for request in requests
        ]

    def wait(self) -> None:
        """For a moment, or until a grammar is compiled: there is nothing else to do."""
        futures = [future for _, _, future in self._waiting.values()]
        concurrent.futures.wait(futures, _PATIENCE, concurrent.futures.FIRST_COMPLETED)

    def take(self) -> tuple[list[tuple[EngineRequest, Grammar]], list[TokenOutput]]:
        """Those that can run, and the outputs that end those whose grammar cannot be compiled."""
        ready: list[tuple[EngineRequest, Grammar]] = []
        failed: list[TokenOutput] = []
        for request, params, future in [entry for entry in self._waiting.values() if entry[2].done()]:
            del self._waiting[request.request_id]
            error = future.exception()
            if error is None:
                # The grammar says it all from here: the worker need not have its text.
                request.sampling_params = msgspec.structs.replace(request.sampling_params, structured_outputs=None)
                ready.append((request, self._begin(params, future.result())))
            else:
                failed.append(_failure(request, params, error))
        return ready, failed

    def _begin(self, params: StructuredOutputsParams, grammar: Grammar) -> Grammar:
        copy = grammar.copy()
        if not params.reasoning_end:
            return copy
        return ReasoningGate(copy, params.reasoning_start or [], params.reasoning_end, self._manager.mask_without_end)


def _failure(request: EngineRequest, params: StructuredOutputsParams, error: BaseException) -> TokenOutput:
    output = TokenOutput(request.request_id, [], finish_reason=FinishReason.ERROR)
    if isinstance(error, ValueError):
        output.error, output.error_param = describe(params, error), params.blamed_field
    else:
        output.error = f"The grammar could not be compiled: {type(error).__name__}."
    return output


def describe(params: StructuredOutputsParams, error: BaseException) -> str:
    what = "JSON schema" if params.kind == "json" else params.kind.replace("_", " ")
    return f"{params.blamed_field}: this {what} cannot be used: {error}"
