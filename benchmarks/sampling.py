"""What does choosing the tokens of one step cost? 64 requests x 49,152 vocabulary, bf16 logits, per way of sampling.

Run: python benchmarks/sampling.py [--rows 64] [--vocab 49152] [--threads N]
"""

import argparse
import time

import torch

from minivllm.kernels import ops_for
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, StepPlan
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling.sampler import Sampler

WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "top_k 20": SamplingParams(top_k=20),
    "top_p 0.9": SamplingParams(top_p=0.9),
    "min_p 0.05": SamplingParams(min_p=0.05),
    "top_k 50, top_p 0.9, t 0.7": SamplingParams(top_k=50, top_p=0.9, temperature=0.7),
    "greedy, penalties": SamplingParams(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5),
    "greedy, logit_bias": SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(range(100), 1.0)),
    "greedy, logprobs 0": SamplingParams(temperature=0.0, logprobs=0),
    "greedy, logprobs 5": SamplingParams(temperature=0.0, logprobs=5),
}
PROMPT, OUTPUT = 256, 64  # tokens that a request has when measured


def measure(params: SamplingParams, logits: torch.Tensor, repeats: int) -> list[float]:
    """Milliseconds of each repeat."""
    rows, vocab = logits.shape
    slots = RequestSlots(rows, PROMPT + OUTPUT, 16)
    sampler = Sampler(ops_for("cpu").sampling, slots, rows, 0, vocab)
    new = []
    for slot in range(rows):
        tokens = torch.randint(vocab, (PROMPT + OUTPUT,)).tolist()
        new.append(NewSlot(slot, f"r{slot}", tokens, PROMPT, 0, [0], params, [], []))
    plan = StepPlan(0, [], new, [])
    slots.apply(plan)
    sampler.start_step(plan)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        sampler.sample(logits, list(range(rows)))
        times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    # Probabilities fall with rank as those of a small model do: the best has about a fifth, the first hundred nine tenths.
    by_rank = -1.3 * torch.arange(1, args.vocab + 1).log()
    logits = torch.stack([by_rank[torch.randperm(args.vocab)] for _ in range(args.rows)]).bfloat16()
    print(f"{args.rows} rows x {args.vocab}, {args.threads} threads")
    print(f"{'':30}{'best ms':>10}{'median ms':>12}")
    with torch.inference_mode():
        for name, params in WAYS.items():
            times = measure(params, logits, args.repeats)
            print(f"{name:30}{times[0]:10.2f}{times[len(times) // 2]:12.2f}")


if __name__ == "__main__":
    main()
