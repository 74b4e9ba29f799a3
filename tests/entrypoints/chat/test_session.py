"""`ChatSession` and the fold of its events."""

import asyncio

import pytest
from fakes import FakeEngine

from minivllm.entrypoints.chat.collect import ChatAnswer, fold
from minivllm.entrypoints.chat.session import ChatSession
from minivllm.errors import ServerError
from minivllm.messages.output import CompletionOutput, RequestOutput
from minivllm.messages.sampling_params import OutputKind, SamplingParams
from minivllm.text.parsers.events import Finish, TextDelta

PROMPT = {"prompt_token_ids": [1, 2, 3]}


def session(engine: FakeEngine, **params) -> ChatSession:
    params.setdefault("output_kind", OutputKind.DELTA)
    return ChatSession(engine, PROMPT, SamplingParams(max_tokens=None, **params), "id")  # type: ignore[arg-type]


def test_events_of_each_choice_end_with_finish():
    async def main() -> None:
        chat = session(FakeEngine(script=["a", "b"]), n=2)
        events = [event async for event in chat.events()]
        assert [type(event) for event in events if event.index == 1] == [TextDelta, TextDelta, Finish]
        assert events[-1] == Finish(1, "stop", None)
        assert (chat.num_completion_tokens, chat.prompt_token_ids) == (4, [1, 2, 3])

    asyncio.run(main())


@pytest.mark.parametrize("logprobs", [None, 1])
def test_every_output_kind_folds_to_the_same_answers(logprobs):
    async def answers(kind: OutputKind) -> list[ChatAnswer]:
        return await fold(session(FakeEngine(), n=3, logprobs=logprobs, output_kind=kind).events())

    delta, final = (asyncio.run(answers(kind)) for kind in (OutputKind.DELTA, OutputKind.FINAL_ONLY))
    assert delta == final
    assert [(answer.index, answer.text, answer.finish_reason) for answer in delta] == [
        (index, 'Hello wörld 🐢! "quoted"\n', "stop") for index in range(3)
    ]


def test_closing_the_events_aborts_the_request():
    async def main() -> None:
        engine = FakeEngine()
        events = session(engine).events()
        await anext(events)
        assert engine.running == ["id"]
        await events.aclose()
        assert engine.running == [] and engine.aborted == ["id"]

    asyncio.run(main())


def test_failed_choice_is_an_error():
    class Failing(FakeEngine):
        async def generate(self, prompt, sampling_params, request_id, **options):
            yield RequestOutput("id", None, [1], None, [CompletionOutput(0, finish_reason="error")], True)

    with pytest.raises(ServerError):
        asyncio.run(fold(session(Failing()).events()))
