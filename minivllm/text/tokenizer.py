"""`Tokenizer`: text to token ids and back, read from a model folder. Used by the engine, the entrypoints and `LLM`."""

import importlib
import json
from pathlib import Path
from typing import Any

import tokenizers

from minivllm.errors import ClientError, ConfigError
from minivllm.text import gguf_tokenizer
from minivllm.utils.gguf import GGUFFile

TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LONG_TEXT = 4096  # characters; above it `encode` takes the entry of the library that releases the GIL


class Tokenizer:
    """A `tokenizers.Tokenizer` with what its model folder says about it. Thread-safe once built.

    `size` is one more than the largest token id. `template_tokens` are the named special tokens that chat templates see.
    `byte_decoder` says how ids become text: "bytes" (byte-level BPE: every token is a string of bytes), "fallback"
    (SentencePiece style: text pieces and `<0xXX>` byte tokens) or "other" (only `decode` of several tokens is right).
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: dict[str, Any], chat_templates: dict[str, str]):
        self.backend = backend
        self.template_tokens = {name: text for name in TEMPLATE_TOKENS if (text := _content(config.get(name)))}
        self.chat_templates = chat_templates
        _complete(backend, config, self.template_tokens)
        added = backend.get_added_tokens_decoder()
        self.added_tokens = {index: token.content for index, token in added.items()}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.byte_decoder, self.num_stripped, self._replaced = _decoder_kind(backend)
        self._pieces: dict[int, str | bytes] = {}

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises `ClientError` for text that is not Unicode (a lone surrogate)."""
        return self._encode(text, add_special_tokens).ids

    def encode_cut(
        self, text: str, second: str | None = None, *, limit: int | None, side: str = "right", add_special_tokens: bool = True
    ) -> tuple[list[int], int | None]:
        """Ids of a text or a pair, and the first token of the second text's type where the tokenizer has such types.

        More than `limit` tokens lose those at `side` ("left" or "right") of the text, of the longer one first; the special
        tokens around them stay.
        """
        if limit is None and second is None:
            return self.encode(text, add_special_tokens), None
        parts = [self._encode(each, False) for each in (text, second) if each is not None]
        if limit is not None:
            special = self.backend.num_special_tokens_to_add(second is not None) if add_special_tokens else 0
            for part, size in zip(parts, _shares([len(part) for part in parts], max(limit - special, 0)), strict=True):
                part.truncate(size, direction=side)
        whole = self.backend.post_process(parts[0], parts[1] if second is not None else None, add_special_tokens)
        start = next((index for index, kind in enumerate(whole.type_ids) if kind == 1), None)
        return whole.ids[:limit], start

    def _encode(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
        try:
            if len(text) < LONG_TEXT:
                return self.backend.encode(text, add_special_tokens=add_special_tokens)
            return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except (TypeError, UnicodeEncodeError) as error:
            if not isinstance(text, str):
                raise
            where = next((at for at, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
            if where is None:
                raise
            message = (
                f"The prompt is not valid Unicode: it has a lone surrogate (U+{ord(text[where]):04X}) at position {where}."
            )
            raise ClientError(message, param="prompt") from error

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of `ids`, equal to the reference decoder's. Raises `ClientError` for ids that cannot be token ids."""
        try:
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except OverflowError as error:
            raise ClientError("Token ids must be non-negative 32-bit integers.", param="tokens") from error

    def to_json(self) -> str:
        """The text of a tokenizer.json that says all."""
        return self.backend.to_str()

    def id_of(self, token: str) -> int | None:
        """Id of the token spelled `token` in the vocabulary."""
        return self.backend.token_to_id(token)

    def piece(self, token_id: int) -> str | bytes:
        """What the token adds to a text: bytes where it is (part of) a byte string, else text. Unknown id: nothing."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._make_piece(token_id)
        return piece

    def token_bytes(self, token_id: int) -> bytes:
        piece = self.piece(token_id)
        return piece if isinstance(piece, bytes) else piece.encode()

    def token_text(self, token_id: int) -> str:
        """Text of one token, with its leading blank; U+FFFD stands for bytes that are only a part of a character."""
        piece = self.piece(token_id)
        return piece if isinstance(piece, str) else piece.decode("utf-8", "replace")

    def _make_piece(self, token_id: int) -> str | bytes:
        token = self.backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            return b"" if self.byte_decoder == "bytes" else ""
        if self.byte_decoder == "bytes":
            try:
                return bytes([BYTE_OF_CHAR[char] for char in token])
            except KeyError:  # an added token with characters of its own
                return token.encode()
        if self.byte_decoder == "fallback":
            for old, new in self._replaced:
                token = token.replace(old, new)
            return _fallback_byte(token) or token
        return self.decode([token_id])

    def _named_id(self, name: str) -> int | None:
        text = self.template_tokens.get(name)
        return None if text is None else self.id_of(text)


def load_tokenizer(folder: str | Path, trust_remote_code: bool = False) -> Tokenizer:
    """Read the tokenizer of a GGUF file or a folder: `tokenizer.json` if it is there, else what transformers can build."""
    folder = Path(folder)
    if folder.is_file():
        return Tokenizer(*gguf_tokenizer.build(GGUFFile(folder)))
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _load_with_transformers(folder, config, trust_remote_code)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"Cannot read the tokenizer {path}: {error}") from error
    return Tokenizer(backend, config, _read_templates(folder, config))


def _load_with_transformers(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> Tokenizer:
    if not any(folder.glob("*.model")) and not (folder / "vocab.json").is_file() and not config:
        raise ConfigError(f"No tokenizer in {folder}: tokenizer.json is missing. Give a folder that has one by --tokenizer.")
    transformers = importlib.import_module("transformers")  # slow to import, and most folders do not need it
    try:
        auto = transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a tokenizer's own code raises
        raise ConfigError(f"transformers cannot read a tokenizer from {folder}: {error}") from error
    backend = getattr(auto, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"The tokenizer in {folder} has no fast form: convert it to a tokenizer.json first.")
    return Tokenizer(backend, config | auto.special_tokens_map, _read_templates(folder, config))


def _complete(backend: tokenizers.Tokenizer, config: dict[str, Any], named: dict[str, str]) -> None:
    """Do to the backend what transformers does with `tokenizer_config.json`.

    Which special tokens a text is given is tokenizer.json's business; `add_bos_token` beside it has no effect there either.
    """
    backend.no_truncation()
    backend.no_padding()
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
        if token["content"] not in known:
            options = {key: token[key] for key in ("single_word", "lstrip", "rstrip", "normalized") if key in token}
            added = tokenizers.AddedToken(token["content"], special=token.get("special", False), **options)
            (backend.add_special_tokens if token.get("special") else backend.add_tokens)([added])
            known.add(token["content"])
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    for text in [*named.values(), *(extra.values() if isinstance(extra, dict) else extra)]:
        if (content := _content(text)) and content not in known:
            backend.add_special_tokens([tokenizers.AddedToken(content, special=True)])
            known.add(content)


def _read_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    given = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(given, str):
        templates["default"] = given
    elif isinstance(given, list):
        templates = {entry["name"]: entry["template"] for entry in given}
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _content(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _decoder_kind(backend: tokenizers.Tokenizer) -> tuple[str, int, list[tuple[str, str]]]:
    """("bytes" | "fallback" | "other", blanks stripped at the start of a text, replacements in each token)."""
    if backend.decoder is None:
        return "other", 0, []
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return "bytes", 0, []
    replaced = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        replaced.append((steps[0]["pattern"]["String"], steps[0]["content"]))
        steps = steps[1:]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteFallback", "Fuse"]:
        return "fallback", 0, replaced
    if kinds == ["ByteFallback", "Fuse", "Strip"] and steps[2]["content"] == " " and not steps[2]["stop"]:
        return "fallback", steps[2]["start"], replaced
    return "other", 0, []


def _shares(sizes: list[int], room: int) -> list[int]:
    """How many tokens of each of one or two texts fit, as the tokenizers library divides the room: the longer one gives."""
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    short, long = sorted(sizes)
    if short + long > room:
        short = min(short, room // 2)
        long = room - short
    return [short, long] if sizes[0] <= sizes[1] else [long, short]


def _fallback_byte(token: str) -> bytes | None:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return None
    return None


def _char_of_byte() -> dict[int, str]:
    """The alphabet of byte-level BPE (GPT-2): printable Latin-1 stands for itself, other bytes come from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}


BYTE_OF_CHAR = {char: byte for byte, char in _char_of_byte().items()}
