"""Pooling requests in the engine: what is refused, what is cut, what the core is told, and how they end."""

from dataclasses import replace
from typing import Any

import pytest
from scripted_core import make_engine_config

from minivllm.config.sections.pooling import PoolingConfig
from minivllm.engine.input_processor import InputProcessor
from minivllm.errors import ClientError
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.request import EngineRequest
from minivllm.messages.sampling_params import SamplingParams

EMBED = PoolingConfig(task="embed", types=("mean",), width=48)
CLASSIFY = PoolingConfig(task="classify", types=("cls",), width=2, labels=("a", "b"))
MATRYOSHKA = replace(EMBED, is_matryoshka=True)
SOME_WIDTHS = replace(MATRYOSHKA, matryoshka_dimensions=(8, 16))


@pytest.fixture
def process(tokenizer):
    def run(pooling: PoolingConfig | None, prompt: Any, **params: Any) -> EngineRequest:
        inputs = InputProcessor(replace(make_engine_config(tokenizer), pooling=pooling), tokenizer, 20)
        given = PoolingParams(**params)
        return inputs.process_pooling("id", inputs.tokenize_for_pooling(prompt, given), given)

    return run


@pytest.mark.parametrize(
    ("pooling", "params", "message", "param"),
    [
        (None, {}, "The model does not support pooling", "model"),
        (EMBED, {"task": "classify"}, "Unsupported task: 'classify' Supported tasks: ('embed', 'token_embed')", "task"),
        (CLASSIFY, {"task": "embed"}, "Unsupported task: 'embed' Supported tasks: ('classify',)", "task"),
        (CLASSIFY, {"dimensions": 2}, "Task classify only supports ['use_activation'] parameters", "dimensions"),
        (EMBED, {"dimensions": 2}, 'Model "fake" does not support matryoshka representation', "dimensions"),
        (MATRYOSHKA, {"dimensions": 49}, "dimensions must be at most 48, got 49.", "dimensions"),
        (
            replace(MATRYOSHKA, matryoshka_dimensions=(8, 16)),
            {"dimensions": 9},
            "only supports [8, 16] matryoshka",
            "dimensions",
        ),
        (EMBED, {"truncate_prompt_tokens": 21}, "truncate_prompt_tokens value (21) is greater than", "truncate_prompt_tokens"),
    ],
)
def test_what_is_refused(pooling, params, message, param, process) -> None:
    with pytest.raises(ClientError) as error:
        process(pooling, "one", **params)
    assert message in error.value.message and error.value.param == param


@pytest.mark.parametrize("prompt", ["", [], [400_000], [-1], ["x"], [65] * 21, {"prompt": 5}, {}, 7])
def test_prompts_that_are_refused(prompt, process) -> None:
    with pytest.raises(ClientError):
        process(EMBED, prompt)


def test_a_text_that_is_too_long(process) -> None:
    with pytest.raises(ClientError, match=r"length is 20 tokens.*you requested 21 tokens in the input for embedding"):
        process(EMBED, [65] * 21)
    assert process(EMBED, [65] * 21, truncate_prompt_tokens=-1).prompt_token_ids == [65] * 20


def test_ids_are_cut_at_the_side_asked_for(process) -> None:
    assert process(EMBED, [1, 2, 3], truncate_prompt_tokens=2).prompt_token_ids == [1, 2]
    assert process(EMBED, [1, 2, 3], truncate_prompt_tokens=2, truncation_side="left").prompt_token_ids == [2, 3]


def test_what_the_core_is_told(process, tokenizer) -> None:
    request = process(EMBED, {"prompt": "One", "cache_salt": "s"}, use_activation=False)
    assert request.prompt_token_ids == tokenizer.encode("One") and request.cache_salt == "s"
    assert request.sampling_params.max_tokens == 0
    params = request.pooling_params
    assert (params.task, params.use_activation, params.skip_reading_prefix_cache) == ("embed", False, True)
    last = replace(EMBED, types=("last",))
    assert not process(last, "One").pooling_params.skip_reading_prefix_cache
    assert process(last, "One", task="token_embed").pooling_params.skip_reading_prefix_cache
    assert process(replace(EMBED, lower_case=True), "ONE").prompt_token_ids == tokenizer.encode("one")
    assert process(SOME_WIDTHS, "One", dimensions=8).pooling_params.dimensions == 8


def test_a_pooling_model_does_not_generate(tokenizer) -> None:
    inputs = InputProcessor(replace(make_engine_config(tokenizer), pooling=EMBED), tokenizer, 20)
    with pytest.raises(ClientError, match="does not support text generation"):
        inputs.process("id", inputs.tokenize("One"), SamplingParams())
