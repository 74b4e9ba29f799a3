"""`minivllm serve` as its users meet it: the openai SDK, curl, hang-ups, signals, and a core that dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

FRANCE = "The capital of France is"
FOREVER = {"temperature": 0, "max_tokens": 4000, "ignore_eos": True, "stream": True}


def test_openai_sdk(server) -> None:
    client = server.openai()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=12)
    assert whole.choices[0].message.content.startswith("The capital of France is Paris")
    chunks = list(
        client.chat.completions.create(
            model="smollm2",
            messages=messages,
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    for usage in (whole.usage, chunks[-1].usage):
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (37, 8, 45)
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 32  # two blocks of the same prompt, asked before
    assert client.completions.create(model="smollm2", prompt=FRANCE, max_tokens=1, temperature=0).choices[0].text == " Paris"
    assert [m.id for m in client.models.list()] == ["smollm2"]
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="other", prompt="x")
    assert refused.value.body["param"] == "model"


def test_curl(server) -> None:
    body = json.dumps({"model": "smollm2", "prompt": FRANCE, "max_tokens": 3, "temperature": 0, "stream": True})
    command = ["curl", "-sN", f"{server.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split("\n\n")
    assert lines[-2] == "data: [DONE]" and lines[-1] == ""
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-2]) == " Paris.\n"


def test_hang_ups_leave_nothing_behind(server) -> None:
    """64 streams at once, of which every fourth client hangs up after a few chunks."""

    async def one(client: httpx.AsyncClient, number: int) -> int:
        body = {"model": "smollm2", "prompt": f"Story {number}:", "max_tokens": 40, "ignore_eos": True, "stream": True}
        seen = 0
        async with client.stream("POST", f"{server.url}/v1/completions", json=body) as reply:
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                seen += line.startswith("data: {")
                if number % 4 == 0 and seen == 3:
                    break
        return seen

    async def together() -> list[int]:
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=64)) as client:
            return await asyncio.gather(*(one(client, number) for number in range(64)))

    threads = {pid: len(os.listdir(f"/proc/{pid}/task")) for pid in [server.process.pid, *server.children()]}
    counts = asyncio.run(together())
    assert all(count == 3 if number % 4 == 0 else count >= 3 for number, count in enumerate(counts))
    deadline = time.monotonic() + 5
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    while any(server.metric(f"minivllm:{name}") for name in gauges) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [server.metric(f"minivllm:{name}") for name in gauges] == [0, 0, 0]
    after = {pid: len(os.listdir(f"/proc/{pid}/task")) for pid in threads}
    assert all(after[pid] <= threads[pid] + 1 for pid in threads), (threads, after)


class Reader(threading.Thread):
    """A client thread that collects the events of one endless stream."""

    def __init__(self, url: str, **fields: object):
        super().__init__(daemon=True)
        self.url, self.fields = url, FOREVER | {"prompt": "Count:"} | fields
        self.events: list[str] = []
        self.error: Exception | None = None
        self.started = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", f"{self.url}/v1/completions", json=self.fields, timeout=60) as reply:
                for line in reply.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line[6:])
                        self.started.set()
        except httpx.HTTPError as error:
            self.error = error

    def wait_started(self) -> None:
        assert self.started.wait(30), self.error


def test_sigterm_drains_and_a_second_one_stops(launch, smollm2: Path) -> None:
    with launch(smollm2, "--shutdown-timeout", "60") as server:
        short = Reader(server.url, max_tokens=150)
        endless = Reader(server.url)
        short.wait_started()
        endless.wait_started()
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while server.get("/health/ready")[0] != 503:
            assert time.monotonic() < deadline
        assert server.get("/health/live")[0] == 200
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == 503
        short.join(60)
        assert short.events[-1] == "[DONE]" and len(short.events) > 100
        assert json.loads(short.events[-2])["choices"][0]["finish_reason"] == "length"
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) is not None


def test_a_dead_core_ends_every_stream(launch, smollm2: Path) -> None:
    with launch(smollm2) as server:
        readers = [Reader(server.url) for _ in range(4)]
        for reader in readers:
            reader.wait_started()
        (core,) = server.children()
        began = time.monotonic()
        os.kill(core, signal.SIGKILL)
        for reader in readers:
            reader.join(5)
            assert reader.events[-1] == "[DONE]", reader.error
            assert json.loads(reader.events[-2])["error"]["code"] == 503
        assert time.monotonic() - began < 5
        assert server.process.wait(10) == 1


def test_a_killed_server_takes_its_core_along(launch, smollm2: Path) -> None:
    with launch(smollm2) as server:
        Reader(server.url).wait_started()
        assert len(server.children()) == 1
        server.process.kill()
        server.process.wait(10)  # the fixture checks that the core goes too


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["/no/such/folder"], ["/no/such/folder"]),
        (["{empty}"], ["{empty}", "config.json"]),
        (["{model}", "--max-model-lenn", "5"], ["--max-model-lenn", "--max-model-len"]),
        (["{model}", "--max-model-len", "9000"], ["9000", "8192"]),
        (["{model}", "--kv-cache-memory-bytes", "1M"], ["--kv-cache-memory-bytes"]),
        (["{model}", "--port", "{busy}"], ["{busy}", "in use"]),
    ],
    ids=["no folder", "no config", "wrong flag", "too long", "no room", "busy port"],
)
def test_one_clear_line_for_a_first_user(arguments, words, smollm2: Path, server, tmp_path: Path) -> None:
    names = {"empty": tmp_path, "model": smollm2, "busy": server.url.rsplit(":", 1)[1]}
    command = [sys.executable, "-m", "minivllm", "serve", *(a.format(**names) for a in arguments)]
    done = subprocess.run(
        [*command, *([] if "--port" in command else ["--port", "0"])], capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    (said,) = [line for line in lines if line.startswith("minivllm: error: ")]
    assert said in lines[-2:]  # a wrong flag is followed by the way to the help
    assert all(word.format(**names) in said for word in words), done.stderr


def test_a_prefix_of_requests_that_come_together_is_computed_once(server) -> None:
    """1,024 shared tokens take the first request several steps, and the others wait for them."""
    shared = [1000 + i * 31 % 40000 for i in range(1024)]
    before = {name: server.metric(f"minivllm:prefix_cache_{name}_total") for name in ("queries", "hits")}

    async def main() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            prompts = [[*shared, *range(2000 + 100 * i, 2032 + 100 * i)] for i in range(4)]
            bodies = [{"model": "smollm2", "prompt": prompt, "max_tokens": 2, "temperature": 0} for prompt in prompts]
            return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))

    usages = [reply.json()["usage"] for reply in asyncio.run(main())]
    assert [usage["prompt_tokens"] for usage in usages] == [1056] * 4
    after = {name: server.metric(f"minivllm:prefix_cache_{name}_total") for name in before}
    assert {name: after[name] - before[name] for name in before} == {"queries": 4 * 1056, "hits": 3 * 1024}


def test_requests_can_be_watched_cancelled_and_limited_in_time(server) -> None:
    client = server.openai()
    ask = {"model": "smollm2", "prompt": "Once", "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
    stream = client.completions.create(**ask, stream=True, extra_headers={"X-Request-Id": "watch-me"})
    chunks = iter(stream)
    next(chunks)
    shown = json.loads(server.get("/v1/requests/watch-me")[1])
    assert shown["state"] == "decode" and shown["num_output_tokens"] >= 1 and shown["num_prompt_tokens"] == 1
    assert json.loads(server.get("/v1/requests")[1])["data"][0]["id"] == shown["id"] == "cmpl-watch-me-0"
    assert httpx.delete(f"{server.url}/v1/requests/watch-me").json()["deleted"] is True
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "abort"
    ask["extra_body"] = {"ignore_eos": True, "timeout_ms": 700}
    cut = client.completions.create(**ask)
    assert cut.choices[0].finish_reason == "timeout" and 0 < cut.usage.completion_tokens < 2000
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(model="smollm2", prompt="word " * 1500, extra_body={"timeout_ms": 1})
    assert refused.value.status_code == 504 and refused.value.body["type"] == "TimeoutError"
    assert json.loads(server.get("/v1/requests")[1])["data"] == []
