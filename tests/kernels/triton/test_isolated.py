"""The cases of check.py and speed.py run in processes of their own, none costs another its turn, and they need few packages."""

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, time, isolated

def run(name):
    if name == "raises":
        raise ValueError("in vain")
    if name == "dies":
        print("last words", flush=True)
        os._exit(3)
    time.sleep(60 if name == "hangs" else 0)
    return {"said": name}

isolated.serve(int(sys.argv[-1]), run)
"""

BARE = """
import sys
absent = "msgspec zmq fastapi uvicorn uvloop httptools llguidance orjson multipart minivllm._cpu"
sys.modules.update(dict.fromkeys(absent.split()))

import check, speed

check.models.interpret_if(True)
name = "tiny models against transformers: Llama, with graphs"
assert check.run(check.Scale("cpu"), name)["error_share"] <= 1
"""
REPOSITORY = Path(__file__).parents[3]


def test_torch_triton_and_transformers_are_enough(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    path = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "benchmarks/gpu")))
    env = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", BARE], env=env, check=True, timeout=120)


def test_cases_that_raise_die_or_hang_cost_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = REPOSITORY / "benchmarks/gpu"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    isolated = importlib.import_module("isolated")
    monkeypatch.setattr(isolated, "_EXIT_SECONDS", 0.5)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def ask(*names: str, until: float = 60) -> dict[str, dict]:
        command = [sys.executable, str(program)]
        return dict(isolated.ask_all(command, names, servers=1, seconds=2, until=time.monotonic() + until))

    replies = ask("one", "raises", "two", "dies", "three", "four")
    assert [replies[name]["said"] for name in ("one", "two", "three", "four")] == ["one", "two", "three", "four"]
    assert replies["raises"]["error"] == "ValueError: in vain"
    error = replies["dies"]["error"]
    assert error.startswith("died with 3: ") and error.endswith("last words\n")
    assert ask("hangs", until=1)["hangs"]["error"].startswith("gave no answer in time")
    monkeypatch.setattr(isolated, "_FIRST_SECONDS", 0.0)
    replies = ask("hangs", "five")
    assert replies["hangs"]["error"].startswith("gave no answer in time") and replies["five"]["said"] == "five"
    assert ask("six", until=-1)["six"]["error"] == "not tried: out of time"
