"""Choice of the kernel family and the errors of the compiled one."""

import importlib
import subprocess
import sys

import pytest
import torch

from minivllm.kernels import extension_error, ops_for

compiled = pytest.mark.skipif(extension_error() is not None, reason="the extension minivllm._cpu is not built")


def test_reference_on_request_and_on_other_devices() -> None:
    assert ops_for("cpu", use_extension=False).name == "reference"
    assert ops_for("meta").name == "reference"


def test_missing_extension_falls_back_with_a_warning() -> None:
    code = (
        "import sys, logging; logging.basicConfig(); sys.modules['minivllm._cpu'] = None\n"
        "from minivllm.kernels import ops_for; print(ops_for('cpu').name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "reference\n"
    assert "torch reference (slow); the compiled extension is not available" in done.stderr


@compiled
def test_unknown_instruction_set_is_refused() -> None:
    extension = importlib.import_module("minivllm._cpu")
    with pytest.raises(ValueError, match="not available on this CPU: mmx"):
        extension.set_isa("mmx")
    assert extension.isa() in extension.available_isas()


@compiled
def test_wrong_arguments_are_refused() -> None:
    ops = ops_for("cpu")
    x, weight = torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(8, 64, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="bfloat16"):
        ops.gemm.linear(x.float(), ops.gemm.pack(weight))
    with pytest.raises(ValueError, match="does not fit"):
        ops.gemm.linear(x[:, :32], ops.gemm.pack(weight))
    with pytest.raises(ValueError, match="out must be contiguous"):
        ops.norm.rms_norm(x, weight[0], 1e-6, out=torch.empty(2, 64))
    with pytest.raises(ValueError, match="does not fit x"):
        ops.norm.rms_norm(x, weight[0, :32], 1e-6)
    starts, lengths = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    kv = torch.zeros(2, 1, 1, 16, 64, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="block_tables must be int32"):
        ops.attention.paged_attention(x[:, None], kv, torch.zeros(1, 1, dtype=torch.int64), starts, lengths, 1.0)


@compiled
def test_out_of_range_rows_are_refused() -> None:
    gemm = ops_for("cpu").gemm
    packed = gemm.pack(torch.ones(8, 64, dtype=torch.bfloat16))
    with pytest.raises(IndexError, match="8 rows"):
        gemm.rows(packed, torch.tensor([8]))
    with pytest.raises(IndexError, match="8 rows"):
        gemm.rows(packed, torch.tensor([-1]))


def test_triton_on_cuda() -> None:
    pytest.importorskip("triton")
    assert ops_for("cuda:0").name == "triton"
