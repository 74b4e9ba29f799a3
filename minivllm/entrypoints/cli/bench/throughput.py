"""`minivllm bench throughput`: requests and tokens a second, offline, of many prompts given at once."""

import argparse
import time

from minivllm.entrypoints.cli.bench.datasets import add_dataset_options, make_samples
from minivllm.entrypoints.cli.bench.offline import add_engine_options, load_llm, write_json
from minivllm.messages.sampling_params import SamplingParams


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "minivllm bench throughput MODEL [options]"
    parser.description = "Measure how many requests and tokens a second the engine serves when all prompts are there at once."
    parser.add_argument("--input-len", type=int, metavar="N", help="Short for --random-input-len.")
    parser.add_argument("--output-len", type=int, metavar="N", help="Short for --random-output-len.")
    add_dataset_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> None:
    args.random_input_len = args.input_len or args.random_input_len
    args.random_output_len = args.output_len or args.random_output_len
    with load_llm(args) as llm:
        samples = make_samples(args, llm.get_tokenizer(), getattr(args, "seed", 0))
        params = [SamplingParams(temperature=0.0, max_tokens=sample.output_len, ignore_eos=True) for sample in samples]
        begin = time.perf_counter()
        outputs = llm.generate([sample.prompt for sample in samples], params, use_tqdm=not args.disable_tqdm)
        elapsed = time.perf_counter() - begin
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    figures = {
        "elapsed_time": elapsed,
        "num_requests": len(outputs),
        "total_num_tokens": num_prompt + num_output,
        "total_input_tokens": num_prompt,
        "total_output_tokens": num_output,
        "requests_per_second": len(outputs) / elapsed,
        "tokens_per_second": (num_prompt + num_output) / elapsed,
        "output_tokens_per_second": num_output / elapsed,
    }
    print(
        f"Throughput: {figures['requests_per_second']:.2f} requests/s, {figures['tokens_per_second']:.2f} total tokens/s, "
        f"{figures['output_tokens_per_second']:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {num_prompt}")
    print(f"Total num output tokens:  {num_output}")
    write_json(args.output_json, figures)
