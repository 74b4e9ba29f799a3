"""What README lists and no other end-to-end test shows: each by `LLM` or a server with a tiny model, or the demo model's."""

import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
import torch
import transformers
import trustme
from model.conftest import Checkpoint, save
from model.quantization.test_checkpoints import tiny, write
from model.quantization.test_int8 import PROMPT
from model.quantization.writers import GPTQ
from real_server import Server, wait_until
from tokenizers import models, pre_tokenizers, processors

from minivllm import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
Launch = Callable[..., AbstractContextManager[Server]]


def write_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Its words are t0 to t159; a text begins with t1 and ends with t2, as does the second of a pair, which is of type 1."""
    backend = tokenizers.Tokenizer(models.WordLevel({f"t{i}": i for i in range(160)}, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [("t1", 1), ("t2", 2)]
    backend.post_processor = processors.TemplateProcessing("t1 $A t2", "t1 $A t2 $B:1 t2:1", marks)
    backend.save(str(folder / "tokenizer.json"))
    return backend


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    checkpoint = write(tmp_path_factory.mktemp("gptq") / "model", GPTQ(), tiny(max_position_embeddings=4096))
    write_tokenizer(checkpoint.folder)
    return checkpoint


@pytest.fixture(scope="module")
def continued(quantized: Checkpoint) -> list[int]:
    """What `LLM` has after the prompt, in bfloat16; the prompt's logprobs are near those of the weights that were written."""
    with LLM(str(quantized.folder), cpu_threads=1, max_model_len=64) as llm:
        params = [SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0), GREEDY]
        scored, greedy = llm.generate([{"prompt_token_ids": PROMPT}] * 2, params, use_tqdm=False)
    found = [entry[token].logprob for token, entry in zip(PROMPT[1:], scored.prompt_logprobs[1:], strict=True)]
    expected = quantized.logprobs(PROMPT)[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert (torch.tensor(found) - expected).abs().mean() < 0.05
    return list(greedy.outputs[0].token_ids)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_quantized_checkpoint_over_https_by_priority(
    launch: Launch, quantized: Checkpoint, continued: list[int], tmp_path: Path
) -> None:
    authority, pem, trusted = trustme.CA(), str(tmp_path / "server.pem"), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    authority.configure_trust(trusted)
    flags = ["--cpu-threads", "1", "--num-gpu-blocks-override", "512", "--ssl-certfile", pem, "--ssl-keyfile", pem]
    flags += ["--scheduling-policy", "priority", "--max-num-seqs", "1"]
    with launch(quantized.folder, *flags, ready=False) as server:
        client = httpx.Client(base_url=server.url.replace("http:", "https:"), verify=trusted, timeout=60)
        wait_until(lambda: answers(client), 90, "a ready server")
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
        assert client.post("/v1/completions", json=body).json()["choices"][0]["token_ids"] == continued
        done: list[int] = []

        def ask(priority: int) -> None:
            client.post("/v1/completions", json=body | {"priority": priority, "max_tokens": 100}).raise_for_status()
            done.append(priority)

        def arrived(count: int) -> bool:
            return len(client.get("/v1/requests").json()["data"]) + len(done) >= count

        endless = body | {"stream": True, "max_tokens": 4000, "n": 20}  # one after the other
        with ThreadPoolExecutor(2) as others, client.stream("POST", "/v1/completions", json=endless) as stream:
            lines = stream.iter_lines()  # to be kept: the stream ends with it
            next(lines)
            for count, priority in enumerate((5, -5), 2):
                others.submit(ask, priority)
                wait_until(lambda count=count: arrived(count), 20, f"{count} requests")
        assert done == [-5, 5]


def test_int4_weights_and_fp8_cache(smollm2: Path) -> None:
    with LLM(str(smollm2), quantization="int4", kv_cache_dtype="fp8", max_model_len=512) as llm:
        found = llm.generate(["The capital of France is", "1, 2, 3, 4, 5, 6,"], GREEDY, use_tqdm=False)
    france, count = (output.outputs[0].text for output in found)
    assert france.startswith(" Paris") and count.startswith(" 7, 8, 9")


def test_experts_divided_among_workers(tmp_path: Path) -> None:
    checkpoint = save("qwen3-moe", tmp_path)
    write_tokenizer(tmp_path)
    options: dict[str, Any] = {"dtype": "float32", "cpu_threads": 1, "num_gpu_blocks_override": 16}
    with LLM(str(tmp_path), tensor_parallel_size=2, enable_expert_parallel=True, **options) as llm:
        (found,) = llm.generate([{"prompt_token_ids": PROMPT}], GREEDY, use_tqdm=False)
    assert list(found.outputs[0].token_ids) == checkpoint.greedy(PROMPT, 12)


def test_classes_and_scores_over_http(launch: Launch, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 160, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6}
    config = transformers.BertConfig(num_labels=1, max_position_embeddings=64, initializer_range=0.2, **sizes)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    backend = write_tokenizer(tmp_path)

    @torch.inference_mode()
    def score(*texts: str) -> float:
        encoded = backend.encode(*texts)
        logits = model(torch.tensor([encoded.ids]), token_type_ids=torch.tensor([encoded.type_ids])).logits
        return float(logits[0, 0].sigmoid())

    query, documents = "t5 t9", ["t7", "t8 t9 t10 t11", "t100"]
    expected = [score(query, document) for document in documents]
    with launch(tmp_path, "--dtype", "float32", "--cpu-threads", "1") as server:

        def post(path: str, **body: Any) -> list[dict[str, Any]]:
            reply = httpx.post(server.url + path, json=body, timeout=60).raise_for_status().json()
            return reply["results" if path == "/rerank" else "data"]

        scores = post("/score", text_1=query, text_2=documents)
        assert [each["score"] for each in scores] == pytest.approx(expected, abs=1e-5)
        ranked = post("/rerank", query=query, documents=documents)
        assert [each["relevance_score"] for each in ranked] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
        assert [each["document"]["text"] for each in ranked] == [documents[each["index"]] for each in ranked]
        (classified,) = post("/classify", input=query)
        assert classified["label"] == "LABEL_0" and classified["probs"] == pytest.approx([score(query)], abs=1e-5)


def test_salts_divide_the_prefix_cache(server: Server) -> None:
    def cached(salt: str) -> int:
        body = {"prompt": list(range(2000, 2064)), "max_tokens": 1, "cache_salt": salt}
        return httpx.post(f"{server.url}/v1/completions", json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(salt) for salt in ("a", "b", "a", "b")] == [0, 0, 48, 48]


def test_what_a_template_makes_of_a_chat(server: Server, smollm2: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    fields = {"temperature": 0, "max_tokens": 8}

    def post(path: str, **body: Any) -> dict[str, Any]:
        return httpx.post(server.url + path, json=body, timeout=60).raise_for_status().json()

    assert post("/apply-template", messages=messages) == {"prompt": expected}
    shown = post("/v1/chat/completions/render", messages=messages, **fields)
    assert (shown["prompt"], shown["token_ids"]) == (expected, tokenizer(expected, add_special_tokens=False)["input_ids"])
    (given,) = post("/v1/completions/render", prompt=shown["token_ids"], **fields)
    assert given["sampling_params"] == shown["sampling_params"]
    by_ids = post("/v1/completions", prompt=given["token_ids"], **fields)["choices"][0]["text"]
    assert by_ids == post("/v1/chat/completions", messages=messages, **fields)["choices"][0]["message"]["content"]
