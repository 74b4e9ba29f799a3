"""Fill in the middle: how models that have learnt it are shown what stands before and after a gap. Used by the entrypoints."""

from collections.abc import Sequence
from dataclasses import dataclass

from minivllm.text.tokenizer import Tokenizer

PROJECT = "project"  # what a model that reads several files is told as the name of their repository
PLAIN_FILE = "\n\n--- {name} ---\n\n"  # before a file, for models that have no token for that
ANCHOR = "☺"


@dataclass(frozen=True, slots=True)
class Spelling:
    """Names of tokens: before what stands before the gap, before what stands after it, before what fills it."""

    prefix: str
    suffix: str
    middle: str
    repository: str = ""  # before the name of the repository, which is before all files
    file: str = ""  # before the name of a file, which is before its text
    ends: tuple[str, ...] = ()  # what models write after the middle, beside their end of text


SPELLINGS = (
    # Qwen2.5-Coder, CodeGemma, Granite 4
    Spelling(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        repository="<|repo_name|>",
        file="<|file_sep|>",
        ends=("<|endoftext|>", "<|fim_pad|>", "<|file_separator|>"),
    ),
    # StarCoder, Granite Code, Stable Code
    Spelling(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        repository="<repo_name>",
        file="<file_sep>",
        ends=("<|endoftext|>", "<fim_pad>"),
    ),
    Spelling("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),  # CodeLlama
    Spelling("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)


class FillInMiddle:
    """The prompts of one model. `stop_token_ids` are those that say that the gap is filled."""

    def __init__(self, tokenizer: Tokenizer, spelling: Spelling):
        self._tokenizer = tokenizer
        self._prefix, self._suffix, self._middle = (
            _ids(tokenizer, name) for name in (spelling.prefix, spelling.suffix, spelling.middle)
        )
        self._repository, self._file = _ids(tokenizer, spelling.repository), _ids(tokenizer, spelling.file)
        others = (spelling.repository, spelling.file, spelling.prefix, spelling.suffix, spelling.middle)
        self.stop_token_ids = [index for name in (*spelling.ends, *others) for index in _ids(tokenizer, name)]

    def encode(
        self,
        prefix: str | list[int],
        suffix: str,
        *,
        files: Sequence[tuple[str, str]] = (),
        start: str = "",
        add_special_tokens: bool = True,
    ) -> list[int]:
        """The prompt. `files` are names and texts of other files, `start` is how the middle begins."""
        bos = self._tokenizer.bos_token_id
        begins = add_special_tokens and bos is not None and self._tokenizer.encode("")[:1] == [bos]
        ids = [bos] if begins and bos is not None else []
        if isinstance(prefix, str):
            prefix = self._tokenizer.encode(prefix, add_special_tokens=False)
        ids += self._before(files)
        ids += [*self._prefix, *prefix, *self._suffix, *self._encode(suffix), *self._middle, *self._encode(start)]
        return ids

    def _before(self, files: Sequence[tuple[str, str]]) -> list[int]:
        if not files:
            return []
        if not self._file:
            return self._encode("".join(PLAIN_FILE.format(name=name) + text for name, text in files) + "\n")
        ids = [*self._repository, *self._encode(f"{PROJECT}\n")] if self._repository else []
        for name, text in files:
            ids += [*self._file, *self._encode(f"{name}\n{text}\n")]
        return [*ids, *self._file, *self._encode("current\n")]

    def _encode(self, text: str) -> list[int]:
        """A text inside a text: without the blank that some tokenizers put before the first word."""
        if not text or not self._tokenizer.num_stripped:
            return self._tokenizer.encode(text, add_special_tokens=False)
        anchor = self._tokenizer.encode(ANCHOR, add_special_tokens=False)
        return self._tokenizer.encode(ANCHOR + text, add_special_tokens=False)[len(anchor) :]


def fill_in_middle(tokenizer: Tokenizer) -> FillInMiddle | None:
    """None if the tokenizer has none of the known sets of tokens."""
    for spelling in SPELLINGS:
        if all(_ids(tokenizer, name) for name in (spelling.prefix, spelling.suffix, spelling.middle)):
            return FillInMiddle(tokenizer, spelling)
    return None


def _ids(tokenizer: Tokenizer, name: str) -> list[int]:
    index = tokenizer.id_of(name) if name else None
    return [] if index is None else [index]
