"""Structured output on the real model: answers keep to their form whatever else the request asks for."""

import json
import re
import threading
import time

import httpx
import pytest
from check_schemas import check
from json_schemas import SCHEMAS

from minivllm import LLM, SamplingParams, StructuredOutputsParams
from minivllm.errors import ClientError

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EXPONENTIAL = {"allOf": [{"type": "string", "pattern": f".*x{i}.*"} for i in range(30)]}


@pytest.fixture(scope="module")
def llm(smollm2):
    with LLM(str(smollm2), max_model_len=512) as made:
        yield made


def form(**kind):
    return StructuredOutputsParams(**kind)


def answers(llm, prompt, *params):
    return [choice for output in llm.generate([prompt] * len(params), params, use_tqdm=False) for choice in output.outputs]


def test_two_hundred_schemas_are_there():
    assert len(SCHEMAS) == 200


def test_answers_validate(llm):
    """All of it, three times, is `check_schemas.py`."""
    counts = check(llm, dict(list(SCHEMAS.items())[::8]), seeds=1, temperature=1.5, max_tokens=80)
    assert counts["faults"] == 0 and counts["stop"] >= 18


def test_with_everything_else_that_chooses_tokens(llm):
    kinds = [
        {"json": PERSON},
        {"regex": "[a-f]{4}-[0-9]{2}"},
        {"choice": ["left", "right", "right here"]},
        {"grammar": 'root ::= "x"+ "y"'},
    ]
    ways = [
        {"temperature": 0},
        {"seed": 1, "n": 3},
        {"seed": 2, "top_p": 0.5, "logprobs": 2},
        {"repetition_penalty": 1.5, "min_tokens": 3},
    ]
    params = [SamplingParams(max_tokens=60, structured_outputs=form(**kind), **way) for kind in kinds for way in ways]
    params += [SamplingParams(temperature=0, max_tokens=20)]  # a free neighbour
    outputs = llm.generate(["An answer: "] * len(params), params, use_tqdm=False)
    patterns = {"regex": "[a-f]{4}-[0-9]{2}", "choice": "left|right|right here", "grammar": "x+y"}
    for output, given in zip(outputs, params, strict=True):
        for choice in output.outputs:
            if given.structured_outputs is None:
                assert choice.text == answers(llm, "An answer: ", given)[0].text
            elif given.structured_outputs.kind == "json":
                assert choice.finish_reason == "stop" and list(json.loads(choice.text)) == ["name", "age"]
            else:
                # x+ may go on to the end of max_tokens.
                assert choice.finish_reason == "stop" or re.fullmatch("x+", choice.text)
                assert choice.finish_reason == "length" or re.fullmatch(patterns[given.structured_outputs.kind], choice.text)
            if given.logprobs is not None:
                assert len(choice.logprobs) == len(choice.token_ids)
    again = llm.generate(["An answer: "] * len(params), params, use_tqdm=False)
    seeded = [index for index, each in enumerate(params) if each.seed is not None]
    texts = [[[choice.text for choice in outs[index].outputs] for index in seeded] for outs in (outputs, again)]
    assert texts[0] == texts[1]


def test_a_preempted_request_goes_on_where_it_was(smollm2):
    """With room for little, requests are set back and computed again; their answers are those they have with room."""
    params = [
        SamplingParams(seed=i, max_tokens=40, structured_outputs=form(json={"type": "array", "items": PERSON}))
        for i in range(4)
    ]
    prompt = "Some people as JSON, with their names and ages, one after the other: "
    options = {"max_model_len": 160, "dtype": "float32", "enable_prefix_caching": True}
    with LLM(str(smollm2), num_gpu_blocks_override=11, **options) as llm:
        crowded = [choice.text for choice in answers(llm, prompt, *params)]
        preempted = sum(m.value for m in llm.get_metrics() if m.name == "minivllm:num_preemptions")
    with LLM(str(smollm2), **options) as llm:
        assert crowded == [choice.text for choice in answers(llm, prompt, *params)]
    assert preempted > 0
    assert all(re.match(r"\[(\s*$|\s*\]|\s*\{)", text) for text in crowded)


def test_the_form_begins_after_the_thoughts(llm):
    tokenizer = llm.get_tokenizer()
    end = tokenizer.encode("<|im_start|>")
    bound = form(choice=["yes", "no"], reasoning_end=end)
    think = SamplingParams(temperature=0, max_tokens=8, structured_outputs=bound)
    free = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, min_tokens=8)
    prompt = "The capital of France is"
    assert answers(llm, prompt, think)[0].text == answers(llm, prompt, free)[0].text
    hurried = SamplingParams(temperature=0, max_tokens=8, logit_bias={end[0]: 100}, structured_outputs=bound)
    [choice] = answers(llm, prompt, hurried)
    assert choice.token_ids[0] == end[0] and choice.text in ("yes", "no") and choice.finish_reason == "stop"


def test_offline_refusals_come_before_anything_runs(llm):
    with pytest.raises(ClientError, match="unclosed group") as caught:
        llm.generate(["a", "b"], [SamplingParams(), SamplingParams(structured_outputs=form(regex="(a"))], use_tqdm=False)
    assert caught.value.param == "structured_outputs.regex"


def test_hostile_forms_are_refused_while_others_stream(server):
    """Within about a second each, and the stream never stands still for long. (The bounds are wide: machines are busy.)"""
    chat = f"{server.url}/v1/chat/completions"
    message = {"model": "smollm2", "messages": [{"role": "user", "content": "Tell me a story."}]}
    gaps, streaming, enough = [], threading.Event(), threading.Event()

    def stream():
        last = None
        with httpx.stream(
            "POST", chat, json=message | {"stream": True, "max_tokens": 4000, "ignore_eos": True}, timeout=60
        ) as reply:
            for line in reply.iter_lines():
                if line.startswith("data"):
                    now = time.monotonic()
                    gaps.append(0 if last is None else now - last)
                    last = now
                    streaming.set()
                if enough.is_set():
                    return

    reader = threading.Thread(target=stream)
    reader.start()
    assert streaming.wait(30)
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": EXPONENTIAL}}
    for fields, param in (({"response_format": schema}, "response_format"), ({"guided_regex": "(a"}, "guided_regex")):
        for stream_too in (False, True):
            reply = httpx.post(chat, json=message | fields | {"stream": stream_too}, timeout=30)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    good = httpx.post(chat, json=message | {"guided_choice": ["yes", "no"]}, timeout=30).json()["choices"][0]
    assert good["message"]["content"] in ("yes", "no") and good["finish_reason"] == "stop"
    enough.set()
    reader.join(30)
    assert max(gaps) < 1
