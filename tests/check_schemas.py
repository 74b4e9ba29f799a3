"""Does every answer keep to its schema? Two hundred schemas, several seeds, a temperature at which the model babbles.

Run: python tests/check_schemas.py <model folder> [--seeds 3] [--temperature 1.5] [--max-tokens 200] [--every 1]
"""

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path

from json_schemas import SCHEMAS, Schema
from jsonschema import Draft202012Validator

from minivllm import LLM, SamplingParams, StructuredOutputsParams

LONGEST_GAP = 34  # characters of white space between two tokens of JSON: a line break and its indentation
_STRING = re.compile(r'"(?:[^"\\]|\\.)*("|$)', re.DOTALL)


def fault(schema: Schema, text: str, reason: str) -> str | None:
    """What is wrong with an answer, or None."""
    gaps = [len(gap) for gap in re.findall(r"\s+", _STRING.sub('""', text))]
    if max(gaps, default=0) > LONGEST_GAP:
        return "lost in white space"
    if reason != "stop":
        return None if reason == "length" else reason
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    errors = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).iter_errors(value)
    return next((error.message for error in errors), None)


def check(llm: LLM, schemas: dict[str, Schema], seeds: int, temperature: float, max_tokens: int) -> Counter[str]:
    """Counts of finish reasons, of faults and of what could not be compiled; faults are printed."""
    counts: Counter[str] = Counter()
    jobs = [(name, seed) for name in schemas for seed in range(seeds)]
    prompts = [f"Give me an example of {name}, as JSON:\n" for name, _ in jobs]
    ways = {"temperature": temperature, "max_tokens": max_tokens}
    forms = {name: StructuredOutputsParams(json=schema) for name, schema in schemas.items()}
    params = [SamplingParams(seed=seed, structured_outputs=forms[name], **ways) for name, seed in jobs]
    for (name, seed), output in zip(jobs, llm.generate(prompts, params, use_tqdm=False), strict=True):
        answer = output.outputs[0]
        counts[answer.finish_reason or ""] += 1
        if (wrong := fault(schemas[name], answer.text, answer.finish_reason or "")) is not None:
            counts["faults"] += 1
            print(f"{name}, seed {seed}: {wrong}\n    {answer.text!r}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--every", type=int, default=1, help="take only every n-th schema")
    args = parser.parse_args()
    schemas = dict(list(SCHEMAS.items())[:: args.every])
    with LLM(str(args.model), max_model_len=1024) as llm:
        begin = time.perf_counter()
        counts = check(llm, schemas, args.seeds, args.temperature, args.max_tokens)
    print(f"{len(schemas)} schemas x {args.seeds} seeds in {time.perf_counter() - begin:.0f} s: {dict(counts)}")


if __name__ == "__main__":
    main()
