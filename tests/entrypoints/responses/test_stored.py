"""What is kept of responses: chains, retrieval, replay, background, cancellation, bounds."""

import asyncio
import json
import time
from collections.abc import Iterator

import openai
import pytest
from fakes import Client, FakeEngine
from served import Served

from minivllm.config.sections.server import ServerConfig
from minivllm.entrypoints.batches.internal_call import caller
from minivllm.entrypoints.http.app import background_call
from minivllm.entrypoints.responses.store import ResponseStore, StoredResponse
from minivllm.errors import NotFoundError

SLOW = 0.05  # seconds a token


def sdk(served: Served) -> openai.OpenAI:
    return served.openai()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served(FakeEngine(delay=SLOW))
    yield server
    server.stop()


def ended(responses, response_id: str):
    deadline = time.monotonic() + 20
    while (response := responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return response


def test_a_chain_and_its_items():
    engine = FakeEngine(["Yes"])
    client = Client(engine)
    first = client.post("/v1/responses", {"model": "fake", "input": "One", "instructions": "Rule"}).json()
    second = client.post("/v1/responses", {"model": "fake", "input": "Two", "previous_response_id": first["id"]}).json()
    prompt = engine.requests[-1][0]["prompt"]
    assert prompt == "<|user|>One<|end|><|assistant|>Yes<|end|><|user|>Two<|end|><|assistant|>"  # without the instructions
    assert second["previous_response_id"] == first["id"] and client.get(f"/v1/responses/{second['id']}").json() == second
    path = f"/v1/responses/{second['id']}/input_items"
    newest = client.get(path).json()
    assert [item["content"][0]["text"] for item in newest["data"]] == ["Two", "Yes", "One"] and not newest["has_more"]
    page = client.get(path + f"?order=asc&limit=1&after={newest['last_id']}").json()
    assert page["data"][0] == first["output"][0] and page["has_more"] and page["first_id"] == page["last_id"]
    assert client.request("DELETE", f"/v1/responses/{first['id']}").json() == {
        "id": first["id"], "object": "response", "deleted": True,
    }  # fmt: skip
    assert client.get(f"/v1/responses/{first['id']}").json()["error"]["type"] == "NotFoundError"
    third = client.post("/v1/responses", {"model": "fake", "input": "Three", "previous_response_id": second["id"]})
    assert third.status_code == 200 and engine.requests[-1][0]["prompt"].count("<|end|>") == 5
    unstored = client.post("/v1/responses", {"model": "fake", "input": "One", "store": False}).json()
    assert not unstored["store"] and client.get(f"/v1/responses/{unstored['id']}").status_code == 404


def test_events_can_be_had_again():
    client = Client(FakeEngine())
    reply = client.post("/v1/responses", {"model": "fake", "input": "Hi", "stream": True})
    path = f"/v1/responses/{json.loads(reply.text.splitlines()[1][6:])['response']['id']}?stream=true"
    assert client.get(path).text == reply.text
    blocks = reply.text.split("\n\n")
    assert client.get(path + "&starting_after=3").text == "\n\n".join(blocks[4:])
    assert client.get(path.replace("stream=true", "starting_after=3")).json()["error"]["param"] == "starting_after"


def test_in_the_background(served):
    responses = sdk(served).responses
    begun = responses.create(model="fake", input="Hi", background=True)
    assert (begun.status, begun.background, begun.output) == ("queued", True, [])
    with pytest.raises(openai.BadRequestError, match="still running"):
        responses.create(model="fake", input="Hi", previous_response_id=begun.id)
    done = ended(responses, begun.id)
    assert done.status == "completed" and done.output_text.startswith("Hello wörld")
    assert responses.cancel(begun.id) == done  # too late
    kinds = [event.type for event in responses.retrieve(begun.id, stream=True)]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"] and kinds[-1] == "response.completed"
    too_long = ended(responses, responses.create(model="fake", input="long " * 200, background=True).id)
    assert (too_long.status, too_long.error.code) == ("failed", "invalid_prompt") and "100 tokens" in too_long.error.message


def test_a_background_stream_goes_on_without_its_reader(served):
    responses = sdk(served).responses
    seen = []
    with responses.create(model="fake", input="Hi", background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    response_id = seen[0].response.id
    rest = list(responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
    assert rest[-1].response.status == "completed" and not served.engine.aborted


def test_cancel_and_delete(served):
    responses = sdk(served).responses
    begun = responses.create(model="fake", input="Hi", background=True)
    while not responses.retrieve(begun.id).output_text:
        time.sleep(0.01)
    cancelled = responses.cancel(begun.id)
    assert (cancelled.status, cancelled.output[0].status) == ("cancelled", "incomplete")
    assert cancelled.output_text and responses.retrieve(begun.id) == cancelled
    assert any(begun.id in request_id for request_id in served.engine.aborted)
    other = responses.create(model="fake", input="Hi", background=True)
    responses.delete(other.id)
    assert any(other.id in request_id for request_id in served.engine.aborted) and not served.engine.running
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(other.id)
    foreground = responses.create(model="fake", input="Hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        responses.cancel(foreground.id)


def test_hanging_up_cancels(served):
    responses = sdk(served).responses
    with responses.create(model="fake", input="Hi", stream=True) as stream:
        response_id = next(iter(stream)).response.id
    assert ended(responses, response_id).status == "cancelled"


def test_stop_ends_what_runs_in_the_background():
    client = Client(FakeEngine(delay=5))

    async def run() -> str:
        _, body = await caller(client.app)("/v1/responses", b'{"input": "Hi", "background": true}')
        await client.app.state.openai_serving_responses.stop()
        return json.loads(body)["id"]

    stopped = client.get(f"/v1/responses/{asyncio.run(run())}").json()
    assert (stopped["status"], stopped["output"]) == ("cancelled", [])


def test_the_store_has_bounds():
    def stored(number: int, text: str = "") -> StoredResponse:
        item = {"id": f"msg_{number}", "type": "message", "content": [{"text": text}]}
        return StoredResponse({"id": f"resp_{number}", "background": False, "output": [item]}, [], [], [])

    store = ResponseStore(max_responses=3, max_bytes=2000)
    running = stored(0)
    store.put(running)
    for number in range(1, 5):
        store.put(each := stored(number))
        store.settle(each)
        if number == 3:
            store.get("resp_2")  # which is used last
    assert [store.find_item(f"msg_{number}") is not None for number in range(5)] == [False, False, True, False, True]
    assert store.get("resp_0") is running and len(store) == 3
    with pytest.raises(NotFoundError):
        store.get("resp_3")
    store.put(large := stored(5, "x" * 1800))
    store.settle(large)
    assert len(store) == 2 and store.get("resp_5") is large  # what runs has no size yet
    store.settle(running)
    store.remove("resp_5")
    assert len(store) == 0 and not store._owners and store._num_bytes == 0


def test_in_a_batch():
    engine = FakeEngine(["Yes"])
    client = Client(engine)
    first = client.post("/v1/responses", {"model": "fake", "input": "One"}).json()
    call = background_call(engine, ServerConfig(), client.app.state.openai_serving_responses.store)
    body = {"model": "fake", "input": "Two", "previous_response_id": first["id"]}
    status, reply = asyncio.run(call("/v1/responses", json.dumps(body).encode()))
    answer = json.loads(reply)
    assert status == 200 and answer["output"][0]["content"][0]["text"] == "Yes"
    assert client.get(f"/v1/responses/{answer['id']}").json() == answer
