"""How weights get in. Part of `EngineConfig`."""

from dataclasses import dataclass

from minivllm.config.option import option


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadConfig:
    """Loading"""

    load_format: str = option(
        "auto",
        "safetensors, pt (*.bin and *.pt of PyTorch) and gguf read such files, auto the ones that are there; dummy fills in "
        "random weights; bitsandbytes is auto with --quantization bitsandbytes; sharded_state reads what "
        "LLM.save_sharded_state has written, each tensor-parallel worker its own files.",
        choices=("auto", "safetensors", "pt", "gguf", "dummy", "bitsandbytes", "sharded_state"),
        aliases={"hf": "auto", "bin": "pt"},
    )
