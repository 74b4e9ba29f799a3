"""One workload that shows what several workers may get wrong: chunks, shared prefixes, preemption, sampling, logprobs."""

from pathlib import Path
from typing import Any

from minivllm import LLM, SamplingParams

SHARED = [7, 31, 5, 90, 44, 8, 61, 17, 2, 33]
PROMPTS = [[*SHARED, *range(10 + i, 20 + 2 * i)] for i in range(7)]


def outputs_of(model: Path, **options: Any) -> list[tuple[list[int], list[float]]]:
    """Tokens and their logprobs of each request; blocks are too few for all of them."""
    limits = {"max_num_seqs": 6, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 26, "block_size": 4}
    with LLM(str(model), dtype="float32", cpu_threads=1, seed=5, max_model_len=100, **limits, **options) as llm:
        params = [
            SamplingParams(
                max_tokens=12 + 3 * i, ignore_eos=True, temperature=i % 2 * 0.8, seed=i, logprobs=0, presence_penalty=i % 3
            )
            for i in range(len(PROMPTS))
        ]
        results = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
        again = llm.generate({"prompt_token_ids": PROMPTS[0]}, params[0], use_tqdm=False)
        figures = {metric.name: metric for metric in llm.get_metrics()}
    assert again[0].num_cached_tokens > 0
    assert figures["minivllm:num_preemptions"].value > 0
    choices = [result.outputs[0] for result in [*results, *again]]
    return [(c.token_ids, [entry[t].logprob for t, entry in zip(c.token_ids, c.logprobs, strict=True)]) for c in choices]


def assert_same(found: list[tuple[list[int], list[float]]], expected: list[tuple[list[int], list[float]]]) -> None:
    for (tokens, logprobs), (right_tokens, right_logprobs) in zip(found, expected, strict=True):
        assert tokens == right_tokens
        assert all(abs(a - b) < 1e-4 for a, b in zip(logprobs, right_logprobs, strict=True))
