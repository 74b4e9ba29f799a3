"""`LLMEngine` over a scripted core."""

import pytest
from scripted_core import make_engine_config

from minivllm.engine.client import InprocClient
from minivllm.errors import ClientError
from minivllm.messages.output import EngineReady
from minivllm.messages.sampling_params import OutputKind, SamplingParams


@pytest.fixture
def engine(tokenizer, core):
    sync_engine = pytest.importorskip("minivllm.engine.sync_engine")
    return sync_engine.LLMEngine(make_engine_config(tokenizer), InprocClient(core, EngineReady(10, 4, 40, 1)), tokenizer)


def test_steps(engine, core):
    engine.add_request("a", "The", SamplingParams(max_tokens=3))
    engine.add_request("b", "The", SamplingParams(max_tokens=2, output_kind=OutputKind.FINAL_ONLY))
    seen = []
    while engine.has_unfinished():
        seen.append([(o.request_id, len(o.outputs[0].token_ids), o.finished) for o in engine.step()])
    assert seen == [[("a", 1, False)], [("a", 2, False), ("b", 2, True)], [("a", 3, True)]]
    assert engine.step() == []


def test_what_the_core_can_hold_is_the_limit(engine):
    assert engine.max_model_len == 40
    with pytest.raises(ClientError, match="maximum context length is 40 tokens"):
        engine.add_request("a", [65] * 41, SamplingParams())


def test_several_choices_come_once_a_step(engine):
    engine.add_request("a", "The", SamplingParams(max_tokens=2, n=3, temperature=1.0))
    outputs = engine.step()
    assert len(outputs) == 1 and len(outputs[0].outputs) == 3


def test_abort_stop_and_failure(engine, core):
    engine.add_request("a", "The", SamplingParams(max_tokens=30))
    engine.step()
    engine.abort_request("a")
    assert not engine.has_unfinished() and not core.running
    engine.add_request("b", "x", SamplingParams(max_tokens=30, stop=["two"]))
    core.failing.add("c")
    engine.add_request("c", "x", SamplingParams(max_tokens=30))
    last = {}
    while engine.has_unfinished():
        last |= {output.request_id: output.outputs[0] for output in engine.step()}
    assert (last["b"].text, last["b"].stop_reason) == (" one ", "two")
    assert last["c"].finish_reason == "error"
    assert not core.running
    engine.shutdown()
    assert core.down
