"""Write models.md from a run of the tests of all families: python docs/write_models.py

It refuses if one of them fails. That the page is up to date is a test.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import transformers

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from model.families import FAMILIES  # noqa: E402
from model.gguf_blocks import error_kept_packed  # noqa: E402
from model.gguf_models import ROWS  # noqa: E402
from model.quantization.test_checkpoints import OF_OTHER_SHAPES, WRITERS  # noqa: E402
from model.quantization.test_online import ROUNDING  # noqa: E402
from model.test_transformers import SHOWN  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

from minivllm.config import ModelSpec  # noqa: E402
from minivllm.config.hf.registry import has_family  # noqa: E402
from minivllm.model.loading.gguf_blocks import FORMATS  # noqa: E402
from minivllm.model.registry import ARCHITECTURES  # noqa: E402

HEAD = """\
# Models

Each row of the table is a test: transformers writes a tiny random checkpoint of the configuration, and the worker runs
it in float32 in batches, in chunks, with shuffled blocks and with blocks shared between two requests. Greedy tokens are the
same as transformers', and the logprobs of the whole vocabulary differ by less than 2e-4 at every position. `with` is what the
configuration has that a plain Llama has not; `GGUF`, the architecture of a GGUF file of the same weights that was equal too.

`rounded` names forms of `--quantization`: at the median position int8 moves the logprobs of each of these models by less than
10 % of what they differ between positions, and with the others they are those of weights rounded likewise. `quantized` names
quantized checkpoints that gave the logprobs of the weights they stand for. The layers that do this are those of all families,
but no more than named was tested: an empty field says neither yes nor no.

This page is written by `docs/write_models.py`, which runs those tests.

| architecture | for example | tested as | with | rounded | quantized | GGUF |
|---|---|---|---|---|---|---|
"""
EXAMPLES = {
    "BloomForCausalLM": "BLOOM",
    "CohereForCausalLM": "Command R",
    "Cohere2ForCausalLM": "Command R7B, Command A",
    "DeepseekV2ForCausalLM": "DeepSeek V2, V2-Lite",
    "DeepseekV3ForCausalLM": "DeepSeek V3, R1",
    "Ernie4_5ForCausalLM": "ERNIE 4.5 0.3B",
    "Ernie4_5_MoeForCausalLM": "ERNIE 4.5 21B-A3B",
    "Exaone4ForCausalLM": "EXAONE 4",
    "FalconForCausalLM": "Falcon, Falcon 2, Falcon-RW",
    "GPT2LMHeadModel": "GPT-2",
    "GPTJForCausalLM": "GPT-J",
    "GPTNeoXForCausalLM": "GPT-NeoX, Pythia",
    "GemmaForCausalLM": "Gemma",
    "Gemma2ForCausalLM": "Gemma 2",
    "Gemma3ForCausalLM": "Gemma 3 (text)",
    "GlmForCausalLM": "GLM-4-9B",
    "Glm4ForCausalLM": "GLM-4-0414",
    "Glm4MoeForCausalLM": "GLM-4.5",
    "GptOssForCausalLM": "gpt-oss, with weights in bfloat16 or MXFP4",
    "GraniteForCausalLM": "Granite 3",
    "GraniteMoeForCausalLM": "Granite 3 MoE",
    "LlamaForCausalLM": "Llama 2, 3, 3.1, 3.2, SmolLM2",
    "MinistralForCausalLM": "Ministral",
    "MistralForCausalLM": "Mistral",
    "MixtralForCausalLM": "Mixtral",
    "MptForCausalLM": "MPT",
    "NemotronForCausalLM": "Nemotron, Minitron",
    "OPTForCausalLM": "OPT, but for 350M",
    "OlmoForCausalLM": "OLMo",
    "Olmo2ForCausalLM": "OLMo 2",
    "Olmo3ForCausalLM": "OLMo 3",
    "OlmoeForCausalLM": "OLMoE",
    "PhiForCausalLM": "Phi 1.5, Phi 2",
    "Phi3ForCausalLM": "Phi 3, 3.5, 4, 4-mini",
    "PhimoeForCausalLM": "Phi 3.5 MoE",
    "Qwen2ForCausalLM": "Qwen 2, Qwen 2.5",
    "Qwen2MoeForCausalLM": "Qwen 1.5 MoE, Qwen 2 MoE",
    "Qwen3ForCausalLM": "Qwen 3",
    "Qwen3MoeForCausalLM": "Qwen 3 MoE",
    "SeedOssForCausalLM": "Seed-OSS",
    "SmolLM3ForCausalLM": "SmolLM3",
    "StableLmForCausalLM": "StableLM, StableLM 2",
    "Starcoder2ForCausalLM": "StarCoder 2",
}
# The same under another name.
ALIASES = {"PhiMoEForCausalLM": "PhimoeForCausalLM"}
NOTES = """
## What to know

