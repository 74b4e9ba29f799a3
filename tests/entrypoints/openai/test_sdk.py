"""The real `openai` SDK and real connections against the whole server in uvicorn, on a fake engine."""

import json
import threading
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from fakes import FakeEngine
from served import Served

TEXT = 'Hello wörld 🐢! "quoted"\n'
HI = [{"role": "user", "content": "Hi"}]


def wait_until(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served(FakeEngine())
    yield server
    server.stop()


@pytest.fixture
def slow() -> Iterator[Served]:
    server = Served(FakeEngine(script=[" x"] * 10_000, delay=0.02, max_model_len=20_000))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def sdk(served) -> Iterator[openai.OpenAI]:
    with served.openai() as client:
        yield client


def test_chat(sdk):
    reply = sdk.chat.completions.create(model="fake", messages=HI, logprobs=True, top_logprobs=1)
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].logprobs.content[0].top_logprobs[0].token == "<901>"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.prompt_tokens_details.cached_tokens) == (
        4,
        6,
        0,
    )


def test_chat_stream(sdk):
    stream = sdk.chat.completions.create(model="fake", messages=HI, stream=True, stream_options={"include_usage": True}, n=2)
    chunks = list(stream)
    for index in range(2):
        deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(deltas) == TEXT
    assert chunks[-1].usage.completion_tokens == 12


def test_chat_stream_helper(sdk):
    with sdk.chat.completions.stream(model="fake", messages=HI) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == TEXT


def test_completions(sdk):
    reply = sdk.completions.create(model="fake", prompt=["a", "b"], echo=True, logprobs=1, max_tokens=1)
    assert [choice.text for choice in reply.choices] == ["aHello", "bHello"]
    assert reply.choices[0].logprobs.text_offset == [0, 1]
    chunks = sdk.completions.create(model="fake", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT


def test_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["fake"]
    assert sdk.models.retrieve("fake").owned_by == "minivllm"


def test_errors_are_the_sdk_s_own(sdk):
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="zz", messages=HI)
    error = missing.value
    assert (error.param, str(error.code), error.type) == ("model", "404", "NotFoundError")  # version 3 has the code as a number
    with pytest.raises(openai.BadRequestError) as wrong:
        sdk.chat.completions.create(model="fake", messages=HI, temperature=-1)
    assert wrong.value.param == "temperature"


def test_error_in_a_stream_is_raised_by_the_sdk(sdk, served):
    served.engine.fail_after = 2
    try:
        with pytest.raises(openai.APIError, match="The server failed"):
            list(sdk.chat.completions.create(model="fake", messages=HI, stream=True))
    finally:
        served.engine.fail_after = None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_hang_up_aborts(slow, path, stream):
    body = {"messages": HI, "prompt": ["a", "b"], "stream": stream, "max_tokens": 10_000}
    expected = 2 if path == "/v1/completions" else 1
    with httpx.Client() as client:
        request = client.build_request("POST", slow.url + path, json=body)
        if stream:
            response = client.send(request, stream=True)
            assert next(response.iter_lines()).startswith("data: {")
            response.close()
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(slow.url + path, json=body, timeout=0.3)
    wait_until(lambda: len(slow.engine.aborted) == expected)
    assert slow.engine.running == []


def test_hang_up_of_a_quarter_of_many_streams(slow):
    slow.engine.script = [" x"] * 30

    def one(number: int) -> None:
        with httpx.Client() as client:
            request = client.build_request("POST", f"{slow.url}/v1/chat/completions", json={"messages": HI, "stream": True})
            response = client.send(request, stream=True)
            lines = response.iter_lines()
            if number % 4 == 0:
                next(lines)
                response.close()
            else:
                events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
                texts.append("".join(event["choices"][0]["delta"].get("content", "") for event in events))

    texts: list[str] = []
    threads = [threading.Thread(target=one, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: not slow.engine.running)
    assert texts == [" x" * 30] * 24 and len(slow.engine.aborted) == 8
    wait_until(lambda: not slow.server.server_state.tasks)
