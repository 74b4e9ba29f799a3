"""Every Triton kernel under the interpreter against the reference; outputs, unused cache rows and table entries are poison."""

import importlib
import inspect
import itertools
from collections.abc import Iterable
from types import ModuleType

import pytest
import torch
from kernels.test_parity import (
    Case,
    coded_groups,
    distinct_logits,
    fp8_rows_cases,
    fp8_weight,
    functions,
    latent_case,
    logprobs_cases,
    paged_case,
    penalize_cases,
    poisoned,
    randn,
    random_groups,
    route_cases,
)
from torch import Tensor

from minivllm.kernels import OPS
from minivllm.kernels.codes import CODES

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FP8 = torch.float8_e4m3fn
TOLERANCE = {FP32: 2e-5, BF16: 1e-2, FP16: 2e-3}

types = pytest.mark.parametrize("dtype", (FP32, BF16, FP16), ids=str)


def compare(op: str, cases: Iterable[Case], dtype: torch.dtype, tolerance: float | None = None) -> None:
    torch.manual_seed(0)
    ours, reference = (importlib.import_module(f"minivllm.kernels.{family}.{op}") for family in ("triton", "reference"))
    for number, case in enumerate(cases):
        for actual, expected in zip(case(ours), case(reference), strict=True):
            bound = tolerance or TOLERANCE[dtype]
            torch.testing.assert_close(
                actual, expected, rtol=bound, atol=bound, equal_nan=True, msg=lambda text, n=number: f"case {n}: {text}"
            )


@pytest.mark.parametrize("op", OPS)
def test_families_share_functions_and_parameters(op: str) -> None:
    ours, plain = (importlib.import_module(f"minivllm.kernels.{family}.{op}") for family in ("triton", "reference"))
    for name, signature in functions(plain).items():
        assert list(inspect.signature(getattr(ours, name)).parameters) == list(signature.parameters)


# ---- attention


@types
def test_attention(dtype: torch.dtype) -> None:
    compare(
        "attention",
        [
            paged_case([], [], dtype=dtype),
            paged_case([1, 1, 1], [1, 17, 600], dtype=dtype, heads=3, kv_heads=1),  # divided in two
            paged_case([70, 1, 5, 0, 33], [150, 90, 5, 20, 33], dtype=dtype, heads=3, kv_heads=1, strided=True),
            paged_case([3, 1], [70, 130], dtype=dtype, heads=4, kv_heads=2, block_size=32, head_dim=128),
        ],
        dtype,
    )


@pytest.mark.parametrize("heads", [(1, 1), (14, 2), (71, 1)], ids=str)
def test_attention_with_any_number_of_heads(heads: tuple[int, int]) -> None:
    compare("attention", [paged_case([1, 3], [33, 21], dtype=FP32, heads=heads[0], kv_heads=heads[1])], FP32)


@pytest.mark.parametrize("head_dim", [16, 80, 128, 256])
def test_attention_with_any_head_size(head_dim: int) -> None:
    dtype = BF16 if head_dim == 128 else FP32
    compare("attention", [paged_case([9, 1], [40, 25], dtype=dtype, heads=2, kv_heads=1, head_dim=head_dim)], dtype)


@pytest.mark.parametrize("block_size", [1, 5, 128])
def test_attention_with_any_block_size(block_size: int) -> None:
    cases = (paged_case(q, [70, 130], dtype=FP32, heads=2, kv_heads=1, block_size=block_size) for q in ([3, 1], [1, 1]))
    compare("attention", cases, FP32)


@pytest.mark.parametrize("window", [1, 64, 700])
def test_attention_in_a_window(window: int) -> None:
    compare("attention", [paged_case([30, 1, 2, 1], [130, 200, 90, 5], dtype=FP32, heads=2, kv_heads=1, window=window)], FP32)
    compare("attention", [paged_case([1, 1], [1100, 3], dtype=FP32, heads=2, kv_heads=1, window=window)], FP32)


