"""The commands as users run them: `serve` on a real HTTP server with a fake engine, the others on a tiny model."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minivllm.entrypoints.cli.bench import plot
from minivllm.entrypoints.cli.bench.figures import latencies_of
from minivllm.entrypoints.cli.bench.load import Outcome
from minivllm.entrypoints.cli.main import main

TESTS = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """A server whose answers have 20 tokens at most; prompt and output may have 100."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    script = TESTS / "entrypoints" / "http" / "serve_fake.py"
    engine = json.dumps({"script": [f" {number}" for number in range(20)]})
    command = [sys.executable, str(script), engine, "--port", "0", "--host", "127.0.0.1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        found = next(filter(None, (re.search(r"Ready on http://127.0.0.1:(\d+)", line) for line in process.stderr)))
        yield found.group(1)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def bench(*arguments: str) -> int:
    return main(["bench", *arguments, "--disable-tqdm"])


def rows(text: str) -> dict[str, str]:
    return {line[:40].strip(): line[41:].strip() for line in text.splitlines() if line and line[0] not in "=-"}


@pytest.mark.parametrize(("backend", "prompt_tokens"), [("openai", 8 * 30), ("openai-chat", None)])
def test_serve(
    port: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str, prompt_tokens: int | None
) -> None:
    flags = (
        "--num-prompts 8 --max-concurrency 3 --random-input-len 30 --random-output-len 6 --save-detailed --goodput e2el:60000"
    )
    file = ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "figures.json"]
    assert bench("serve", "--port", port, "--backend", backend, "--tokenizer", str(model), *flags.split(), *file) == 0
    shown = rows(capsys.readouterr().out)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {name: shown[name] for name in ("Successful requests:", "Failed requests:", "Total generated tokens:")} == {
        "Successful requests:": "8",
        "Failed requests:": "0",
        "Total generated tokens:": "48",
    }
    assert (figures["completed"], figures["failed"], figures["total_output_tokens"]) == (8, 0, 48)
    assert figures["output_lens"] == [6] * 8 and figures["generated_texts"] == [" 0 1 2 3 4 5"] * 8
    assert prompt_tokens is None or figures["total_input_tokens"] == prompt_tokens
    assert figures["max_concurrent_requests"] <= 3 and figures["model_id"] == "fake"
    assert figures["request_goodput"] == figures["request_throughput"] == pytest.approx(8 / figures["duration"])
    assert figures["p99_e2el_ms"] >= figures["median_e2el_ms"] > figures["median_ttft_ms"] > 0


def test_failed_requests_are_counted_and_named(port: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--num-prompts", "3", "--random-input-len", "100", "--random-output-len", "6")
    assert bench("serve", "--port", port, "--tokenizer", str(model), *flags) == 1
    shown = capsys.readouterr()
    assert (rows(shown.out)["Successful requests:"], rows(shown.out)["Failed requests:"]) == ("0", "3")
    assert shown.err.startswith("3 of 3 requests failed: HTTP 400: ") and len(shown.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "9"], "no server answers at http://127.0.0.1:9 ("),
        (
            ["--tokenizer", "/none"],
            "tokenizer folder /none does not exist. Name the folder of the model's tokenizer with --tok",
        ),
        (["--model", "other", "--tokenizer", "MODEL"], "the first request to http://127.0.0.1:"),
        (["--base-url", "localhost"], "--base-url must begin with http"),
    ],
)
def test_serve_refusals(port: str, model: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    given = [str(model) if flag == "MODEL" else flag for flag in flags]
    assert bench("serve", *(() if "--port" in flags else ("--port", port)), *given) == 1
    assert capsys.readouterr().err.startswith(f"minivllm: error: {message}")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--goodput", "itl:5"], "must be NAME:MILLISECONDS with a name of ttft, tpot, e2el, got 'itl:5'"),
        (["--request-rate", "0"], "must be greater than 0, got 0"),
        (["--percentile-metrics", "ttft,x"], "must be of ttft,tpot,itl,e2el, got x"),
        (["--metric-percentiles", "101"], "must be numbers from 0 to 100, got 101"),
        (["--num-prompts", "0"], "must be at least 1, got 0"),
        (["--extra-body", "[1]"], "must be a JSON object, got '[1]'"),
    ],
)
def test_serve_usage(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    with pytest.raises(SystemExit):
        bench("serve", *flags)
    assert message in capsys.readouterr().err


def test_help_of_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: minivllm bench COMMAND [options]") and "To begin" not in text
    assert all(f"\n  {name} " in text for name in ("serve", "latency", "throughput"))
    with pytest.raises(SystemExit):
        main(["bench", "latenzy"])
    assert capsys.readouterr().err.startswith("minivllm: error: unknown command 'latenzy' (did you mean latency?)")


def offline(model: Path, command: str, *flags: str) -> dict[str, float]:
    file = model / "figures.json"
    engine = ("--load-format", "dummy", "--cpu-threads", "1", "--kv-cache-memory-bytes", "1MiB", "--block-size", "8")
    assert bench(command, str(model), *engine, "--max-num-seqs", "4", "--output-json", str(file), *flags) == 0
    return json.loads(file.read_text())


def test_latency(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--batch-size 3 --input-len 9 --output-len 5 --num-iters 4 --num-iters-warmup 1"
    figures = offline(model, "latency", *flags.split())
    assert len(figures["latencies"]) == 4
    assert figures["avg_latency"] == pytest.approx(sum(figures["latencies"]) / 4)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Avg latency: {figures['avg_latency']:.4f} seconds"
    assert lines[6] == f"99% percentile latency: {figures['percentiles']['99']:.4f} seconds"


def test_throughput(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = offline(model, "throughput", "--num-prompts", "7", "--input-len", "9", "--output-len", "5", "--seed", "1")
    assert (figures["num_requests"], figures["total_input_tokens"], figures["total_output_tokens"]) == (7, 63, 35)
    assert figures["tokens_per_second"] == pytest.approx(98 / figures["elapsed_time"])
    assert capsys.readouterr().out.startswith(f"Throughput: {7 / figures['elapsed_time']:.2f} requests/s, ")


def test_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert bench("serve", "--plot", "x.png") == 1
    assert capsys.readouterr().err == "minivllm: error: --plot needs matplotlib: pip install 'minivllm[bench]'\n"
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    outcomes = [Outcome(10.0, [10.1, 10.2, 12.0], 5, 3), Outcome(10.0, error="x")]
    plot.draw_load(str(tmp_path / "x.png"), latencies_of(outcomes[:1]), outcomes)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
