"""Is a text as likely to us as to transformers, and what does each form of the weights cost?

    python benchmarks/perplexity.py MODEL [MODEL ...] [--forms '{}' '{"quantization": "int8"}'] [--only ours | transformers]

MODEL is a folder or a GGUF file, which transformers unpacks. A form is a set of options of `LLM`. Perplexity and logprobs of
each line are compared with those of the first line with the same tokens. The text is of 1881, in windows of 512 tokens. Each
line is made by a process of its own, which has the memory for itself.
"""

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers

from minivllm import LLM, SamplingParams
from minivllm.text.tokenizer import load_tokenizer

TEXT = Path(__file__).resolve().parent.parent / "tests/model/quantization/public_domain.txt"
WINDOW = 512


def windows(model: str) -> list[list[int]]:
    ids = load_tokenizer(model).encode(TEXT.read_text(encoding="utf-8"))
    return [ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW) if len(ids) - at > 1]


def ours(model: str, dtype: str, form: dict[str, Any], prompts: list[list[int]]) -> list[float]:
    """Logprobs of all tokens but the first of each window."""
    llm = LLM(model, dtype=dtype, max_model_len=WINDOW + 8, max_num_seqs=2, enable_prefix_caching=False, **form)
    scored = llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0), use_tqdm=False)
    llm.shutdown()
    return [
        entry[token].logprob
        for one in scored
        for token, entry in zip(one.prompt_token_ids, one.prompt_logprobs, strict=True)
        if entry
    ]


@torch.inference_mode()
def theirs(model: str, dtype: str, prompts: list[list[int]]) -> list[float]:
    path, found = Path(model), []
    where, file = (path.parent, path.name) if path.is_file() else (path, None)
    reference = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=getattr(torch, dtype), gguf_file=file)
    for ids in prompts:
        logprobs = reference(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
        found += logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return found


def alone(function: Any, *args: Any) -> list[float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found: list[float] = pool.submit(function, *args).result()
    return found


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="+", metavar="MODEL")
    ap.add_argument("--dtype", default="bfloat16")
    ap.add_argument("--forms", nargs="+", type=json.loads, default=[{}], metavar="JSON")
    ap.add_argument("--only", choices=["ours", "transformers"])
    args = ap.parse_args()
    print("| model | form | perplexity | against the first | mean change of a logprob |\n|---|---|---|---|---|")
    first: list[float] = []
    known: list[list[int]] = []
    for model in args.models:
        prompts = windows(model)
        first, known = (first if prompts == known else []), prompts
        lines = [(f"transformers, {args.dtype}", theirs, (model, args.dtype, prompts))] if args.only != "ours" else []
        for form in args.forms if args.only != "transformers" else []:
            said = ", ".join([args.dtype, *(f"{name}={value}" for name, value in form.items())])
            lines.append((said, ours, (model, args.dtype, form, prompts)))
        for said, function, values in lines:
            found = alone(function, *values)
            first = first or found
            increase = 100 * (exp(fmean(first) - fmean(found)) - 1)
            moved = fmean(abs(a - b) for a, b in zip(first, found, strict=True))
            print(f"| {Path(model).name} | {said} | {exp(-fmean(found)):.4f} | {increase:+.3f} % | {moved:.4f} |", flush=True)


if __name__ == "__main__":
    main()
