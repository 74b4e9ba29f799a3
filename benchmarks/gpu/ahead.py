"""Which machine code does each Triton kernel become? Needs triton and torch, and no GPU.

    PYTHONPATH=. python benchmarks/gpu/ahead.py [--quick] [--write docs/gpu_kernels.md]

The ops are called as the server calls them, on small CPU tensors; a launch compiles its kernel for sm_80 and sm_90 with
the very constants and options of that launch, and computes nothing. Fails if a kernel does not compile, spills registers,
converts numbers in a slow way, or needs more shared memory than the device has. Other versions of triton than the one that
tiles were chosen with divide registers a little differently: there, some bytes may spill.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from specimens import Specimen, specimens
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes that one program may have
_MOST_SPILLED = 0 if triton.__version__.startswith("3.6.") else 160  # bytes a thread
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64", torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5", torch.int8: "i8", torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


@dataclass(slots=True)
class Launch:
    kernel: JITFunction
    arguments: list[Any]
    options: dict[str, int]


@dataclass(slots=True)
class Code:
    kernel: str
    specimen: str
    capability: int
    registers: int
    spilled: int  # bytes of stack
    shared: int  # bytes
    warps: int
    matrix: str  # which matrix instruction is in it
    slow: bool  # whether it turns fp16 into bf16, one by one in the unit that makes exponentials

    @property
    def fault(self) -> str:
        if self.spilled > _MOST_SPILLED:
            return f"spills {self.spilled} bytes"
        if self.slow:
            return "converts fp16 to bf16"
        return "too much shared memory" if self.shared > SHARED_MEMORY[self.capability] else ""


def launches_of(specimen: Specimen) -> list[Launch]:
    """What the specimen launches; nothing is run."""
    found: list[Launch] = []

    def note(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages") if name in kwargs}
        found.append(Launch(self, [*args, *kwargs.values()], options))

    run, JITFunction.run = JITFunction.run, note
    try:
        specimen.call()
    finally:
        JITFunction.run = run
    return found


def compile_for(launch: Launch, capability: int) -> Any:
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, (parameter, value) in enumerate(zip(launch.kernel.params, launch.arguments, strict=True)):
        name = parameter.name
        if parameter.is_constexpr or (type(value) is int and value == 1 and not parameter.do_not_specialize):
            signature[name] = "constexpr"
            constants[(index,)] = value
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + _TYPES[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)


def measure(specimen: str, launch: Launch, capability: int) -> Code:
    compiled = compile_for(launch, capability)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [_CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout  # fmt: skip
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # type: ignore[union-attr]
    ptx = compiled.asm["ptx"]
    matrix = next((name for name in ("tcgen05", "wgmma", "mma") if re.search(rf"\b{name}\S*\.(mma|sync)", ptx)), "")
    shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
    slow = "cvt.bf16.f16" in ptx or "cvt.rn.bf16.f16" in ptx
    return Code(launch.kernel.__name__, specimen, capability, int(registers), int(stack), shared, warps, matrix, slow)


def table(codes: list[Code], seconds: float) -> str:
    lines = [
        "# What the Triton kernels become",
        "",
        f"Written by `benchmarks/gpu/ahead.py --write` with triton {triton.__version__}: machine code of every kernel for",
        "representative launches, compiled ahead of time on a machine without a GPU. Registers and spilled bytes are per",
        "thread, shared memory per program. Nothing here was measured on a GPU. A test asserts that all fit and, with triton",
        "3.6, that none spills.",
        "",
        "| Kernel | Launch | sm | Registers | Spilled | Shared KiB | Warps | Matrix unit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in codes:
        lines.append(
            f"| {c.kernel} | {c.specimen} | {c.capability} | {c.registers} | {c.spilled} | {c.shared / 1024:.1f} | {c.warps} "
            f"| {c.matrix or '–'} |"
        )
    lines += ["", f"{len(codes)} pieces of machine code."]
    print(f"compiled in {seconds:.0f} s", file=sys.stderr)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one launch of each kind, as in the tests")
    parser.add_argument("--only", default="", help="launches with this in their name")
    parser.add_argument("--write", type=Path, help="file for the table; default: standard output")
    parser.add_argument("--capabilities", type=int, nargs="+", default=[80, 90])
    args = parser.parse_args()
    began, codes = time.monotonic(), []
    for specimen in specimens():
        if (args.quick and not specimen.quick) or args.only not in specimen.name:
            continue
        for launch in launches_of(specimen):
            for capability in args.capabilities:
                if capability >= specimen.capability:
                    code = measure(specimen.name, launch, capability)
                    codes.append(code)
                    print(
                        f"{'FAULT' if code.fault else 'ok'} {time.monotonic() - began:6.1f} {code}", file=sys.stderr, flush=True
                    )
    text = table(codes, time.monotonic() - began)
    if args.write:
        args.write.write_text(text, encoding="utf-8")
    else:
        print(text)
    faults = [f"{c.kernel} ({c.specimen}) on sm_{c.capability} {c.fault}" for c in codes if c.fault]
    sys.exit("\n".join(faults) if faults else None)


if __name__ == "__main__":
    main()
