"""`minivllm plan`: what a model would take of this machine, and how fast it would be, before anything is loaded."""

import argparse

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.entrypoints.cli.serve import engine_args_of
from minivllm.messages.plan import Plan

_GIB = 1024**3
_FAILED = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "minivllm plan MODEL [options]"
    parser.description = (
        "Say what `minivllm serve` with the same options would take of this machine, without loading the model."
    )
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help="As for `minivllm serve`.")
    AsyncEngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    engine_args = engine_args_of(args)
    from minivllm.engine.sync_engine import make_plan

    plan, config = make_plan(engine_args), engine_args.resolve()
    model = config.model
    form = f"{model.dtype}, {model.quantization}" if model.quantization else model.dtype
    lines = {"model": f"{config.spec.architecture} in {form}", **_describe(plan, config.scheduler.max_num_seqs)}
    print("\n".join(f"{name:<14} {text}" for name, text in lines.items()))
    return _FAILED if plan.problem else 0


def _describe(plan: Plan, max_num_seqs: int) -> dict[str, str]:
    worker, length = plan.worker, plan.max_model_len
    batch = max(1, min(int(plan.concurrency), max_num_seqs))
    lines = {"weights": f"{_gib(worker.weight_bytes)} of {_gib(worker.free_bytes)} that are free"}
    if plan.kv_bytes_per_token:
        lines |= {
            "KV cache": f"{_gib(plan.num_blocks * worker.kv_spec.bytes_per_block)}, {plan.kv_bytes_per_token:,} bytes a token",
            "tokens": f"{plan.num_tokens:,} in {plan.num_blocks:,} blocks of {plan.block_size}",
            "requests": f"{plan.concurrency:.1f} of {length:,} tokens at a time",
            "decoding": f"about {plan.decode_rate(0):,.1f} tokens/s for one request, {plan.decode_rate(length):,.1f} behind "
            f"{length:,} tokens (weights are multiplied at {worker.rates[0][1] / 1e9:.1f} GB/s)",
            "all together": f"about {plan.decode_rate(length, batch):,.0f} tokens/s for {batch} requests behind {length:,} "
            f"tokens, {plan.decode_rate(length // 10, batch):,.0f} behind {length // 10:,}",
        }
    return lines | ({"problem": plan.problem} if plan.problem else {})


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
