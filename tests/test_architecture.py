"""Keeps the shape of the code: who may import whom, what must not import torch, and how large things may grow."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minivllm.config import AsyncEngineArgs

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "minivllm"
EXAMPLES = REPOSITORY / "examples"

# Each part sees what is named here, and itself. Imports point down the lines and never up.
BELOW_ALL = {"errors", "version", "messages", "utils", "config"}
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "messages": {"errors"},
    "utils": {"errors"},
    "config": {"utils", "errors"},
    "ipc": {"messages"},
    "metrics": {"messages", "utils", "errors"},
    "text": BELOW_ALL,
    "kernels": set(),
    "distributed": BELOW_ALL | {"ipc", "kernels"},
    "model": BELOW_ALL | {"kernels", "distributed"},
    "worker": BELOW_ALL | {"kernels", "distributed", "model"},
    "executor": BELOW_ALL | {"ipc", "distributed", "worker"},
    "core": BELOW_ALL | {"ipc", "executor"},
    "engine": BELOW_ALL | {"ipc", "metrics", "text", "core"},
    "entrypoints": BELOW_ALL | {"ipc", "metrics", "text", "engine"},
    "__init__": {"version", "config", "messages", "engine", "entrypoints"},
    "__main__": {"entrypoints"},
}
# The compiled module and the package itself are no parts.
NO_PART = {"_cpu", "minivllm"}

NO_TORCH = (
    "core/scheduler",
    "core/kv_cache",
    "core/grammar",
    "core/kv_transfer",
    "messages",
    "config",
    "ipc",
    "metrics",
    "text",
    "engine",
    "entrypoints",
    "utils",
)
HEAVY = {"torch", "transformers", "triton", "torchvision"}

# Where an import inside a function is meant: what is heavy and not always needed, and what begins a process.
IMPORTS_IN_FUNCTIONS = {
    "utils/hub.py": {"huggingface_hub"},  # only if the model is no folder
    "config/cli.py": {"yaml"},  # only with --config
    "engine/sync_engine.py": {"minivllm"},  # sockets, only with several cores
    "core/process.py": {"minivllm"},  # a process start
    "core/startup.py": {"minivllm"},  # executors of several workers
    "executor/ray_worker.py": {"minivllm"},  # a process start, in effect
    "core/grammar/manager.py": {"minivllm"},  # llguidance, only with the first grammar
    "entrypoints/http/lifecycle.py": {"minivllm"},  # a process start, likewise
    "entrypoints/cli/bench/offline.py": {"minivllm"},  # LLM, with torch: the help comes without
    "entrypoints/cli/bench/plot.py": {"matplotlib"},  # only with --plot
    "entrypoints/cli/plan.py": {"minivllm"},  # the engine, with torch: mistakes are told before
    "entrypoints/cli/run_batch.py": {"minivllm", "uvloop"},  # a process start, likewise
    "entrypoints/cli/serve.py": {"minivllm", "uvloop"},  # a process start: the engine starts before the web server loads
}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_PUBLIC_METHODS = 15
MAX_ATTRIBUTES = 15
MAX_FOLDER_FILES = 15
MAX_EXAMPLE_LINES = 40

FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def short(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(node: ast.AST) -> list[str]:
    """Dotted names that an import statement brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative import"
        module = node.module or ""
        return [f"{module}.{alias.name}" for alias in node.names] if module == "minivllm" else [module]
    return []


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All imports but those for type checking only."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) not in skipped:
            yield from ((getattr(node, "lineno", 0), name) for name in imported(node))


