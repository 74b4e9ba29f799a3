"""Names to folders. The hub itself is replaced: what it answers decides what the user reads."""

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

from minivllm.errors import ConfigError
from minivllm.utils.hub import resolve_folder

RESPONSE = httpx.Response(404, request=httpx.Request("GET", "https://hub"))


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_folder(str(tmp_path)) == tmp_path
    (tmp_path / "owner/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_folder("owner/model") == tmp_path / "owner/model"


def test_a_name_is_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    (tmp_path / "model.safetensors").touch()

    def snapshot_download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_folder("owner/model", "v2") == tmp_path
    assert (asked["name"], asked["revision"]) == ("owner/model", "v2")
    assert "*.safetensors" in asked["allow_patterns"] and "*.bin" not in asked["allow_patterns"]
    (tmp_path / "model.safetensors").unlink()
    assert resolve_folder("owner/model") == tmp_path and "*.bin" in asked["allow_patterns"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RepositoryNotFoundError("", response=RESPONSE), "neither a folder nor a model on the hub: check the spelling"),
        (RevisionNotFoundError("", response=RESPONSE), "has no revision 'v2': check --revision"),
        (GatedRepoError("", response=RESPONSE), "is gated: accept its terms"),
        (LocalEntryNotFoundError("offline"), "the hub cannot be reached"),
        (ConnectionError("offline"), "the hub cannot be reached"),
    ],
)
def test_what_can_go_wrong(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def snapshot_download(name: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_folder("owner/model", "v2")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["/none", "./none", "~/none-of-this", "a/b/c", "models/none/"])
def test_a_path_is_never_asked_of_the_hub(name: str) -> None:
    with pytest.raises(ConfigError, match=f"model folder {name} does not exist"):
        resolve_folder(name)


def test_no_name_of_the_hub() -> None:
    with pytest.raises(ConfigError, match="neither a folder nor a hub name"):
        resolve_folder("two words")
