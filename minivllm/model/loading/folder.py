"""Which file of a model folder has which tensor, by an index or by looking. Used by the sources that read folders."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from minivllm.errors import ConfigError, some_of

T = TypeVar("T")


def find_tensors(folder: Path, index: str, files: list[Path], open_file: Callable[[Path], Mapping[str, T]]) -> dict[str, T]:
    """With an index file exactly the tensors that it assigns; without one, those of all `files`. `open_file`: by name."""
    assigned = _read_index(folder / index)
    names = sorted(set(assigned.values())) if assigned is not None else sorted(file.name for file in files)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder} lacks {some_of(missing)}, which its {index} names.", param="model")
    found: dict[str, T] = {}
    for name in names:
        for tensor, entry in open_file(folder / name).items():
            if assigned is None and tensor in found:
                raise ConfigError(f"{folder}: {tensor} is in two files, {name} is one; no {index} chooses.", param="model")
            if assigned is None or assigned.get(tensor) == name:
                found[tensor] = entry
    absent = sorted(set(assigned or ()) - set(found))
    if absent:
        raise ConfigError(f"{folder}: {index} names tensors that are not in their files: {some_of(absent)}.", param="model")
    return found


def _read_index(path: Path) -> dict[str, str] | None:
    """tensor -> file, or None without an index."""
    if not path.is_file():
        return None
    try:
        assigned = json.loads(path.read_bytes())["weight_map"]
        found = {str(tensor): str(file) for tensor, file in assigned.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(f"{path} is not an index of checkpoint files.", param="model") from e
    outside = [file for file in found.values() if Path(file).name != file]
    if outside:
        raise ConfigError(f"{path} names a file outside the model folder: {outside[0]}.", param="model")
    return found