def test_the_package_has_only_the_parts_that_are_named() -> None:
    assert {part_of(path) for path in FILES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_imports_point_downwards(part: str) -> None:
    allowed = MAY_IMPORT[part] | NO_PART | {part}
    wrong = [
        f"{short(path)}:{line} imports {name}"
        for path in FILES
        if part_of(path) == part
        for line, name in imports(TREES[path])
        if name.split(".")[0] == "minivllm" and [*name.split("."), "minivllm"][1] not in allowed
    ]
    assert not wrong


def test_text_and_core_do_not_know_each_other() -> None:
    assert "text" not in MAY_IMPORT["core"] and "core" not in MAY_IMPORT["text"]


def test_the_engine_reaches_torch_through_core_startup_only() -> None:
    allowed = {"minivllm.core.startup", "minivllm.core.process", "minivllm.core.engine_core"}
    wrong = [
        f"{short(path)}:{line} imports {name}"
        for path in FILES
        if part_of(path) == "engine"
        for line, name in imports(TREES[path])
        if name.startswith("minivllm.core") and name not in allowed
    ]
    assert not wrong


def test_no_torch_where_none_is_needed() -> None:
    wrong = [
        f"{short(path)}:{line} imports {name}"
        for path in FILES
        if short(path).startswith(NO_TORCH)
        for line, name in imports(TREES[path])
        if name.split(".")[0] in HEAVY and name.split(".")[0] not in IMPORTS_IN_FUNCTIONS.get(short(path), set())
    ]
    assert not wrong


def test_one_folder_needs_transformers() -> None:
    """Importing it takes seconds, so only a model that needs it does. A tokenizer in an old form has a way of its own."""
    heavy = ("transformers", "minivllm.model.transformers")
    needs = {short(path) for path, tree in TREES.items() for _, name in imports(tree) if f"{name}.".startswith(heavy)}
    assert all(name.startswith("model/transformers/") for name in needs)


def test_imports_stand_at_the_top() -> None:
    found = {
        short(path): {name.split(".")[0] for node in ast.walk(tree) if isinstance(node, FUNCTION) for _, name in imports(node)}
        for path, tree in TREES.items()
    }
    assert {path: names for path, names in found.items() if names} == IMPORTS_IN_FUNCTIONS


def test_the_environment_is_read_in_one_place() -> None:
    readers = {"config/env.py", "worker/devices/cpu.py"}
    wrong = [
        short(path)
        for path, tree in TREES.items()
        if short(path) not in readers
        and any(isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv") for n in ast.walk(tree))
    ]
    assert not wrong


def test_every_option_is_read_somewhere() -> None:
    """An option is there when what it sets works. Some are used up by config.resolve."""
    read = {node.attr for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used_up = {"revision", "hf_overrides", "generation_config", "runner", "convert", "pooler_config", "kv_transfer_config"}
    assert not set(AsyncEngineArgs.options()) - read - used_up


def test_files_are_short() -> None:
    lengths = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {name: n for name, n in lengths.items() if n > MAX_FILE_LINES}


def test_functions_are_short() -> None:
    assert not [
        f"{short(path)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTION) and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]


def test_classes_are_small() -> None:
    wrong = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = [m.name for m in node.body if isinstance(m, FUNCTION) and not m.name.startswith("_")]
                if len(methods) > MAX_PUBLIC_METHODS:
                    wrong.append(f"{short(path)} {node.name}: {len(methods)} public methods")
                if len(attributes := own_attributes(node)) > MAX_ATTRIBUTES:
                    wrong.append(f"{short(path)} {node.name}: {len(attributes)} attributes")
    assert not wrong


def own_attributes(node: ast.ClassDef) -> set[str]:
    """Names that methods assign on self. Fields of a record (dataclass, struct, wire type) are its purpose and do not count."""
    found = set()
    for inner in ast.walk(node):
        targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target] if isinstance(inner, ast.AnnAssign) else []
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found.add(target.attr)
    return found


def test_folders_are_small() -> None:
    folders = {path.parent for path in FILES}
    sizes = {short(folder): len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) for folder in folders}
    assert not {name: n for name, n in sizes.items() if n > MAX_FOLDER_FILES}


def test_every_module_says_what_it_is() -> None:
    assert not [short(path) for path, tree in TREES.items() if tree.body and not ast.get_docstring(tree)]


def test_examples_are_short() -> None:
    """Each shows one idea; fetching the demo model is a tool that README's commands need."""
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.iterdir() if path.is_file()}
    assert not {name: n for name, n in lengths.items() if n > MAX_EXAMPLE_LINES and name != "get_demo_model.py"}


def run_python(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


LIST_HEAVY = f"\nimport sys; print(*sorted({HEAVY | {'fastapi', 'huggingface_hub'}!r} & set(sys.modules)))"


def test_the_command_line_loads_nothing_heavy() -> None:
    assert run_python("import minivllm.entrypoints.cli.main, minivllm.entrypoints.cli.serve" + LIST_HEAVY) == []


def test_the_api_process_loads_neither_torch_nor_transformers() -> None:
    code = (
        "from minivllm.config import AsyncEngineArgs\n"
        "from minivllm.entrypoints.http import lifecycle\n"
        "from minivllm.entrypoints.http.app import build_app\n"
        "build_app(AsyncEngineArgs('model').server)"
    )
    assert run_python(code + LIST_HEAVY) == ["fastapi"]
