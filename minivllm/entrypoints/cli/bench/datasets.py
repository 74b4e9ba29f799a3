"""The prompts of a benchmark: random tokens, a ShareGPT file's conversations, or repeated prefixes. Same seed, same prompts."""

import argparse
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minivllm.errors import ConfigError
from minivllm.text.tokenizer import Tokenizer

_MIN_LENGTH, _MAX_PROMPT, _MAX_TOTAL = 4, 1024, 2048  # tokens of a ShareGPT sample, as in vLLM's benchmark


@dataclass(slots=True)
class Sample:
    prompt: str | list[int]
    prompt_len: int
    output_len: int

    def text(self, tokenizer: Tokenizer) -> str:
        return self.prompt if isinstance(self.prompt, str) else tokenizer.decode(self.prompt)


def add_dataset_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Data")
    add = group.add_argument
    add("--dataset-name", choices=DATASETS, default="random", help="Kind of prompts (default: %(default)s)")
    add("--dataset-path", metavar="FILE", help="ShareGPT file (JSON) for --dataset-name sharegpt.")
    add("--num-prompts", type=_count, default=1000, metavar="N", help="Requests in all (default: %(default)s)")
    add("--random-input-len", type=_count, default=1024, metavar="N", help="Tokens of a random prompt (default: %(default)s)")
    add("--random-output-len", type=_count, default=128, metavar="N", help="Output tokens of each (default: %(default)s)")
    add("--random-prefix-len", type=int, default=0, metavar="N", help="Tokens that all random prompts begin with, in addition.")
    add(
        "--random-range-ratio",
        type=float,
        default=0.0,
        metavar="X",
        help="Draw both lengths from len*(1-X) to len*(1+X), 0 <= X < 1 (default: %(default)s)",
    )
    add("--sharegpt-output-len", type=_count, metavar="N", help="Output tokens (default: as long as the file's answers)")
    add(
        "--prefix-repetition-prefix-len",
        type=int,
        default=256,
        metavar="N",
        help="Tokens of each prefix (default: %(default)s)",
    )
    add("--prefix-repetition-suffix-len", type=_count, default=256, metavar="N", help="Tokens after it (default: %(default)s)")
    add("--prefix-repetition-num-prefixes", type=_count, default=10, metavar="N", help="Prefixes (default: %(default)s)")
    add("--prefix-repetition-output-len", type=_count, default=128, metavar="N", help="Output tokens (default: %(default)s)")


def make_samples(args: argparse.Namespace, tokenizer: Tokenizer, seed: int) -> list[Sample]:
    """`args.num_prompts` samples. ConfigError if the options or the file cannot give them."""
    return DATASETS[args.dataset_name](args, tokenizer, random.Random(seed))


def random_samples(args: argparse.Namespace, tokenizer: Tokenizer, rng: random.Random) -> list[Sample]:
    ratio = args.random_range_ratio
    if not 0 <= ratio < 1:
        raise ConfigError(f"--random-range-ratio must be 0 or more and less than 1, got {ratio:g}.", param="random_range_ratio")
    ids = usable_ids(tokenizer)

    def length(mean: int) -> int:
        return max(1, rng.randint(int(mean * (1 - ratio)), int(mean * (1 + ratio))))

    prefix = rng.choices(ids, k=args.random_prefix_len)
    samples = []
    for _ in range(args.num_prompts):
        prompt = prefix + rng.choices(ids, k=length(args.random_input_len))
        samples.append(Sample(prompt, len(prompt), length(args.random_output_len)))
    return samples


def prefix_repetition_samples(args: argparse.Namespace, tokenizer: Tokenizer, rng: random.Random) -> list[Sample]:
    """Every prefix begins as many prompts as the others (give or take one), in mixed order."""
    ids = usable_ids(tokenizer)
    prefixes = [rng.choices(ids, k=args.prefix_repetition_prefix_len) for _ in range(args.prefix_repetition_num_prefixes)]
    prompts = [
        prefix + rng.choices(ids, k=args.prefix_repetition_suffix_len)
        for prefix in itertools.islice(itertools.cycle(prefixes), args.num_prompts)
    ]
    rng.shuffle(prompts)
    return [Sample(prompt, len(prompt), args.prefix_repetition_output_len) for prompt in prompts]


def sharegpt_samples(args: argparse.Namespace, tokenizer: Tokenizer, rng: random.Random) -> list[Sample]:
    """First turns of conversations that are neither very short nor long; again from the beginning if there are too few."""
    if args.dataset_path is None:
        raise ConfigError("--dataset-name sharegpt needs --dataset-path FILE.", param="dataset_path")
    try:
        content = json.loads(Path(args.dataset_path).expanduser().read_text(encoding="utf-8"))
        turns = [c["conversations"] for c in content if len(c["conversations"]) >= 2]
        pairs = [(str(turn[0]["value"]), str(turn[1]["value"])) for turn in turns]
    except OSError as e:
        raise ConfigError(f"cannot read --dataset-path {args.dataset_path}: {e.strerror}.", param="dataset_path") from e
    except (ValueError, KeyError, TypeError) as e:
        form = '[{"conversations": [{"value": …}, {"value": …}]}, …]'
        raise ConfigError(f"--dataset-path {args.dataset_path} is not of the form {form}.", param="dataset_path") from e
    rng.shuffle(pairs)
    found = list(itertools.islice(_fitting(pairs, args.sharegpt_output_len, tokenizer), args.num_prompts))
    if not found:
        raise ConfigError(f"--dataset-path {args.dataset_path} has no conversation of a usable length.", param="dataset_path")
    return list(itertools.islice(itertools.cycle(found), args.num_prompts))


DATASETS: dict[str, Callable[[argparse.Namespace, Tokenizer, random.Random], list[Sample]]] = {
    "random": random_samples,
    "sharegpt": sharegpt_samples,
    "prefix_repetition": prefix_repetition_samples,
}


def usable_ids(tokenizer: Tokenizer) -> list[int]:
    """All ids but those of added tokens, which may mean something to the server."""
    return [i for i in range(tokenizer.size) if i not in tokenizer.added_tokens]


def _fitting(pairs: list[tuple[str, str]], output_len: int | None, tokenizer: Tokenizer) -> Iterator[Sample]:
    for prompt, answer in pairs:
        prompt_len = len(tokenizer.encode(prompt))
        length = output_len or len(tokenizer.encode(answer))
        if prompt_len < _MIN_LENGTH or prompt_len > _MAX_PROMPT or prompt_len + length > _MAX_TOTAL:
            continue
        if output_len is not None or length >= _MIN_LENGTH:
            yield Sample(prompt, prompt_len, length)


def _count(text: str) -> Any:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