@pytest.mark.parametrize("queries", [[30, 1, 2], [1, 1, 1]], ids=("prompts", "decode"))
def test_attention_options(queries: list[int]) -> None:
    for options in ({"slopes": True}, {"soft_cap": 5.0, "sinks": True, "window": 40}):
        compare("attention", [paged_case(queries, [70, 520, 33], dtype=FP32, heads=3, kv_heads=1, **options)], FP32)


@pytest.mark.parametrize("queries", [[30, 1], [1, 1]], ids=("prompts", "decode"))
def test_attention_over_other_caches(queries: list[int]) -> None:
    for dtype, cache in ((BF16, FP16), (FP32, BF16)):
        compare("attention", [paged_case(queries, [130, 200], dtype=dtype, cache=cache, heads=2, kv_heads=1)], dtype)
    compare("attention", [paged_case(queries, [130, 600], dtype=BF16, cache=FP8, heads=2, kv_heads=1, scales=(0.5, 2.0))], BF16)


def test_attention_of_padding_is_zero() -> None:
    """Sequences without keys stand for nothing in a captured graph; their table entries are not read."""
    attention = importlib.import_module("minivllm.kernels.triton.attention")
    q, kv = torch.randn(3, 4, 64), torch.randn(2, 50, 2, 16, 64)
    tables = torch.full((3, 50), 2**30, dtype=torch.int32)
    tables[1, :40] = torch.randperm(50)[:40]
    starts, contexts = torch.arange(4, dtype=torch.int32), torch.tensor([0, 640, 0], dtype=torch.int32)
    for sinks in (None, torch.ones(4)):
        out = attention.paged_attention(q, kv, tables, starts, contexts, 0.125, poisoned(3, 4, 64, dtype=FP32), sinks=sinks)
        assert torch.equal(out[[0, 2]], torch.zeros(2, 4, 64)) and out[1].isfinite().all()


@pytest.mark.parametrize("dtype", (FP32, BF16), ids=str)
def test_latent_attention(dtype: torch.dtype) -> None:
    compare(
        "attention",
        [
            latent_case([], [], dtype=dtype),
            latent_case([1, 1], [1, 530], dtype=dtype),  # divided in four
            latent_case([30, 1, 0, 3], [50, 5, 9, 3], dtype=dtype, rank=20, tail=4, heads=6, block_size=5),
            latent_case([1, 2], [40, 33], dtype=dtype, heads=70),
            latent_case([1, 1], [40, 33], dtype=dtype, cache=FP16),
        ],
        dtype,
    )


# ---- the others


@types
def test_kv_write(dtype: torch.dtype) -> None:
    def case(tokens: int, kv_heads: int, page: int, dim: int, cache: torch.dtype, scales: tuple[float, float]) -> Case:
        packed = randn(tokens, 2 * kv_heads + 1, dim, dtype=dtype) * 300
        num_blocks = 1 + 3 * tokens // page
        slots = torch.randperm(num_blocks * page)[:tokens]
        slots[1::5] = -1

        def run(kv_write: ModuleType) -> tuple[Tensor, ...]:
            kv = poisoned(2, num_blocks, kv_heads, page, dim, dtype=cache)
            k, v = packed[:, :kv_heads], packed[:, kv_heads : 2 * kv_heads]
            kv_write.write_kv(k, v, kv, slots, k_scale=scales[0], v_scale=scales[1])
            return (kv.float(),)

        return run

    shapes = ((0, 3, 16, 64), (1, 1, 1, 16), (20, 3, 16, 64), (9, 2, 7, 33))
    compare("kv_write", (case(*shape, dtype, (1.0, 1.0)) for shape in shapes), dtype)
    compare("kv_write", [case(9, 2, 16, 64, cache, (1.0, 1.0)) for cache in (FP32, BF16, FP16)], dtype)
    compare("kv_write", [case(9, 2, 16, 64, FP8, (0.5, 2.0))], dtype, 0.08)  # dividing may fall on the other neighbour


