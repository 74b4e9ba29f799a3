"""Is a text as likely to us as to transformers, and what does each form of the weights cost?

    python benchmarks/perplexity.py MODEL [MODEL ...] [--forms '{}' '{"quantization": "int8"}'] [--no-transformers]

MODEL is a folder or a GGUF file, which transformers unpacks. A form is a set of options of `LLM`; increases are relative to the
first. The text is of 1881, in windows of 512 tokens.
"""

import argparse
import gc
import json
from math import exp
from pathlib import Path
from typing import Any

import torch
import transformers

from minivllm import LLM, SamplingParams

TEXT = Path(__file__).resolve().parent.parent / "tests/model/quantization/public_domain.txt"
WINDOW = 512


def windows(llm: LLM) -> list[list[int]]:
    ids = llm.get_tokenizer().encode(TEXT.read_text(encoding="utf-8"))
    return [ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW) if len(ids) - at > 1]


def ours(model: str, dtype: str, form: dict[str, Any]) -> tuple[float, list[list[int]]]:
    llm = LLM(model, dtype=dtype, max_model_len=WINDOW + 8, max_num_seqs=2, enable_prefix_caching=False, **form)
    prompts = windows(llm)
    scored = llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0), use_tqdm=False)
    found = [
        entry[token].logprob
        for one in scored
        for token, entry in zip(one.prompt_token_ids, one.prompt_logprobs, strict=True)
        if entry
    ]
    llm.shutdown()
    del llm
    gc.collect()
    return exp(-sum(found) / len(found)), prompts


@torch.inference_mode()
def theirs(model: str, dtype: str, prompts: list[list[int]]) -> float:
    path = Path(model)
    where = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
    reference = transformers.AutoModelForCausalLM.from_pretrained(where[0], dtype=getattr(torch, dtype), **where[1])
    total, count = 0.0, 0
    for ids in prompts:
        logprobs = reference(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
        total += float(logprobs.gather(1, torch.tensor(ids[1:])[:, None]).double().sum())
        count += len(ids) - 1
    del reference
    gc.collect()
    return exp(-total / count)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="+", metavar="MODEL")
    ap.add_argument("--dtype", default="bfloat16")
    ap.add_argument("--forms", nargs="+", type=json.loads, default=[{}], metavar="JSON")
    ap.add_argument("--no-transformers", action="store_true")
    args = ap.parse_args()
    print("| model | form | perplexity | transformers | against it | against the first form |\n|---|---|---|---|---|---|")
    for model in args.models:
        first, reference = 0.0, 0.0
        for number, form in enumerate(args.forms):
            found, prompts = ours(model, args.dtype, form)
            if number == 0:
                first = found
                reference = 0.0 if args.no_transformers else theirs(model, args.dtype, prompts)
            said = ", ".join(f"{name}={value}" for name, value in form.items()) or args.dtype
            against = f"{reference:.4f} | {100 * (found / reference - 1):+.3f} %" if reference and number == 0 else " | "
            print(f"| {Path(model).name} | {said} | {found:.4f} | {against} | {100 * (found / first - 1):+.2f} % |", flush=True)


if __name__ == "__main__":
    main()
