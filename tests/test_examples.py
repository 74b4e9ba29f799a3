"""The files of examples/ that deploy the server: valid YAML, and commands that our own parser takes."""

import argparse
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from minivllm.entrypoints.cli import serve

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
YAML = sorted(EXAMPLES.glob("*.yaml"))


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def check_command(words: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_options(parser)
    assert parser.parse_args(words).positional_model


@pytest.mark.parametrize(
    "name", ["compose.yaml", "two_nodes.yaml", "kubernetes.yaml", "kubernetes_ray.yaml", "two_nodes_ray.sh"]
)
def test_commands(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    lists = re.findall(r"\[serve, (.*)\]", text)
    lines = re.findall(r"minivllm serve ([^#\n]*)", text)
    assert lists or lines
    for command in lists:
        check_command(yaml.safe_load(f"[{command}]"))
    for command in lines:
        check_command(shlex.split(command.replace("$(nproc)", "4")))


def test_kubernetes() -> None:
    for name, kind in (("kubernetes.yaml", "Deployment"), ("kubernetes_ray.yaml", "StatefulSet")):
        by_kind = {each["kind"]: each for each in documents(name)}
        assert set(by_kind) == {kind, "Service"}
        pods = by_kind[kind]["spec"]["template"]
        assert pods["metadata"]["labels"] == by_kind["Service"]["spec"]["selector"]
        assert pods["metadata"]["labels"] == by_kind[kind]["spec"]["selector"]["matchLabels"]
        (container,) = pods["spec"]["containers"]
        volumes = {each["name"] for each in pods["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert all(isinstance(word, str) for word in container.get("args", []) + container.get("command", []))


def test_compose() -> None:
    (service,) = documents("compose.yaml")[0]["services"].values()
    assert (EXAMPLES / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert all(isinstance(word, str) for word in service["command"] + service["healthcheck"]["test"])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.sh")), ids=lambda p: p.name)
def test_shell_scripts_parse(path: Path) -> None:
    subprocess.run(["sh", "-n", path], check=True)
