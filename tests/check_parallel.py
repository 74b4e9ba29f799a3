"""Are answers those of one process, however the model is divided? Every family, by LLM and over HTTP, on processes and on Ray.

Run: python tests/check_parallel.py [--model FOLDER | --families llama2 qwen3 …] [--layouts tp2-pp2 …] [--backends mp ray]
     [--ways llm http]. Without --model: tiny models with random weights. Steps are short, blocks few, prompts begin alike.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from model.conftest import save
from model.families import FAMILIES
from real_server import flags_of
from scripted_core import make_tokenizer

from minivllm import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))  # it has a `served` of its own
from served import post, served

LAYOUTS = {
    "tp2": {"tensor_parallel_size": 2},
    "pp2": {"pipeline_parallel_size": 2},
    "tp2-pp2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    "dp2": {"data_parallel_size": 2},
    "dp2-tp2": {"data_parallel_size": 2, "tensor_parallel_size": 2},
    "ep2": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
}
OPTIONS = {"dtype": "float32", "cpu_threads": 1, "max_num_seqs": 6, "max_num_batched_tokens": 16, "block_size": 4,
           "num_gpu_blocks_override": 26, "max_model_len": 64}  # fmt: skip
SHARED = [7, 31, 5, 90, 44, 8, 61, 17, 2, 33]
PROMPTS = [[*SHARED, *range(10 + i, 20 + 2 * i)] for i in range(7)]
COUNT = 24  # tokens of each answer


def by_llm(folder: Path, options: dict[str, Any]) -> tuple[list[list[int]], float]:
    """Tokens, and how often somebody was preempted."""
    with LLM(str(folder), **OPTIONS, **options) as llm:
        params = SamplingParams(max_tokens=COUNT, ignore_eos=True, temperature=0)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
        preemptions = sum(metric.value for metric in llm.get_metrics() if metric.name == "minivllm:num_preemptions")
    return [output.outputs[0].token_ids for output in outputs], preemptions


def by_http(folder: Path, options: dict[str, Any]) -> list[list[int]]:
    with served(str(folder), *flags_of({**OPTIONS, **options})) as (_, port, _):
        body = {"prompt": PROMPTS, "max_tokens": COUNT, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
        return [choice["token_ids"] for choice in post(port, "/v1/completions", body)["choices"]]


def folders(args: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Path]]:
    if args.model is not None:
        yield args.model.name, args.model
        return
    tokenizer = make_tokenizer()
    for name in args.families:
        save(name, scratch / name, {"vocab_size": tokenizer.size})
        tokenizer.backend.save(str(scratch / name / "tokenizer.json"))
        yield name, scratch / name


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", type=Path)
    ap.add_argument("--families", nargs="+", default=list(FAMILIES))
    ap.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["tp2-pp2"])
    ap.add_argument("--backends", nargs="+", choices=("mp", "ray"), default=["mp", "ray"])
    ap.add_argument("--ways", nargs="+", choices=("llm", "http"), default=["llm", "http"])
    args = ap.parse_args()
    if "ray" in args.backends:
        ray.init(num_cpus=8, include_dashboard=False, object_store_memory=1 << 27)
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address  # for servers
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder in folders(args, Path(scratch)):
            expected, preemptions = by_llm(folder, {})
            found: dict[str, bool] = {"preempted": preemptions > 0}
            for layout in args.layouts:
                if layout == "ep2" and "num_experts" not in FAMILIES.get(name, ("", "", {}))[2]:
                    continue
                for backend in args.backends:
                    options = {**LAYOUTS[layout], "distributed_executor_backend": backend}
                    for way in args.ways:
                        tokens = by_llm(folder, options)[0] if way == "llm" else by_http(folder, options)
                        found[f"{layout} {backend} {way}"] = tokens == expected
            bad = [what for what, right in found.items() if not right]
            wrong += len(bad)
            print(f"{name}: {len(found) - len(bad)} of {len(found)} right", *bad, flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
