"""Which scheme is behind which name of --quantization, and which format behind which of a checkpoint; a new one is one line
here and one name in its choices.
"""

from minivllm.config.quantization import StoredWeights
from minivllm.errors import ConfigError
from minivllm.kernels import Ops
from minivllm.model.layers.embedding import Embedding
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.formats.awq import AWQ
from minivllm.model.quantization.formats.bitsandbytes import EightBits, FourBits
from minivllm.model.quantization.formats.compressed import Integers, PackedIntegers
from minivllm.model.quantization.formats.float8 import Float8
from minivllm.model.quantization.formats.format import Format
from minivllm.model.quantization.formats.gptq import GPTQ
from minivllm.model.quantization.formats.mxfp4 import MXFP4
from minivllm.model.quantization.grouped import GROUP
from minivllm.model.quantization.int8 import Int8
from minivllm.model.quantization.rounded import Float8Rows, Int4, NormalFloat4, Rounded
from minivllm.model.quantization.scheme import Scheme
from minivllm.model.quantization.unquantized import Unquantized

SCHEMES: dict[str, type[Scheme]] = {
    "int8": Int8,
    "int4": Int4,
    "fp8": Float8Rows,
    "bitsandbytes": NormalFloat4,
}
# For output heads, which are more sensitive, and embeddings that serve as such.
HEADS: dict[str, type[Scheme]] = {"int4": Int8, "bitsandbytes": Unquantized}
FORMATS: dict[tuple[str, str], type[Format]] = {
    ("gptq", "gptq"): GPTQ,
    ("gptq", "gptq_v2"): GPTQ,
    ("awq", ""): AWQ,
    ("compressed-tensors", "pack-quantized"): PackedIntegers,
    ("compressed-tensors", "int-quantized"): Integers,
    ("compressed-tensors", "float-quantized"): Float8,
    ("fp8", ""): Float8,
    ("bitsandbytes", "4bit"): FourBits,
    ("bitsandbytes", "8bit"): EightBits,
    ("mxfp4", ""): MXFP4,
}


def format_of(stored: StoredWeights) -> Format:
    return FORMATS[stored.method, stored.form](stored)


def quantize(model: Layer, name: str, ops: Ops) -> None:
    """Let every matrix of a model without weights that is multiplied use the scheme of that name, or that of its heads."""
    usual = SCHEMES[name](ops)
    of_heads = HEADS.get(name, SCHEMES[name])(ops)
    for path, layer in model.walk():
        if isinstance(layer, Matrix) and layer.is_multiplied:
            scheme = of_heads if isinstance(layer, Embedding) or "." not in path else usual
            is_rounded = isinstance(scheme, Rounded)
            if is_rounded and layer.dtype not in ops.gemm_grouped.DTYPES:
                raise ConfigError(
                    f"--quantization {name} multiplies in bfloat16 on this device: use --dtype bfloat16.", param="dtype"
                )
            if not is_rounded or layer.shape[1] % GROUP == 0:
                layer.use(scheme)
