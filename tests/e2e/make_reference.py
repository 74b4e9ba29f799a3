"""Write reference_smollm2.json: transformers' greedy continuation of every varied prompt in float32, with its margins.

python tests/e2e/make_reference.py MODEL_FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from varied_prompts import PROMPTS

NUM_TOKENS = 64


def reference_row(model: torch.nn.Module, prompt_ids: list[int]) -> dict:
    """Greedy tokens, their logprobs, and the gap to the runner-up at each position."""
    out = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids)),
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        eos_token_id=None,
    )
    logprobs = torch.stack(out.logits)[:, 0].float().log_softmax(-1)  # [NUM_TOKENS, vocab]
    top = logprobs.topk(2).values
    return {
        "prompt_token_ids": prompt_ids,
        "token_ids": out.sequences[0, len(prompt_ids) :].tolist(),
        "logprobs": [round(x, 5) for x in top[:, 0].tolist()],
        "margins": [round(x, 6) for x in (top[:, 0] - top[:, 1]).tolist()],
    }


def main() -> None:
    folder = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = []
    for number, prompt in enumerate(PROMPTS):
        rows.append(reference_row(model, tokenizer(prompt)["input_ids"]))
        print(f"{number + 1}/{len(PROMPTS)}: {len(rows[-1]['prompt_token_ids'])} tokens", file=sys.stderr)
    lines = ",\n".join(json.dumps(row) for row in rows)
    Path(__file__).with_name("reference_smollm2.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