@types
def test_norm(dtype: torch.dtype) -> None:
    def case(rows: int, cols: int) -> Case:
        x, residual, weight = randn(rows, cols, dtype=dtype) * 3, randn(rows, cols, dtype=dtype), randn(cols, dtype=dtype)

        def run(norm: ModuleType) -> tuple[Tensor, ...]:
            total = residual.clone()
            given = norm.rms_norm(x, weight, 1e-6, out=poisoned(rows, cols, dtype=dtype))
            added = norm.add_rms_norm(x, total, weight, 1e-5), total.clone(), norm.add_layer_norm(x, total, weight, None, 1e-5)
            plus_one = (
                norm.rms_norm(x, weight, 1e-5, plus_one=True),
                norm.layer_norm(x, weight, residual[0], 1e-5, plus_one=True),
            )
            return norm.rms_norm(x, weight, 1e-5), given, *added, total, *plus_one, norm.layer_norm(x, None, None, 1e-5)

        return run

    heads, weight = randn(5, 4, 64, dtype=dtype), randn(2, 64, dtype=dtype)
    compare("norm", (case(rows, cols) for rows in (1, 3) for cols in (1, 63, 576)), dtype)
    compare(
        "norm", [lambda norm: (norm.rms_norm(heads[:, 1:3], weight[0], 1e-6), norm.rms_norm(heads[:0], weight[0], 1e-6))], dtype
    )
    compare("norm", [lambda norm: (norm.layer_norm(heads[:, 1:3], weight, None, 1e-6),)], dtype)


@types
def test_rotary(dtype: torch.dtype) -> None:
    def case(tokens: int, dim: int, rotary_dim: int, interleaved: bool) -> Case:
        qkv, angles = randn(tokens, 15 * dim, dtype=dtype), torch.rand(512, rotary_dim // 2) * 6
        cos_sin, positions = torch.cat((angles.cos(), angles.sin()), dim=1), torch.randint(0, 512, (tokens,))

        def run(rotary: ModuleType) -> tuple[Tensor, ...]:
            packed = qkv.clone().view(tokens, 15, dim)
            rotary.apply_rotary(packed[:, :9], packed[:, 9:12], positions, cos_sin, interleaved=interleaved)
            ends = packed[:, :, dim - rotary_dim :]
            rotary.apply_rotary(ends[:, :3], ends[:, 3:4], positions, cos_sin, interleaved=interleaved)
            return (packed,)

        return run

    shapes = ((0, 64, 64), (5, 64, 64), (3, 128, 32), (3, 80, 20))
    compare("rotary", (case(*shape, interleaved) for shape in shapes for interleaved in (False, True)), dtype)


@types
def test_activation(dtype: torch.dtype) -> None:
    edges = torch.tensor([[-200.0, -90.0, -20.0, -1e-4, 0.0, 1e-4, 20.0, 90.0, 200.0] + [1.0] * 9], dtype=dtype)

    def case(x: Tensor) -> Case:
        def run(activation: ModuleType) -> tuple[Tensor, ...]:
            out = poisoned(x.shape[0], x.shape[1] // 2, dtype=dtype)
            gelu = activation.gelu_and_mul
            alone = [activation.activate(x, kind) for kind in ("silu", "gelu", "gelu_tanh", "relu", "relu2")]
            return activation.silu_and_mul(x), activation.silu_and_mul(x, out), gelu(x), gelu(x, approximate="none"), *alone

        return run

    compare("activation", map(case, (edges, *(randn(r, 2 * c, dtype=dtype) * 4 for r in (0, 3) for c in (1, 77, 1536)))), dtype)


# ---- linear layers


@pytest.mark.parametrize("dtype", (FP32, BF16), ids=str)
def test_gemm_int8(dtype: torch.dtype) -> None:
    """The reference rounds x to 16 bits per row."""

    def case(k: int, n: int, m: int, biased: bool) -> Case:
        weight, bias = randn(n, k, dtype=dtype) * k**-0.5, randn(n, dtype=dtype) if biased else None
        x = randn(m, k + 5, dtype=dtype)
        return lambda gemm: (gemm.linear(x[:, :k], gemm.pack(weight), bias),)

    shapes = ((576, 96, 3, True), (63, 33, 17, False), (1, 1, 0, False), (100, 65, 70, True))
    compare("gemm_int8", (case(*of) for of in shapes), dtype, 1e-2)
    batch, broken = randn(2, 3, 64, dtype=dtype), torch.ones(4, 200, dtype=dtype)
    broken[1, 7], broken[2, 9] = torch.nan, torch.inf
    compare("gemm_int8", [lambda gemm: (gemm.linear(batch, gemm.pack(torch.eye(64, dtype=dtype))),)], dtype, 1e-2)
    compare("gemm_int8", [lambda gemm: (gemm.linear(broken, gemm.pack(broken[3:].repeat(3, 1))),)], dtype, 1e-2)


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 32), (4, 16), (8, 16)])
def test_gemm_grouped(bits: int, group: int) -> None:
    def case(k: int, n: int, m: int, biased: bool) -> Case:
        weight, bias, x = (
            random_groups(n, k, bits, group),
            randn(n, dtype=BF16) if biased else None,
            randn(m, k + 5, dtype=BF16),
        )
        return lambda gemm: (gemm.linear(x[:, :k], gemm.pack(*weight), bias),)

    shapes = ((576, 96, 3, True), (32, 33, 17, False), (96, 1, 0, False), (160, 70, 70, True))
    compare("gemm_grouped", (case(*of) for of in shapes), BF16, 2e-2)


