"""The command as users run it: real processes, exit statuses, and what stands on stderr."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minivllm.version import __version__


def minivllm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minivllm", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "100", **environment}
    )


def fails(status: int, *arguments: str, **environment: str) -> str:
    """The only line on stderr, or the first before a pointer to the help."""
    done = minivllm(*arguments, **environment)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert len(lines) == (1 if status == 1 else 2) and lines[0].startswith("minivllm: error: "), done.stderr
    return lines[0].removeprefix("minivllm: error: ")


def test_version() -> None:
    assert minivllm("--version").stdout == f"minivllm {__version__}\n"


def test_help_names_the_commands() -> None:
    for arguments in ([], ["--help"]):
        done = minivllm(*arguments)
        assert done.returncode == 0 and done.stderr == ""
        assert all(f"\n  {name} " in done.stdout for name in ("serve", "chat", "complete", "bench", "collect-env"))


def test_help_of_serve_is_grouped_and_ends_with_an_example() -> None:
    text = minivllm("serve", "--help").stdout
    groups = ["\nModel:", "\nServer:", "\nLoading:", "\nKV cache:", "\nScheduler:", "\nDevice:", "\nLogging:"]
    assert [text.index(group) for group in groups] == sorted(text.index(group) for group in groups)
    assert "curl http://localhost:8000/v1/chat/completions" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "==SUPPRESS==" not in text and "--enable-prefix-caching, --no-enable-prefix-caching" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serv"], "unknown command 'serv' (did you mean serve?)"),
        (["--verion"], "unrecognized arguments: --verion (did you mean --version?)"),
        (["serve", "m", "--prot", "1"], "unrecognized arguments: --prot 1 (did you mean --port?)"),
        (
            ["serve", "m", "--max-model-length=5"],
            "unrecognized arguments: --max-model-length=5 (did you mean --max-model-len?)",
        ),
        (["serve", "m", "--port", "x"], "argument --port: must be an integer, with a unit if you like (12k, 4GiB), got 'x'"),
        (["serve", "m", "--dtype", "int3"], "argument --dtype: must be one of auto, float32, bfloat16, float16, got 'int3'"),
        (["serve", "m", "n"], "unrecognized arguments: n"),
        (["serve", "m", "--port"], "argument --port: expected one argument"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    assert fails(2, *arguments) == message


def test_wrong_configuration(tmp_path: Path) -> None:
    assert fails(1, "serve").startswith("no model given: name a model folder")
    assert fails(1, "serve", "/no/such/folder") == "model folder /no/such/folder does not exist."
    assert "has no config.json" in fails(1, "serve", str(tmp_path))
    assert fails(1, "serve", "a", "--model", "b") == "two models given: a and --model b; give one."
    assert fails(1, "serve", "m", "--config", "/none.yaml") == "cannot read --config /none.yaml: No such file or directory."
    assert fails(1, "serve", "m", MINIVLLM_LOGGING_LEVEL="loud").startswith("MINIVLLM_LOGGING_LEVEL must be one of DEBUG,")
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert "config.json has no " in fails(1, "serve", str(tmp_path))


def test_flags_may_be_written_with_underscores(tmp_path: Path) -> None:
    assert "does not exist" in fails(1, "serve", "--max_model_len=5", "--block_size", "16", "/no_such_folder")
    assert fails(1, "serve", "--model=/no_such_folder") == "model folder /no_such_folder does not exist."


def test_no_server_answers() -> None:
    message = fails(1, "chat", "--url", "http://127.0.0.1:9", "--quick", "hello")
    assert message.startswith("no server answers at http://127.0.0.1:9/v1 (") and "minivllm serve MODEL" in message
    assert fails(1, "complete", "--url", "localhost").startswith("--url must begin with http")


def test_collect_env_tells_no_secrets() -> None:
    done = minivllm("collect-env", MINIVLLM_API_KEY="hidden-key", MINIVLLM_CPU_THREADS="2")
    assert done.returncode == 0 and "hidden-key" not in done.stdout
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (lines["minivllm"], lines["MINIVLLM_API_KEY"], lines["MINIVLLM_CPU_THREADS"]) == (__version__, "(set)", "2")
    assert lines["torch"] != "not" and lines["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m minivllm serve --help | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
