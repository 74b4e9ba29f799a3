"""Real models in float32 against transformers, if they are in the folder of models."""

import gc

import pytest
import torch
import transformers

from minivllm import LLM, SamplingParams

PROMPT = "The capital of France is"
NEW_TOKENS = 24


@pytest.mark.parametrize("name", ["gemma270", "qwen05"])
def test_greedy_text(name, real_model):
    folder = real_model(name)
    llm = LLM(str(folder), dtype="float32", max_model_len=128, cpu_threads=1, max_num_seqs=1)
    result = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True))[0]
    del llm
    gc.collect()
    prompt, new = list(result.prompt_token_ids), list(result.outputs[0].token_ids)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        best = model(torch.tensor([prompt + new])).logits[0].argmax(-1)
    assert len(new) == NEW_TOKENS and new == best[len(prompt) - 1 : -1].tolist()
