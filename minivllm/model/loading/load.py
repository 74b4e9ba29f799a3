"""`load_model`: build a family without weights, check the checkpoint's headers against it, then fill it layer by layer."""

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from minivllm.config.engine_config import EngineConfig
from minivllm.config.model_spec import ModelSpec
from minivllm.config.sharded_state import PATTERN
from minivllm.errors import ConfigError, some_of
from minivllm.kernels import Ops
from minivllm.model.interface import Model
from minivllm.model.layers.attention import SelfAttention
from minivllm.model.layers.layer import Layer
from minivllm.model.layers.matrix import Matrix
from minivllm.model.layers.moe import Experts
from minivllm.model.layers.shard import TRANSPOSED, Layout, Parameter, ShardSpec
from minivllm.model.loading.dummy import DummySource
from minivllm.model.loading.gguf import GGUFSource
from minivllm.model.loading.pt import PtFolder
from minivllm.model.loading.quantized import QuantizedSource
from minivllm.model.loading.renamed import RenamedSource
from minivllm.model.loading.safetensors import SafetensorsFolder
from minivllm.model.loading.shares import ShareWriter, copy_all_but_weights
from minivllm.model.loading.source import TensorSource, part_of
from minivllm.model.quantization.grouped import Grouped
from minivllm.model.quantization.kv_scales import is_kv_scale, read_kv_scales
from minivllm.model.quantization.registry import quantize
from minivllm.model.registry import make_model
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

_GIB = 1024**3
# Heads that other uses of the same layers have; a pooling model has at most one of them.
_HEADS = ("lm_head.", "cls.", "score.", "classifier.", "head.", "decoder.", "embed_out.")
_BAR_AFTER = 1.0  # seconds; shorter loads show no progress bar


@dataclass(slots=True)
class _Target:
    """A parameter and the checkpoint tensors that are stacked into it."""

    layer: Layer
    attribute: str
    parameter: Parameter
    path: str  # of the parameter in the model
    sources: tuple[str, ...]
    layout: Layout | None = None
    borrowed: Tensor | None = None  # what was set, if it still lies in the file

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, shape in zip(self.sources, self.parameter.shard.stored_shapes(len(self.sources)), strict=True):
            yield name, self.layout.stored(shape) if self.layout else shape

    def of_own_share(self) -> "_Target":
        """The same, to be loaded from what `save_shares` has written."""
        parameter = replace(self.parameter, shard=ShardSpec.of(self.parameter.shape))
        return _Target(self.layer, self.attribute, parameter, self.path, (self.path,))


@dataclass(frozen=True, slots=True)
class Outline:
    """Of a model without its weights."""

    kept_bytes: int
    read: dict[float, int]  # bytes by the share of them that a step with one token reads
    matrices: list[Matrix]  # that are multiplied, with weights yet to be loaded


def load_model(
    config: EngineConfig, ops: Ops, dtype: torch.dtype, device: str, free_bytes: int, progress: bool = False
) -> Model:
    """The model with its weights in `dtype`, packed for the device.

    ConfigError in one line if the checkpoint has not exactly the tensors that the model needs, or if they do not fit into
    `free_bytes`; both are known from the headers, before any weight is read. Memory never exceeds the finished weights plus
    one layer's parameters.
    """
    with _prepared(config, ops, dtype, device) as (model, targets, source):
        _check_room(targets, config, free_bytes)
        _fill(model, targets, source, device, progress)
    model.loaded()
    return model


def outline(config: EngineConfig, ops: Ops, dtype: torch.dtype, device: str) -> Outline:
    """What `load_model` would load, from the headers alone; with the same errors."""
    read: dict[float, int] = {}
    with _prepared(config, ops, dtype, device) as (model, targets, _):
        for target in targets:
            share = target.layer.share_read
            read[share] = read.get(share, 0) + target.parameter.kept_bytes
        matrices = [layer for _, layer in model.walk() if isinstance(layer, Matrix) and layer.is_multiplied]
    return Outline(sum(read.values()), read, matrices)


def save_shares(config: EngineConfig, ops: Ops, dtype: torch.dtype, device: str, folder: Path, max_bytes: int) -> None:
    """Read the weights once more and write this rank's, not quantized: see `ShareWriter`. The first rank copies the rest."""
    plain = replace(config, model=replace(config.model, quantization=None))
    writer = ShareWriter(folder, ops.group.rank, max_bytes)
    with _prepared(plain, ops, dtype, device) as (_, targets, source):
        for name in filter(is_kv_scale, source.shapes()):
            writer.add(name, source.read(name))
        for target in targets:
            writer.add(target.path, _assemble(target, source, "cpu"))
            for name in target.sources:
                source.release(name)
        writer.flush()
    if ops.group.rank == 0:
        copy_all_but_weights(Path(config.model.path), folder)


