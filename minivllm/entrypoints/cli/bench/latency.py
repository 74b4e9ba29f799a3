"""`minivllm bench latency`: how long one batch of equal requests takes, offline, from prompts to last tokens."""

import argparse
import random
import statistics
import time

from tqdm import tqdm

from minivllm.entrypoints.cli.bench.datasets import usable_ids
from minivllm.entrypoints.cli.bench.figures import percentile
from minivllm.entrypoints.cli.bench.offline import add_engine_options, load_llm, write_json
from minivllm.messages.sampling_params import SamplingParams

PERCENTAGES = (10, 25, 50, 75, 90, 99)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "minivllm bench latency MODEL [options]"
    parser.description = "Measure the latency of one batch, offline. Prefix caching is off unless asked for."
    add = parser.add_argument
    add("--batch-size", type=int, default=8, metavar="N", help="Requests in the batch (default: %(default)s)")
    add("--input-len", type=int, default=32, metavar="N", help="Tokens of each prompt (default: %(default)s)")
    add("--output-len", type=int, default=128, metavar="N", help="Tokens of each output (default: %(default)s)")
    add("--num-iters-warmup", type=int, default=2, metavar="N", help="Runs before, not counted (default: %(default)s)")
    add("--num-iters", type=int, default=10, metavar="N", help="Runs that count (default: %(default)s)")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> None:
    with load_llm(args, enable_prefix_caching=False) as llm:
        ids, rng = usable_ids(llm.get_tokenizer()), random.Random(0)
        prompts = [rng.choices(ids, k=args.input_len) for _ in range(args.batch_size)]
        params = SamplingParams(temperature=0.0, max_tokens=args.output_len, ignore_eos=True)
        latencies = []
        for number in tqdm(range(args.num_iters_warmup + args.num_iters), desc="Runs", disable=args.disable_tqdm):
            begin = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            if number >= args.num_iters_warmup:
                latencies.append(time.perf_counter() - begin)
    figures = {
        "avg_latency": statistics.fmean(latencies),
        "latencies": latencies,
        "percentiles": {str(p): percentile(latencies, p) for p in PERCENTAGES},
    }
    print(f"Avg latency: {statistics.fmean(latencies):.4f} seconds")
    for p in PERCENTAGES:
        print(f"{p}% percentile latency: {percentile(latencies, p):.4f} seconds")
    write_json(args.output_json, figures)
