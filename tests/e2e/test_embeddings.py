"""The real all-MiniLM-L6-v2, through the server and through `LLM`, against transformers in fp32."""

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import torch.nn.functional as F
import transformers

from minivllm import LLM, PoolingParams

TEXTS = ["A cat sat on the mat.", "A kitten rested on the rug.", "Stock prices fell sharply today.", "word " * 200, "x", ""]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def expected(minilm: Path) -> list[list[float]]:
    """Mean over all tokens, normalised, as the model's card says."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm, dtype=torch.float32).eval()
    with torch.inference_mode():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    return [F.normalize(each.mean(0), dim=-1).tolist() for each in states]


@pytest.fixture(scope="module")
def embedder(launch: Callable[..., contextlib.AbstractContextManager[Any]], minilm: Path) -> Iterator[Any]:
    with launch(minilm, "--served-model-name", "minilm", "--dtype", "float32") as running:
        yield running


def test_the_openai_package(embedder, expected) -> None:
    client = embedder.openai()
    together = client.embeddings.create(model="minilm", input=TEXTS)  # in base64, as this package asks for
    for index, (each, truth) in enumerate(zip(together.data, expected, strict=True)):
        assert each.index == index and each.embedding == pytest.approx(truth, abs=TOLERANCE)
        alone = client.embeddings.create(model="minilm", input=TEXTS[index], encoding_format="float")
        assert alone.data[0].embedding == pytest.approx(truth, abs=TOLERANCE)
    assert together.usage.prompt_tokens == together.usage.total_tokens == 233
    with pytest.raises(openai.BadRequestError, match="does not support matryoshka"):
        client.embeddings.create(model="minilm", input="x", dimensions=64)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens"):
        client.embeddings.create(model="minilm", input="word " * 300)
    cut = client.embeddings.create(model="minilm", input="word " * 300, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == 256
    with pytest.raises(openai.BadRequestError, match="does not support Chat Completions API"):
        client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "x"}])


def test_a_client_that_hangs_up_is_forgotten(embedder) -> None:
    body = json.dumps({"input": ["word " * 250] * 2000}).encode()
    request = urllib.request.Request(embedder.url + "/v1/embeddings", body, {"Content-Type": "application/json"})
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(request, timeout=0.5)
    before = embedder.metric("minivllm:request_success_total")
    client = embedder.openai(timeout=20)
    client.embeddings.create(model="minilm", input="x")
    assert embedder.metric("minivllm:num_requests_running") == embedder.metric("minivllm:num_requests_waiting") == 0
    assert embedder.metric("minivllm:request_success_total") <= before + 2001


def test_offline(minilm: Path, expected) -> None:
    with LLM(str(minilm), dtype="float32", cpu_threads=1) as llm:
        for output, truth in zip(llm.embed(TEXTS, use_tqdm=False), expected, strict=True):
            assert output.outputs.embedding == pytest.approx(truth, abs=TOLERANCE)
        scores = llm.score(TEXTS[0], TEXTS[1:3], use_tqdm=False)
        assert [each.outputs.score for each in scores] == pytest.approx([0.6193, 0.0666], abs=1e-4)
        raw = llm.embed(TEXTS[0], PoolingParams(use_activation=False), use_tqdm=False)[0].outputs.embedding
        assert F.normalize(torch.tensor(raw), dim=0).tolist() == pytest.approx(expected[0], abs=TOLERANCE)
        assert sum(x * x for x in raw) > 2
        (tokens,) = llm.encode(TEXTS[0], pooling_task="token_embed", use_tqdm=False)
        assert tokens.outputs.data.shape == [9, 384]
        with pytest.raises(ValueError, match="Unsupported task: 'classify'"):
            llm.classify("x", use_tqdm=False)
        with pytest.raises(ValueError, match="does not support text generation"):
            llm.generate("x", use_tqdm=False)


def test_fewer_dimensions_are_normalised_again(minilm: Path, expected) -> None:
    with LLM(str(minilm), dtype="float32", cpu_threads=1, hf_overrides={"is_matryoshka": True}) as llm:
        found = llm.embed(TEXTS[0], PoolingParams(dimensions=64), use_tqdm=False)[0].outputs.embedding
    assert found == pytest.approx(F.normalize(torch.tensor(expected[0][:64]), dim=0).tolist(), abs=TOLERANCE)
