"""Prompts that one engine computed and another decodes: the tokens of one engine, whatever happens to the other."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from real_server import Server, flags_of, free_port, wait_until
from tiny_llama import write_tiny_llama

from minivllm import LLM, SamplingParams
from minivllm.errors import ClientError
from minivllm.messages.output import RequestOutput

REPOSITORY = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, Any] = {"dtype": "float32", "cpu_threads": 1, "num_gpu_blocks_override": 64, "block_size": 4}
FLAGS = flags_of(OPTIONS)
PROMPTS = [[*range(20 + i, 80 + i)] for i in range(6)]
BODY = {"max_tokens": 12, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


def answer(llm: LLM, prompt: list[int], transfer: Any = None, **more: Any) -> RequestOutput:
    extra = None if transfer is None else {"kv_transfer_params": transfer}
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0, extra_args=extra, **more)
    return llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0]


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    with LLM(str(model), **OPTIONS) as llm:
        for wish in ({"do_remote_decode": True}, {"do_remote_prefill": True}):
            with pytest.raises(ClientError, match="--kv-transfer-config"):
                answer(llm, PROMPTS[0], wish)
        return [answer(llm, prompt).outputs[0].token_ids for prompt in PROMPTS]


def prefill(server: Server, prompt: list[int]) -> dict[str, Any]:
    body = {**BODY, "prompt": prompt, "max_tokens": 1, "kv_transfer_params": DECODE}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    params = reply["kv_transfer_params"]
    assert params["do_remote_prefill"] and params["remote_num_blocks"] == len(prompt) // 4
    return params


@pytest.mark.parametrize("connector", ["SharedMemoryConnector", "TcpConnector"])
def test_prefill_there_decode_here(launch, model, expected, caplog, connector: str) -> None:
    port = free_port()
    config = {"kv_connector": connector, "kv_port": port, "kv_connector_extra_config": {"peers": [f"127.0.0.1:{port}"]}}
    there = json.dumps({**config, "kv_role": "kv_producer"})
    here = {**config, "kv_role": "kv_consumer"}
    with (
        launch(model, *FLAGS, "--kv-transfer-config", there) as server,
        LLM(str(model), kv_transfer_config=here, **OPTIONS) as llm,
    ):
        caplog.set_level("WARNING", "minivllm")
        caplog.clear()
        params = prefill(server, PROMPTS[0])
        found = answer(llm, PROMPTS[0], params, n=2)
        assert [choice.token_ids for choice in found.outputs] == [expected[0]] * 2 and found.num_cached_tokens == 56
        assert not caplog.records
        # Half of it is of this prompt.
        mixed = PROMPTS[1][:30] + PROMPTS[2][:30]
        alone = answer(llm, mixed).outputs[0].token_ids
        llm.engine.call("reset_prefix_cache")
        found = answer(llm, mixed, prefill(server, PROMPTS[1]))
        assert found.outputs[0].token_ids == alone and found.num_cached_tokens == 28
        assert not caplog.records
        # What cannot be had is computed: blocks of another prompt, those that were taken, those of a dead engine.
        for prompt, transfer, reason in (
            (2, prefill(server, PROMPTS[3]), "they are of another prompt"),
            (3, params, "does not have them any more"),
            (4, prefill(server, PROMPTS[4]), "Errno"),
        ):
            if reason == "Errno":
                server.process.kill()
                server.process.wait()
            found = answer(llm, PROMPTS[prompt], transfer)
            assert found.outputs[0].token_ids == expected[prompt] and found.num_cached_tokens == 0
            assert len(caplog.records) == 1 and reason in caplog.text
            caplog.clear()
        with pytest.raises(ClientError, match="is a kv_consumer"):
            answer(llm, PROMPTS[0], DECODE)


def test_one_server_hands_over_to_itself(
    launch: Callable[..., AbstractContextManager[Server]], model: Path, expected: list[list[int]]
) -> None:
    """All over HTTP, two stages that are busy with others meanwhile, and the proxy of examples/ in front."""
    config = json.dumps({"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both"})
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    with launch(
        model, *FLAGS, "-pp", "2", "--kv-transfer-config", config, "--chat-template", template, "--served-model-name", "m"
    ) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            params = [prefill(server, prompt) for prompt in PROMPTS]  # too many blocks for the first to be in the cache still
            body = {**BODY, "prompt": PROMPTS[0], "kv_transfer_params": params[0]}
            reply = http.post("/v1/completions", json=body).json()
            assert reply["choices"][0]["token_ids"] == expected[0]
            assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 56}
            assert "kv_transfer_params" not in reply
            for change, param in (
                ({"stream": True}, "stream"),
                ({"n": 2}, "kv_transfer_params"),
                ({"prompt": PROMPTS[:2]}, "kv_transfer_params"),
                ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
                ({"kv_transfer_params": {"do_remote_decode": 7}}, "kv_transfer_params"),
            ):
                refused = http.post("/v1/completions", json={**body, "kv_transfer_params": DECODE, **change})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        port, address = free_port(), server.url.removeprefix("http://")
        command = [sys.executable, "examples/prefill_decode_proxy.py", address, address, str(port)]
        proxy = subprocess.Popen(command, cwd=REPOSITORY)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                chat = {"messages": [{"role": "user", "content": "a b c d e f g " * 3}], "max_tokens": 3}
                wait_until(lambda: _answers(http), 10, "a proxy")
                reply = http.post("/v1/chat/completions", json=chat).json()
                assert reply["usage"]["completion_tokens"] == 3 and reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
                stream = http.post("/v1/completions", json={**BODY, "prompt": PROMPTS[5], "stream": True}).text
                events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
                assert [t for event in events for choice in event["choices"] for t in choice["token_ids"]] == expected[5]
        finally:
            proxy.kill()
            proxy.wait()


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/").status_code > 0
    except httpx.TransportError:
        return False
