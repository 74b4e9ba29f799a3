"""Options as command-line flags and as a YAML file."""

import argparse
from pathlib import Path

import pytest

from minivllm.config import AsyncEngineArgs
from minivllm.errors import ConfigError


def parse(*flags: str) -> AsyncEngineArgs:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser(exit_on_error=False))
    return AsyncEngineArgs.from_cli_args(parser.parse_args(flags))


def test_only_what_is_given_is_there() -> None:
    assert parse().given == {}
    assert parse("--port", "8000").given == {"port": 8000}  # the default, but given


def test_every_kind_of_flag() -> None:
    args = parse(
        "--model", "m", "--max-model-len", "12k", "--kv-cache-memory-bytes", "4GiB", "--gpu-memory-utilization", "0.5",
        "--hf-overrides", '{"a": {"b": 1}}', "--api-key", "x", "y", "--api-key", "z", "--served-model-name", "s",
        "--allowed-origins", "*", "--trust-remote-code", "--no-enable-prefix-caching", "--seed", "-3",
    )  # fmt: skip
    assert args.given == {
        "model": "m",
        "max_model_len": 12000,
        "kv_cache_memory_bytes": 4 * 2**30,
        "gpu_memory_utilization": 0.5,
        "hf_overrides": {"a": {"b": 1}},
        "api_key": ("x", "y", "z"),
        "served_model_name": ("s",),
        "allowed_origins": ("*",),
        "trust_remote_code": True,
        "enable_prefix_caching": False,
        "seed": -3,
    }


def test_a_short_flag_is_the_same_option() -> None:
    assert parse("-q", "int8").given == parse("--quantization", "int8").given == {"quantization": "int8"}
    assert parse("-tp", "2", "-ep").given == {"tensor_parallel_size": 2, "enable_expert_parallel": True}


def test_a_json_list_is_a_list_too() -> None:
    assert parse("--allowed-origins", '["a", "b"]').allowed_origins == ("a", "b")


def test_a_wrong_value_names_its_flag() -> None:
    with pytest.raises(argparse.ArgumentError, match="argument --port: must be at most 65535, got 70000"):
        parse("--port", "70000")


def test_every_boolean_has_both_forms() -> None:
    assert parse("--enable-chunked-prefill").enable_chunked_prefill is True
    assert parse("--no-enforce-eager").given == {"enforce_eager": False}


def test_a_file_gives_options_and_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("model: m\nport: 9000\nmax-model-len: 12k\napi_key: [a, b]\nenable-prefix-caching: false\nrevision: 1.5\n")
    args = parse("--config", str(file), "--port", "9001")
    assert args.given == {
        "model": "m",
        "port": 9001,
        "max_model_len": 12000,
        "api_key": ("a", "b"),
        "enable_prefix_caching": False,
        "revision": "1.5",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot: 1", "unknown option 'prot': did you mean 'port'"),
        ("port: 70000", "port must be at most 65535"),
        ("- port", "must hold `name: value` lines"),
        ("a: [", "is not YAML"),
        ("config: other.yaml", "unknown option 'config'"),
    ],
)
def test_refused_file(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        parse("--config", str(file))
    assert "\n" not in caught.value.message


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match="cannot read --config /none: No such file"):
        parse("--config", "/none")
