"""Real models over HTTP in float32 against transformers, if they are in the folder of models: folders and GGUF files."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from real_server import wait_until
from transformers.initialization import no_init_weights

from minivllm.config import EngineArgs
from minivllm.model.loading.gguf import GGUFSource

PROMPT = "The capital of France is"
NEW_TOKENS = 24
FLAGS = ("--dtype", "float32", "--max-model-len", "128", "--max-num-seqs", "1", "--kv-cache-memory-bytes", "64MiB")


def check(launch, path: Path, load: Callable[[], transformers.PreTrainedModel]) -> None:
    """`load`: transformers' model; done beside the start of the server."""
    wanted = {"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with launch(path, *FLAGS, "--served-model-name", "m", ready=False) as server:
        model = load()
        wait_until(lambda: server.get("/health")[0] == 200, 90, "a ready server")
        body = json.dumps({"model": "m", "prompt": PROMPT, **wanted}).encode()
        request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            (choice,) = json.load(reply)["choices"]
    prompt, new = choice["prompt_token_ids"], choice["token_ids"]
    with torch.inference_mode():
        best = model.eval()(torch.tensor([prompt + new])).logits[0].argmax(-1)
    assert len(new) == NEW_TOKENS and new == best[len(prompt) - 1 : -1].tolist()


@pytest.mark.parametrize("name", ["gemma270", "qwen05"])
def test_greedy_text(name, real_model, launch):
    folder = real_model(name)
    check(launch, folder, lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))


@pytest.mark.parametrize("name", ["smollm2", "gemma270", "qwen05", "qwen15"])
def test_greedy_text_of_a_gguf_file(name, real_model, launch):
    """Of type Q4_1, and three of Q4_K_M, which have five types of blocks: transformers with the weights unpacked."""
    path = real_model(f"{name}.gguf")
    check(launch, path, lambda: unpacked(path))


def unpacked(path: Path) -> transformers.PreTrainedModel:
    folder = path.with_suffix("")  # of the same model; else transformers reads the whole vocabulary of the file, slowly
    where = {} if folder.is_dir() else {"gguf_file": path.name}
    config = transformers.AutoConfig.from_pretrained(path.parent if where else folder, **where)
    source = GGUFSource(path, EngineArgs(str(path)).resolve().spec, torch.float32)
    config.tie_word_embeddings = "lm_head.weight" not in source.shapes()
    with no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    state = model.state_dict()
    for tensor in source.shapes():
        state[tensor].copy_(source.read(tensor))
    source.close()
    return model