@contextmanager
def _prepared(
    config: EngineConfig, ops: Ops, dtype: torch.dtype, device: str
) -> Iterator[tuple[Model, list[_Target], TensorSource]]:
    """The model, what is to be loaded into it, and from where. It is known to fit."""
    model = _build(config, config.spec, ops, dtype, device)
    if config.model.quantization and config.stored is None:
        quantize(model, config.model.quantization, ops)
    whole = model  # what other pipeline stages have is neither missing nor left over
    if config.spec.own is not None:
        whole = _build(config, replace(config.spec, own=None), ops, dtype, device)
    source = _source(whole, config, ops, dtype, device)
    in_shares = config.load.load_format == "sharded_state"
    base, *_ = model.weight_map.get(model.base, (model.base,))
    if config.pooling is not None and not (isinstance(source, GGUFSource) or in_shares):
        source = RenamedSource.of_pooling_model(source, base)
    try:
        if whole is not model:
            _check(whole, list(_targets(whole)), source, config)
        stays_packed = config.load.load_format == "gguf" and not config.model.quantization
        if dtype in ops.gemm_grouped.DTYPES and (config.stored is not None or stays_packed):
            _keep_packed(model, source, ops)
        if config.cache.kv_cache_dtype == "fp8":
            _read_kv_scales(model, source)
        targets = list(_targets(model))
        if in_shares:
            targets = [target.of_own_share() for target in targets]
        if whole is model:
            _check(model, targets, source, config)
        yield model, targets, source
    finally:
        source.close()


def _read_kv_scales(model: Model, source: TensorSource) -> None:
    for path, layer in model.walk():
        if isinstance(layer, SelfAttention):
            (name,) = _sources(model.weight_map, path.split("."), 1)
            layer.k_scale, layer.v_scale = read_kv_scales(source, name)


def _build(config: EngineConfig, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str) -> Model:
    model = make_model(replace(config, spec=spec), ops, dtype, device)
    if config.pooling is not None:
        model.set_pooling_head(spec, ops, dtype, len(config.pooling.labels))
    return model


def _source(model: Model, config: EngineConfig, ops: Ops, dtype: torch.dtype, device: str) -> TensorSource:
    if config.load.load_format == "dummy":
        return DummySource(dict(_wanted(list(_targets(model)))), dtype, config.model.seed or 0, device)
    path = Path(config.model.path)
    if config.load.load_format == "gguf":
        return model.adapt(GGUFSource(path, config.spec, dtype))
    if config.load.load_format == "sharded_state":
        return SafetensorsFolder(path, PATTERN.format(rank=ops.group.rank, part="*"))
    source: TensorSource = PtFolder(path) if config.load.load_format == "pt" else SafetensorsFolder(path)
    if config.stored is not None:
        if TRANSPOSED in model.layouts.values():
            architecture = config.spec.architecture
            raise ConfigError(f"a quantized {architecture} is not supported: use its unquantized form.", param="model")
        source = QuantizedSource(source, config.stored, dtype)
    return model.adapt(source)


def _keep_packed(model: Model, source: TensorSource, ops: Ops) -> None:
    """Let matrices whose weights are in a form that we multiply packed stay so."""
    for target in list(_targets(model)):
        layer, name = target.layer, target.attribute
        form = source.packed_form(target.sources)
        if form is None:
            continue
        whole = form.order is None or (isinstance(layer, Matrix) and layer.columns.is_whole)
        if isinstance(layer, Matrix) and layer.is_multiplied and name == "weight" and whole:
            layer.use(Grouped(ops, form))
            source.keep_packed(target.sources, form)
        elif isinstance(layer, Experts) and name in ("gate_up", "down") and form.order is None:
            layer.keep_packed(name, form)
            source.keep_packed(target.sources, form)


def _check_room(targets: list[_Target], config: EngineConfig, free_bytes: int) -> None:
    needed = sum(t.parameter.kept_bytes for t in targets)
    if needed > free_bytes:
        form, options = config.model.quantization, "--dtype" if config.model.quantization else "--dtype, --quantization"
        raise ConfigError(
            f"The weights of {config.model.model} take {needed / _GIB:.1f} GiB in {form or config.model.dtype}, but only "
            f"{free_bytes / _GIB:.1f} GiB of memory are free. Free some, or choose a smaller model or number type ({options}).",
            param="model",
        )


