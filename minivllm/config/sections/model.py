"""Which model, and in what form. Part of `EngineConfig`."""

from dataclasses import dataclass
from typing import Any

from minivllm.config.option import AUTO, option

OURS, TRANSFORMERS = "minivllm", "transformers"  # values of --model-impl


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Model"""

    model: str = option(
        "", "Folder of the model (config.json, *.safetensors, tokenizer.json), a GGUF file, or the model's name on the hub."
    )
    served_model_name: tuple[str, ...] = option(
        (), "Names under which clients may ask for the model; the first is in the answers. Default: as given by --model."
    )
    tokenizer: str = option("", "Folder, GGUF file or hub name of the tokenizer. Default: the model's.")
    revision: str | None = option(None, "Branch, tag or commit of the model on the hub.")
    dtype: str = option(
        "auto",
        "Number type of weights and activations. auto: as in the checkpoint; a float32 checkpoint is run in bfloat16.",
        choices=("auto", "float32", "bfloat16", "float16"),
        aliases={"float": "float32", "half": "float16"},
    )
    quantization: str | None = option(
        None,
        "Smaller numbers for the weights, found while an ordinary checkpoint is read: int8 and fp8 take half the memory of "
        "bfloat16, int4 and bitsandbytes (NF4) less than a third. gptq, awq, compressed-tensors and mxfp4 are "
        "forms of checkpoints, which are seen anyway.",
        choices=("int8", "int4", "fp8", "bitsandbytes", "gptq", "awq", "compressed-tensors", "mxfp4"),
        aliases={
            "auto_gptq": "gptq", "gptq_marlin": "gptq", "auto_awq": "awq", "awq_marlin": "awq", "gpt_oss_mxfp4": "mxfp4",
        },
        short="-q",
        metavar="FORM",
    )  # fmt: skip
    model_impl: str = option(
        "auto",
        "Whose code computes the model. minivllm: the families in docs/models.md. transformers: that library's modelling code, "
        "with the attention, cache and matrices that are here; any causal LM, slower. auto: minivllm where it has a family.",
        choices=("auto", OURS, TRANSFORMERS),
        aliases={"vllm": OURS},
    )
    runner: str = option(
        "auto",
        "generate text, or pooling: turn texts into embeddings or scores. auto: pooling for models that are made for it.",
        choices=("auto", "generate", "pooling"),
    )
    convert: str = option(
        "auto",
        "What a pooling model gives: embed (embeddings), classify (classes and scores). auto: by its architecture; none: only "
        "if it is made for it.",
        choices=("auto", "none", "embed", "classify"),
    )
    pooler_config: dict[str, Any] = option(
        {},
        "JSON object that says otherwise than the model's files how it pools: `pooling_type` (CLS, LAST, MEAN, MAX), "
        "`use_activation` (normalise embeddings).",
        metavar="JSON",
    )
    max_model_len: int = option(
        AUTO,
        "Longest prompt plus output, in tokens (12k = 12,000; 12K = 12,288). Default: what the model allows; "
        "auto: as much of that as the KV cache holds.",
        low=1,
        auto=True,
        metavar="N",
    )
    seed: int | None = option(None, "Seed of the server's own random numbers. Default: another one at each start.")
    trust_remote_code: bool = option(False, "Run tokenizer and model code that comes with the model.")
    hf_overrides: dict[str, Any] = option({}, "JSON object merged over the model's config.json.", metavar="JSON")
    enforce_eager: bool = option(
        False,
        "Run each operation by itself instead of the model as one recorded program (GPU: graph). Slower, same results; for "
        "debugging.",
    )
    max_logprobs: int = option(20, "Most logprobs that a request may ask for per token; -1: no limit.", low=-1)
    generation_config: str = option(
        "auto",
        "Where default sampling parameters come from. auto: the model's generation_config.json; "
        "vllm: none of it, neutral defaults; else: a folder with that file.",
    )

    path: str = ""  # the model's local folder or GGUF file
    max_model_len_auto: bool = False  # the user asked for auto: core.startup may lower max_model_len to what fits

    @property
    def served_model_names(self) -> tuple[str, ...]:
        """Never empty once resolved."""
        return self.served_model_name
