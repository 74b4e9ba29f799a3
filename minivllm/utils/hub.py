"""From a model's name to a local folder; the hub is asked only if the name is not a folder. Used by config.resolve."""

from pathlib import Path

from minivllm.errors import ConfigError
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]
OLD_FILES = ["*.bin"]  # where there is no better form


def resolve_folder(name: str, revision: str | None = None, *, what: str = "model") -> Path:
    """The folder that `name` means: a local one (or a GGUF file), or the hub's model of that name, downloaded if needed.

    Raises `ConfigError`, saying what to do, if there is neither.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_file() and path.suffix == ".gguf":  # a link's own name says where other parts are
        return path.parent.resolve() / path.name
    if path.is_file():
        raise ConfigError(f"{name} is a file: give the folder of the {what}, or a .gguf file.", param=what)
    if _looks_like_path(name):
        raise ConfigError(f"{what} folder {name} does not exist.", param=what)
    return _download(name, revision)


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith("/") or not name


def _download(name: str, revision: str | None) -> Path:
    # Only here: importing the hub's client takes longer than everything else that the command line needs.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
        if any(folder.glob("*.safetensors")):
            return folder
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*FILES, *OLD_FILES]))
    except RevisionNotFoundError as e:
        raise ConfigError(f"the hub's model {name} has no revision {revision!r}: check --revision.", param="revision") from e
    except GatedRepoError as e:
        raise ConfigError(
            f"the hub's model {name} is gated: accept its terms on the hub and set HF_TOKEN.", param="model"
        ) from e
    except HFValidationError as e:
        raise ConfigError(f"{name!r} is neither a folder nor a hub name such as owner/model.", param="model") from e
    except RepositoryNotFoundError as e:
        raise ConfigError(
            f"{name!r} is neither a folder nor a model on the hub: check the spelling, or set HF_TOKEN if it is private.",
            param="model",
        ) from e
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as e:
        raise ConfigError(
            f"cannot get {name!r}: it is not a folder, and the hub cannot be reached. "
            "Check the network, or give the path of a model folder.",
            param="model",
        ) from e