@pytest.mark.parametrize("dtype", (FP32, BF16), ids=str)
def test_gemm_fp8(dtype: torch.dtype) -> None:
    def case(k: int, n: int, m: int, scales: str) -> Case:
        weight, bias, x = fp8_weight(n, k, scales), randn(n, dtype=dtype) if m % 2 else None, randn(m, k + 5, dtype=dtype)
        x[::4] = 0
        return lambda gemm: (gemm.linear(x[:, :k], gemm.pack(*weight, dtype), bias),)

    kinds = ("whole", "rows", "blocks", "blocks by row")
    compare("gemm_fp8", (case(300, 150, 3, scales) for scales in kinds), dtype)
    compare("gemm_fp8", [case(63, 33, 17, "rows"), case(1, 1, 0, "rows"), case(260, 70, 70, "blocks")], dtype)
    weight, broken = fp8_weight(5, 260, "blocks"), torch.ones(4, 260, dtype=dtype)
    broken[1, 7], broken[2, 259] = torch.nan, torch.inf
    compare("gemm_fp8", [lambda gemm: (gemm.linear(broken.view(2, 2, 260), gemm.pack(*weight, dtype)),)], dtype)
    compare("gemm_fp8", fp8_rows_cases(dtype), dtype)


@pytest.mark.parametrize("codes", CODES)
def test_gemm_grouped_with_codes(codes: str) -> None:
    weight, x, order = coded_groups(33, 96, codes), randn(5, 96, dtype=BF16), torch.randperm(96)
    compare("gemm_grouped", [lambda gemm: (gemm.linear(x, gemm.pack(*weight, order)),)], BF16, 2e-2)


# ---- experts


@pytest.mark.parametrize("dtype", (FP32, BF16), ids=str)
def test_moe(dtype: torch.dtype) -> None:
    def case(tokens: int, experts: int, top: int, hidden: int, size: int) -> Case:
        """Some experts get no token; one gets several blocks of them."""
        x, shares = randn(tokens, hidden, dtype=dtype), torch.rand(tokens, top)
        chosen = (
            torch.stack([torch.randperm(max(top, experts - 2))[:top] for _ in range(tokens)])
            if tokens
            else torch.zeros(0, top).long()
        )
        gate_up = randn(experts, 2 * size, hidden, dtype=dtype) * hidden**-0.5
        down = randn(experts, hidden, size, dtype=dtype) * size**-0.5
        biases = randn(experts, 2 * size, dtype=dtype), randn(experts, hidden, dtype=dtype)

        def run(moe: ModuleType) -> tuple[Tensor, ...]:
            packed = moe.pack(gate_up), moe.pack(down)
            limited = moe.mix(x, chosen, shares, *packed, *biases, limit=2.0)
            some_here = moe.mix(x, chosen.where(chosen > 1, experts), shares, *packed)
            return moe.mix(x, chosen, shares, *packed), moe.mix(x, chosen, shares, *packed, *biases), limited, some_here

        return run

    shapes = ((0, 4, 2, 32, 16), (1, 8, 2, 48, 40), (40, 4, 2, 64, 33))
    compare("moe", (case(*shape) for shape in shapes), dtype, 5e-5 if dtype == FP32 else 4e-2)


