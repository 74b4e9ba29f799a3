"""The demo model on two ranks, one of which has one key/value head more: tokens of one process, offline and over HTTP."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from e2e.test_equality import generate_and_check
from real_server import Server

from minivllm import LLM

SOME = [4, 27, 31]


def test_float32_tokens_in_chunks_and_from_the_prefix_cache(smollm2: Path) -> None:
    options = {"dtype": "float32", "max_model_len": 2048, "max_num_batched_tokens": 128, "tensor_parallel_size": 2}
    with LLM(str(smollm2), **options) as llm:
        generate_and_check(llm, SOME)
        assert sum(output.num_cached_tokens for output in generate_and_check(llm, SOME)) > 0


def test_served_in_bfloat16(smollm2: Path, launch: Callable[..., AbstractContextManager[Server]]) -> None:
    with launch(smollm2, "--tensor-parallel-size", "2", "--served-model-name", "two") as server:
        client = server.openai()
        question = {"role": "user", "content": "What is the capital of France?"}
        answer = client.chat.completions.create(model="two", messages=[question], temperature=0, max_tokens=20)
        assert "Paris" in answer.choices[0].message.content
        assert server.stop() == 0