- **Rope scaling that depends on the length** (dynamic, longrope) is chosen once, by `--max-model-len`: keys that are in the
  cache cannot change when their sequence grows. A Phi 3 with 128k positions that is only to see short texts answers best with
  `--max-model-len 4096`. For Phi 3.5 MoE transformers takes the short factors at any length; here they are as with Phi 3.
- **Sliding windows** limit what attention reads, not yet what the cache keeps.
- **Mixtures of experts**, latent attention and clipped projections run operation by operation: the log says which operation
  has no native form. All else is recorded and replayed natively.
- **`--quantization`** of an ordinary checkpoint leaves experts and routers as they are.
- **Latent attention** caches one vector a token (DeepSeek V3: 576 numbers a layer), not keys and values.
- Refused with a reason: OPT-350M (it normalises after its layers), BLOOM with `apply_residual_connection_post_layernorm`, MPT
  without ALiBi or with qk_ln.
"""

OTHERS = """
## All others

A causal language model that is not in the table runs by transformers' modelling code (`--model-impl auto`, or `transformers`
for any model, also those above): with the attention, the paged cache, the linear layers and embeddings, and the loader that are
here. So it is batched, chunked, preempted, cached by prefix and quantized like the others. `--tensor-parallel-size` divides
attention and feed-forward layers where transformers has a plan that is Llama's; each worker has the whole of the rest, experts
among it. Operations run one by one, by torch, and experts as transformers computes them: SmolLM2-135M in bfloat16 runs about
half as fast on two cores as by our family (`minivllm bench throughput MODEL --model-impl transformers`). Before it serves, a
model shows on two short texts that it gives in a batch what it gives by transformers alone; one that does not is refused. Code
that comes with a model runs only with `--trust-remote-code`. GGUF files, pooling and pipeline stages need a family.

`docs/survey_transformers.py` makes a tiny random model of each architecture that transformers has, and lets it go through the
test of the table above, in float32:

| | architectures |
|---|---|
"""


def others() -> str:
    """What the survey found for architectures without a family. Those in the tests are named with an example."""
    results = json.loads((REPOSITORY / "docs" / "transformers_models.json").read_text())
    found: dict[str, list[str]] = {}
    for model_type, result in results.items():
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
        if not has_family(architecture):
            example = f" ({SHOWN[model_type]})" if model_type in SHOWN else ""
            result = re.sub(r"^failed: .*| \(relative error .*\)|\.$", "", result) or "not tried: no tiny model of it was made"
            found.setdefault(result, []).append(f"`{architecture}`{example}")
    rows = sorted(found.items(), key=lambda row: (row[0] != "equal", -len(row[1]), row[0]))
    return OTHERS + "".join(f"| {result} | {', '.join(sorted(set(names)))} |\n" for result, names in rows)


GGUF_TYPES = """
## GGUF files

A GGUF file takes the place of a folder: `minivllm serve model.gguf`. Configuration, tokenizer (byte-level BPE or SentencePiece)
and chat template are read from it. A model in several files, as gguf-split names them (`name-00001-of-00003.gguf`), is named by
the first of them, or by a folder with nothing else; the first has all that is not weights.

In bfloat16, and on a GPU in any type, matrices stay packed in memory and are multiplied packed: integer values of 4 or 8 bits
with a scale and a least value in 16 bits for each group. Projections that are multiplied together take the larger form of
theirs. Otherwise, and with `--quantization`, they are unpacked, to exactly what the `gguf` package makes of them. The last
column is the error of what is kept packed: root mean square against that package's weights, relative to them; rounding to
bfloat16 makes 2e-03.

