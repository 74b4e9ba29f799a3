"""Grammars compiled in threads behind a process: what comes out, and what costly ones do not do."""

import time

import pytest
from fake_worker import make_request

from minivllm.core.grammar import manager as manager_module
from minivllm.core.grammar.manager import GrammarManager
from minivllm.core.grammar.waiting_room import WaitingRoom
from minivllm.messages.output import FinishReason
from minivllm.messages.structured_outputs import StructuredOutputsParams as Form

EXPONENTIAL = {"allOf": [{"type": "string", "pattern": f".*x{i}.*"} for i in range(30)]}
CHAIN = "start: x0\n" + "\n".join(f"x{i}: x{i + 1}" for i in range(9000)) + '\nx9000: "a"'  # overflows the library's stack


@pytest.fixture(scope="module")
def manager(forms):
    made = GrammarManager()
    tokenizer = forms.tokenizer
    made.set_tokenizer(tokenizer.to_json(), [tokenizer.eos_token_id], forms.compiler.special_ids, tokenizer.size)
    yield made
    made.shutdown()


def take(room, seconds=30):
    ready, failed = [], []
    deadline = time.monotonic() + seconds
    while len(room) and time.monotonic() < deadline:
        room.wait()
        more_ready, more_failed = room.take()
        ready += more_ready
        failed += more_failed
    return ready, failed


def test_costly_grammars_end_alone(forms, manager):
    """One takes exponential time, one overflows the stack; what comes after them is compiled all the same."""
    room = WaitingRoom(manager)
    for name, form in {
        "slow": Form(json=EXPONENTIAL),
        "deep": Form(grammar=CHAIN),
        "good": Form(choice=["one", "two"]),
    }.items():
        room.add(make_request(name, [1], structured_outputs=form), form)
    ready, failed = take(room)
    assert {output.request_id: output.error_param for output in failed} == {
        "slow": "structured_outputs.json",
        "deep": "structured_outputs.grammar",
    }
    assert all("too much time or memory" in output.error and output.finish_reason is FinishReason.ERROR for output in failed)
    [(request, grammar)] = ready
    assert request.request_id == "good" and request.sampling_params.structured_outputs is None
    assert forms.takes(grammar, "two")


def test_the_error_names_the_users_field(manager):
    room = WaitingRoom(manager)
    form = Form(json={"uniqueItems": True}, origin="response_format")
    room.add(make_request("a", [1], structured_outputs=form), form)
    [output] = take(room)[1]
    assert output.error == 'response_format: this JSON schema cannot be used: Unimplemented keys: ["uniqueItems"]'
    assert output.error_param == "response_format"


def test_an_aborted_request_leaves_the_room(manager):
    room = WaitingRoom(manager)
    form = Form(regex="a+b")
    room.add(make_request("a", [1], structured_outputs=form), form)
    assert [(state.request_id, state.running, state.waits_for) for state in room.states()] == [("a", False, "grammar")]
    assert room.abort("a") and not room.abort("a") and len(room) == 0


def test_each_grammar_is_compiled_once_and_the_latest_stay(manager, monkeypatch):
    monkeypatch.setattr(manager_module, "MAX_CACHED", 2)
    first = manager.compile(Form(regex="a1"))
    assert manager.compile(Form(regex="a1", reasoning_end=[3], origin="x")) is first
    manager.compile(Form(regex="a2"))
    assert manager.compile(Form(regex="a1")) is first  # used again, so a2 goes before it
    manager.compile(Form(regex="a3"))
    assert manager.compile(Form(regex="a1")) is first
    monkeypatch.setattr(manager_module, "MAX_CACHED_BYTES", 100)
    manager.compile(Form(regex="a" * 90))
    assert manager.compile(Form(regex="a1")) is not first


def test_texts_have_states_of_their_own(forms, manager):
    grammar = manager.compile(Form(choice=["one", "two"])).result()
    one, two = grammar.copy(), grammar.copy()
    assert forms.follow(one, forms.tokenizer.encode("one")) and one.ended
    assert forms.follow(two, forms.tokenizer.encode("two")) and two.ended
    assert not grammar.ended
