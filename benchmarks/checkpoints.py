"""What does each format of quantized checkpoints cost a real model, and is it as transformers has it?

    python benchmarks/checkpoints.py MODEL [--formats awq ...]

The model's layers are rounded to the nearest by the writers of the tests, which is worse than what GPTQ or AWQ do with data.
For each format: perplexity of transformers in bfloat16 with the weights that were written, and of ours, which multiplies them
packed, as by perplexity.py; what ours is above that of the folder's own weights, and how far logprobs move.
"""

import argparse
import shutil
import sys
import tempfile
from math import exp
from pathlib import Path
from statistics import fmean

import torch
import transformers

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests")]

from model.quantization.test_checkpoints import write  # noqa: E402
from model.quantization.writers import AWQ, GPTQ, BitsAndBytes, Compressed, Float8  # noqa: E402
from perplexity import alone, ours, theirs, windows  # noqa: E402

FORMATS = {
    "gptq": GPTQ(group=64),
    "gptq, act-order": GPTQ(group=64, act_order=True),
    "gptq, 8 bits": GPTQ(bits=8, group=64),
    "awq": AWQ(64),
    "compressed-tensors, W4A16": Compressed(),
    "compressed-tensors, W8A8": Compressed(8, 0, activations=True),
    "compressed-tensors, FP8": Compressed(8, 0, "float", activations=True),
    "fp8": Float8(),
    "fp8, blocks of 64": Float8(64),
    "bitsandbytes, NF4": BitsAndBytes(),
    "bitsandbytes, FP4": BitsAndBytes("fp4"),
    "bitsandbytes, int8": BitsAndBytes("int8"),
}


def make(model: str, name: str, folder: Path) -> None:
    """The quantized checkpoint in folder/stored, and what it stands for in folder/plain."""
    with torch.inference_mode():
        reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        write(folder / "stored", FORMATS[name], reference)
    reference.to(torch.bfloat16).save_pretrained(folder / "plain")
    for path in Path(model).glob("*.json"):
        if not (folder / "stored" / path.name).exists() and "index" not in path.name:
            shutil.copy(path, folder / "stored")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    args = ap.parse_args()
    prompts, dtype = windows(args.model), "bfloat16"
    first = alone(ours, args.model, dtype, {}, prompts)
    print(f"bfloat16: {exp(-fmean(first)):.3f}")
    print("| format | transformers | ours | increase | mean change |\n|---|---|---|---|---|")
    for name in args.formats:
        with tempfile.TemporaryDirectory() as folder:
            alone(make, args.model, name, Path(folder))
            reference = alone(theirs, f"{folder}/plain", dtype, prompts)
            found = alone(ours, f"{folder}/stored", dtype, {}, prompts)
        moved = fmean(abs(a - b) for a, b in zip(first, found, strict=True))
        increase = 100 * (exp(fmean(first) - fmean(found)) - 1)
        both = " | ".join(f"{exp(-fmean(each)):.3f}" for each in (reference, found))
        print(f"| {name} | {both} | {increase:+.1f} % | {moved:.3f} |", flush=True)


if __name__ == "__main__":
    main()