| type | kept as | error |
|---|---|---|
| F32, F16, BF16 | the type of the activations | 0 |
"""


def text() -> str:
    specs = {name: spec_of(name) for name in FAMILIES}
    lines = []
    for architecture in sorted(ARCHITECTURES, key=str.lower):
        if architecture in ALIASES:
            continue
        named = [name for name, spec in specs.items() if spec.architecture == architecture]
        for number, name in enumerate(named):
            first = f"| `{architecture}` | {EXAMPLES[architecture]} |" if number == 0 else "| | |"
            gguf = ", ".join(f"`{row.split()[0]}`" for row, (family, _) in ROWS.items() if family == name)
            rounded, stored = (", ".join(forms) for forms in quantizations(architecture, number))
            lines.append(f"{first} {name} | {', '.join(features(specs[name]))} | {rounded} | {stored} | {gguf} |")
    return HEAD + "\n".join(lines) + "\n" + NOTES + gguf_types() + others()


def quantizations(architecture: str, row: int) -> tuple[list[str], list[str]]:
    """Rounded on loading, and stored: what tests run with. But for int8 they have one model of an architecture."""
    tested = {
        "LlamaForCausalLM": WRITERS,
        "Qwen3MoeForCausalLM": OF_OTHER_SHAPES,
        "BloomForCausalLM": OF_OTHER_SHAPES,
        "GptOssForCausalLM": ["mxfp4"],
    }
    stored = list(dict.fromkeys(name.partition(",")[0] for name in tested.get(architecture, ())))
    rounded = list(ROUNDING) if architecture == "LlamaForCausalLM" else []
    return (["int8", *rounded], stored) if row == 0 else (["int8"], [])


def gguf_types() -> str:
    lines = []
    for kind, known in FORMATS.items():
        error = error_kept_packed(kind)
        lines.append(f"| {kind} | {known.form.bits} bits, groups of {known.form.group} | {f'{error:.0e}' if error else 0} |")
    return GGUF_TYPES + "\n".join(lines) + "\n"


def spec_of(name: str) -> ModelSpec:
    config_class, model_class, values = FAMILIES[name]
    config = getattr(transformers, config_class)(**values).to_dict()
    return ModelSpec.from_hf({**config, "architectures": [model_class]})


def features(spec: ModelSpec) -> list[str]:
    """What of the spec is not as in a plain Llama."""
    ropes = {layer.rope for layer in spec.layers}
    windows = {layer.window for layer in spec.layers}
    turned = ropes - {None}
    found = {
        "tied embeddings": spec.tie_word_embeddings,
        "biases": spec.qkv_bias or spec.mlp_bias or spec.o_bias,
        "LayerNorm": spec.norm == "layer",
        "norm weights about 0": spec.norm_plus_one,
        "norms after layers": spec.post_norms and not spec.pre_norms,
        "norms before and after layers": spec.post_norms and spec.pre_norms,
        "normalised embedding": spec.embed_norm,
        f"{spec.residual} residual": spec.residual != "sequential",
        "qk-norm": spec.qk_norm is not None,
        "clipped q, k, v": bool(spec.clip_qkv),
        f"{'/'.join(sorted(r.type for r in turned if r.type != 'default'))} rope": any(r.type != "default" for r in turned),
        "two ropes": len(turned) > 1,
        "layers without rope": None in ropes and bool(turned),
        "partial rotary": bool(turned) and not spec.latent and spec.rotary_dim < spec.head_dim,
        "interleaved rotary": bool(turned) and spec.rotary_interleaved,
        "learned positions": bool(spec.learned_positions),
        "ALiBi": bool(spec.alibi_slopes),
        "sliding window": windows != {0} and len(windows) == 1,
        "sliding window in some layers": len(windows) > 1,
        "soft-caps": bool(spec.attention_soft_cap or spec.logits_soft_cap),
        "attention sinks": spec.attention_sinks,
        "scaled embedding, residuals or logits": (spec.embed_scale, spec.residual_scale, spec.logits_scale) != (1, 1, 1),
        "no gate": not spec.gated_mlp,
        f"act {spec.hidden_act}": spec.hidden_act not in ("silu", "gelu_pytorch_tanh"),
        "latent attention": spec.latent is not None,
        "experts": spec.moe is not None,
    }
    if spec.moe is not None:
        found |= {
            "shared expert": bool(spec.moe.shared_size),
            "groups of experts": spec.moe.num_groups > 1,
            f"{spec.moe.score} scores": spec.moe.score != "softmax",
            "dense layers too": not all(layer.is_moe for layer in spec.layers),
        }
    return [name for name, holds in found.items() if holds]


if __name__ == "__main__":
    tests = [f"tests/model/test_{name}.py" for name in ("families", "transformers", "gguf_families", "gguf")]
    tests += [f"tests/model/quantization/test_{name}.py" for name in ("int8", "online", "checkpoints")]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], cwd=REPOSITORY, check=True)
    (REPOSITORY / "docs" / "models.md").write_text(text(), encoding="utf-8")