def test_routing() -> None:
    compare("moe", route_cases(FP32), FP32)


def test_sorting() -> None:
    """In one block or two; some experts have no pairs, and some pairs an expert that is not here."""
    moe = importlib.import_module("minivllm.kernels.triton.moe")
    for pairs, count in ((1, 3), (70, 9), (1030, 7)):
        experts = torch.randint(1, count + 1, (pairs,))
        order, starts = moe._sort(experts, count)
        assert torch.equal(order, experts.argsort(stable=True))
        assert starts.tolist() == [int((experts < expert).sum()) for expert in range(count + 1)]


# ---- sampling


def options_of(*values: tuple[float, ...]) -> Tensor:
    """Rows of temperature, top_k, top_p, min_p."""
    return torch.tensor(list(itertools.product(*values)), dtype=torch.float64)


@types
def test_the_token_is_that_of_the_reference(dtype: torch.dtype) -> None:
    def case(columns: int, options: Tensor) -> Case:
        seeds = torch.randint(-(2**63), 2**63 - 1, (len(options), 2))
        logits = distinct_logits(len(options), columns + 3, dtype)[:, :columns]
        logits[5::7, ::3] = -torch.inf
        logits[1, :], logits[3, columns // 2], logits[4, 0] = -torch.inf, torch.nan, torch.inf
        some = torch.randperm(len(options))[:3]
        masks = torch.randint(-(2**63), 2**63 - 1, (len(options), -(-columns // 64)))
        return lambda sampling: (
            sampling.choose(logits, None, options, seeds),
            sampling.choose(logits, some, options[some], seeds[some]),
            sampling.choose(logits, some, options[some], seeds[some], masks[some]),
        )

    options = options_of((0.0, 0.8), (0, 20), (1.0, 0.4), (0.0, 0.05))
    compare("sampling", (case(columns, options) for columns in ((65, 840) if dtype == FP32 else (840,))), dtype)
    equal, greedy = torch.zeros(3, 5000, dtype=dtype), options_of((0.0,) * 3, (0,), (1.0,), (0.0,))
    equal[1, 4000:] = equal[2, 4999] = 1
    seeds = torch.zeros(3, 2, dtype=torch.int64)
    compare("sampling", [lambda sampling: (sampling.choose(equal, None, greedy, seeds),)], dtype)
    compare("sampling", [lambda sampling: (sampling.choose(equal[:0], None, greedy[:0], seeds[:0]),)], dtype)
    compare("sampling", logprobs_cases(dtype), dtype)


def test_penalties() -> None:
    compare("sampling", penalize_cases(FP32), FP32)


def test_the_token_out_of_a_vocabulary() -> None:
    """Of several blocks, and of more candidates than are remembered."""
    options = torch.tensor([[0.8, 0, 1, 0], [1, 20, 1, 0], [1, 0, 0.9, 0], [1.5, 3000, 0.9, 0]], dtype=torch.float64)
    logits, seeds = distinct_logits(4, 16000, FP32) / 16, torch.randint(2**63 - 1, (4, 2))
    compare("sampling", [lambda sampling: (sampling.choose(logits, None, options, seeds),)], FP32)


def test_equal_logits_share_what_they_weigh() -> None:
    """Of ten equal ones, top-p 0.45 leaves five and top-k 4 four, and all of these come."""
    sampling = importlib.import_module("minivllm.kernels.triton.sampling")
    logits, seeds = torch.zeros(20, 12, dtype=BF16), torch.stack((torch.arange(20), torch.zeros(20, dtype=torch.int64)), dim=1)
    logits[:, 10:] = -torch.inf
    for k, top_p, expected in ((11, 0.45, 5), (4, 1.0, 4)):
        options = torch.tensor([[1.0, k, top_p, 0.0]] * 20, dtype=torch.float64)
        assert set(sampling.choose(logits, None, options, seeds).tolist()) == set(range(expected))