def _targets(model: Model) -> Iterator[_Target]:
    for path, layer in model.walk():
        for attribute, parameter in layer.parameters().items():
            whole, _, end = attribute.partition(":")
            parts = [*path.split("."), whole]
            layout = next((model.layouts[part] for part in parts if part in model.layouts), None)
            sources = _sources(model.weight_map, parts, len(parameter.shard.stacked))
            if end:
                sources = tuple(part_of(name, end) for name in sources)
            yield _Target(layer, attribute, parameter, f"{path}.{attribute}", sources, layout)


def _sources(weight_map: Mapping[str, tuple[str, ...]], parts: list[str], count: int) -> tuple[str, ...]:
    """Names of a parameter's checkpoint tensors, at most `count`."""
    choices = [weight_map.get(part, (part,)) for part in parts]
    names = [".".join(part for part in name if part) for name in itertools.product(*choices)]
    if "{}" in names[0]:
        names = [name.replace("{}", str(index)) for index in range(count // len(names)) for name in names]
    return tuple(names)


def _wanted(targets: list[_Target]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for target in targets:
        yield from target.wanted()


def _check(model: Model, targets: list[_Target], source: TensorSource, config: EngineConfig) -> None:
    folder, found, wanted = config.model.path, source.shapes(), dict(_wanted(targets))
    missing = [name for name in wanted if name not in found]
    left = [name for name in found if name not in wanted and not (model.ignores(name) or is_kv_scale(name))]
    left = [name for name in left if not source.is_unused(name)]
    if config.pooling is not None:
        left = [name for name in left if not name.startswith(_HEADS) and ".pooler." not in name]
    if missing or left:
        said = [f"lacks {some_of(missing)}"] if missing else []
        said += [f"has {some_of(left)}, which a {config.spec.architecture} does not have"] if left else []
        hint = ""
        if "lm_head.weight" in missing:
            hint = " (config.json says tie_word_embeddings=false, so the output head must be in the checkpoint)"
        raise ConfigError(f"the checkpoint in {folder} {' and '.join(said)}{hint}.", param="model")
    for name, shape in wanted.items():
        if tuple(found[name]) != shape:
            raise ConfigError(
                f"the checkpoint in {folder} does not fit its {source.described_by}: "
                f"{name} has the shape {list(found[name])}, {list(shape)} is expected.",
                param="model",
            )


def _fill(model: Model, targets: list[_Target], source: TensorSource, device: str, progress: bool) -> None:
    by_layer: dict[int, list[_Target]] = {}
    for target in targets:
        by_layer.setdefault(id(target.layer), []).append(target)
    total = sum(torch.Size(t.parameter.shape).numel() * t.parameter.dtype.itemsize for t in targets)
    began = time.monotonic()
    bar = tqdm(
        total=total, unit="B", unit_scale=True, desc="Loading weights", disable=not progress, delay=_BAR_AFTER, leave=False
    )
    with bar:
        for _, layer in model.walk():
            for target in by_layer.get(id(layer), ()):
                tensor = _assemble(target, source, device)
                setattr(target.layer, target.attribute, tensor)
                bar.update(tensor.nbytes)
            layer.finish_loading()
            for target in by_layer.get(id(layer), ()):
                _own(target, source)
    seconds = time.monotonic() - began
    logger.info("Loaded %.2f GB of weights in %.2f s (%.1f GB/s)", total / 1e9, seconds, total / 1e9 / max(seconds, 1e-9))


def _assemble(target: _Target, source: TensorSource, device: str) -> Tensor:
    """In the final type; a part of a single source that has it already is passed on as the view that it is."""
    shard, dtype, layout = target.parameter.shard, target.parameter.dtype, target.layout
    read: list[Tensor | None] = [None] * len(target.sources)
    for index, name in enumerate(target.sources):
        if len(target.sources) == 1 or shard.stacked[index].size:
            tensor = source.read(name)
            read[index] = tensor if layout is None else layout.convert(tensor)
    pieces = shard.cut(read)
    tensors = [piece.to(device, dtype) for piece in pieces]
    if len(tensors) > 1 or layout is not None:
        return torch.cat(tensors, dim=shard.stacked_dim)
    target.borrowed = tensors[0] if tensors[0] is pieces[0] else None
    return tensors[0]


def _own(target: _Target, source: TensorSource) -> None:
    """What still lies in the file is copied, so that the file's memory can go."""
    value = getattr(target.layer, target.attribute)
    if target.borrowed is not None and value is target.borrowed:
        setattr(target.layer, target.attribute, value.clone())
    target.borrowed = None
    for name in target.sources:
        source.release(name)
