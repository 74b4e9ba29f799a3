"""Several engine cores behind API processes and `LLM`: answers as of one core, and what happens when a process is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from real_server import Server, wait_until
from scripted_core import TEMPLATE, make_tokenizer, write_tiny_model

from minivllm import LLM, SamplingParams
from minivllm.errors import ClientError
from minivllm.messages.structured_outputs import StructuredOutputsParams

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = {"load_format": "dummy", "dtype": "float32", "cpu_threads": 1, "num_gpu_blocks_override": 128, "seed": 3}
FLAGS = ["--load-format", "dummy", "--dtype", "float32", "--num-gpu-blocks-override", "128", "--seed", "3", "-dp", "2"]
PROMPTS = [[5 + i, 7, 9, *range(20, 30 + 5 * i)] for i in range(12)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), make_tokenizer())


def answers(llm: LLM) -> list:
    """Greedy, and with seeds."""
    ways = [{"temperature": 0}, {"temperature": 1, "seed": 7}, {"temperature": 1, "n": 2, "seed": 5}]
    params = [SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1, **ways[i % 3]) for i in range(len(PROMPTS))]
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
    return [[(c.token_ids, c.cumulative_logprob) for c in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def of_one_core(tiny: Path) -> list:
    with LLM(str(tiny), **TINY) as llm:
        return answers(llm)


def test_llm(tiny: Path, of_one_core: list) -> None:
    with LLM(str(tiny), data_parallel_size=2, **TINY) as llm:
        assert answers(llm) == of_one_core
        with pytest.raises(ClientError):
            llm.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")), use_tqdm=False)
        counts = {m.labels["engine"]: m.value for m in llm.get_metrics() if m.name == "minivllm:generation_tokens"}
        assert set(counts) == {"0", "1"} and all(counts.values())
        assert llm.engine.call("reset_prefix_cache") is True and llm.engine.call("stats")[:3] == [0, 0, 0.0]


def test_grammars_and_prefixes(smollm2: Path) -> None:
    with LLM(str(smollm2), data_parallel_size=2, max_model_len=512, num_gpu_blocks_override=64) as llm:
        digits = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[0-9]{3}"), max_tokens=8)
        assert all(o.outputs[0].text.isdigit() for o in llm.generate(["a", "b", "c", "d"], digits, use_tqdm=False))
        stories = [[start, *range(100, 260)] for start in (11, 12)]
        for ends in ((), (5,), (6, 7)):
            prompts = [{"prompt_token_ids": [*story, *ends]} for story in stories]
            found = llm.generate(prompts if ends else prompts[::-1], SamplingParams(max_tokens=2), use_tqdm=False)
            assert [output.num_cached_tokens for output in found] == [160 if ends else 0] * 2


def test_llm_pools(tiny: Path) -> None:
    vectors = []
    for size in (1, 2):
        with LLM(str(tiny), runner="pooling", data_parallel_size=size, **TINY) as llm:
            prompts = [{"prompt_token_ids": ids} for ids in PROMPTS[:4]]
            vectors.append([o.outputs.embedding for o in llm.embed(prompts, use_tqdm=False)])
    assert vectors[0] == vectors[1]


@pytest.fixture(scope="module")
def server(launch, tiny: Path) -> Iterator[Server]:
    with launch(tiny, *FLAGS, "-asc", "2", "--served-model-name", "tiny", "--chat-template", TEMPLATE) as running:
        yield running


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[[int], httpx.Client]]:
    """`connect(index)`: a client with a connection to this one of the two API processes; the other one sleeps meanwhile."""
    name = "minivllm.entrypoints.http.api_process"
    further = next(pid for pid in server.children() if name in psutil.Process(pid).cmdline())
    clients = []

    def connected(index: int) -> httpx.Client:
        clients.append(httpx.Client(base_url=server.url, timeout=60))
        other = [further, server.process.pid][index]
        os.kill(other, signal.SIGSTOP)
        try:
            clients[-1].get("/health").raise_for_status()
        finally:
            os.kill(other, signal.SIGCONT)
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


def test_http(server: Server, of_one_core: list) -> None:
    client = server.openai()

    def tokens(row: int) -> list[int]:
        stream = client.completions.create(
            model="tiny", prompt=PROMPTS[row], max_tokens=12, temperature=0, stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        return [t for chunk in stream for c in chunk.choices for t in (c.model_extra or {}).get("token_ids") or []]

    rows = [*range(0, len(PROMPTS), 3)] * 4
    with ThreadPoolExecutor(16) as clients:
        assert [[found] for found in clients.map(tokens, rows)] == [[of_one_core[row][0][0]] for row in rows]
    batch = client.completions.create(
        model="tiny", prompt=[PROMPTS[row] for row in rows], max_tokens=12, temperature=0, n=2,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip
    found = [choice.model_extra["token_ids"] for choice in batch.choices]
    assert found == [of_one_core[row][0][0] for row in rows for _ in range(2)]
    text = server.get("/metrics")[1]
    counts = [f'minivllm:generation_tokens_total{{model_name="tiny",engine="{core}"}}' for core in (0, 1)]
    assert all(any(line.startswith(count) and not line.endswith(" 0.0") for line in text.splitlines()) for count in counts)
    assert server.metric("minivllm:generation_tokens_total") == 12 * 3 * len(rows)
    assert server.metric("minivllm:request_success_total") == 3 * len(rows)


def test_each_api_process_knows_of_all(server: Server, connect: Callable[[int], httpx.Client], of_one_core: list) -> None:
    first, second = connect(0), connect(1)
    before = server.metric("minivllm:generation_tokens_total")
    body = {"prompt": PROMPTS[0], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    for client in (first, second):
        assert client.post("/v1/completions", json=body).json()["choices"][0]["token_ids"] == of_one_core[0][0][0]
    now = [client.get("/metrics").text for client in (first, second)]
    assert now[0] == now[1] and server.metric("minivllm:generation_tokens_total") == before + 24

    stored = second.post("/v1/responses", json={"model": "tiny", "input": "one", "max_output_tokens": 16}).json()
    body = {"model": "tiny", "input": "two", "previous_response_id": stored["id"], "max_output_tokens": 16, "stream": True}
    for client in (first, second):
        assert client.get(f"/v1/responses/{stored['id']}").json() == stored
        text = client.post("/v1/responses", json=body).text
        assert any(f"event: response.{end}\n" in text for end in ("completed", "incomplete"))

    body = {"prompt": "a", "max_tokens": 450, "ignore_eos": True, "stream": True, "n": 32}
    for client, other in ((first, second), (second, first)):
        with client.stream("POST", "/v1/completions", json=body) as stream:
            parts = stream.iter_raw()
            begin = next(parts)
            (live,) = other.get("/v1/requests").json()["data"]
            assert live["num_choices"] == 32
            other.delete(f"/v1/requests/{live['id']}").raise_for_status()
            assert b'"finish_reason":"abort"' in begin + b"".join(parts)
    wait_until(lambda: server.metric("minivllm:num_requests_running") == 0, 5, "an idle server")


def test_both_api_processes_drain(server: Server, connect: Callable[[int], httpx.Client]) -> None:
    """The last test with this server."""
    body = {"prompt": "a", "max_tokens": 450, "ignore_eos": True, "stream": True}
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(connect(index).stream("POST", "/v1/completions", json=body)) for index in (0, 1)]
        parts = [stream.iter_raw() for stream in streams]
        for each in parts:
            next(each)
        server.process.send_signal(signal.SIGTERM)
        for each in parts:
            text = b"".join(each)
            assert b'"finish_reason":"length"' in text and text.endswith(b"data: [DONE]\n\n")
    assert server.process.wait(20) == 0


@pytest.mark.parametrize(("kind", "count"), [("api", "1"), ("core", "2"), ("sibling", "2")])
def test_kill(tiny: Path, kind: str, count: str) -> None:
    command = [sys.executable, "benchmarks/kill.py", str(tiny), "--times", "1", "--kinds", kind, "--", *FLAGS, "-asc", count]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 right" in done.stdout
