"""Incremental detokenization: token ids in, new text out, never half a character. One `Detokenizer` per sequence."""

import codecs
from collections.abc import Iterable
from typing import Protocol

from minivllm.messages.sampling_params import SamplingParams
from minivllm.text.tokenizer import Tokenizer

PROMPT_TAIL = 8  # prompt tokens looked at for the beginning of a character that the output continues
MAX_HELD_BYTES = 32  # a longer run of byte tokens is cut at a character, so that scripts made of them still stream
MAX_HELD_TOKENS = 16  # the same for decoders of which we only know `decode`


class Detokenizer:
    """Turns the output ids of one sequence into text.

    The pieces returned by `feed` and `finish`, joined, equal `decode(prompt + output)` minus `decode(prompt)`, except that
    a character which the end of generation cuts in two is left out.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], params: SamplingParams):
        self._skipped = (
            tokenizer.special_ids.difference(params.shown_special_ids) if params.skip_special_tokens else frozenset()
        )
        self._stream = STREAMS[tokenizer.byte_decoder](tokenizer, prompt_ids, self._skipped)
        glued = not params.skip_special_tokens and not params.spaces_between_special_tokens
        self._glued = tokenizer.added_tokens if glued and tokenizer.byte_decoder == "other" else None
        self._after_added = False

    def feed(self, ids: list[int]) -> str:
        """Text that became certain by these tokens."""
        if self._skipped:
            ids = [index for index in ids if index not in self._skipped]
        if self._glued is None:
            return self._stream.feed(ids)
        return "".join([self._feed_glued(index, self._glued) for index in ids])

    def finish(self) -> str:
        """Text held back until now."""
        return self._stream.finish()

    def _feed_glued(self, index: int, added: dict[int, str]) -> str:
        """Of two added tokens in a row, the second comes without the blank that some decoders put between tokens."""
        text = self._stream.feed([index])
        glue = self._after_added and index in added
        self._after_added = index in added
        return added[index] if glue else text


class TextStream(Protocol):
    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], skipped: frozenset[int]): ...
    def feed(self, ids: Iterable[int]) -> str: ...
    def finish(self) -> str: ...


class ByteStream:
    """Byte-level BPE: the tokens' bytes, joined, are UTF-8."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], skipped: frozenset[int]):
        self._bytes_of = tokenizer.token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.feed([index for index in prompt_ids[-PROMPT_TAIL:] if index not in skipped])

    def feed(self, ids: Iterable[int]) -> str:
        return self._decode(b"".join([self._bytes_of(index) for index in ids]))

    def finish(self) -> str:
        return ""  # the decoder holds nothing but a character that will never be whole


class FallbackStream:
    """SentencePiece style: text pieces, and runs of byte tokens, which are text only if the whole run is valid UTF-8."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], skipped: frozenset[int]):
        self._piece_of = tokenizer.piece
        visible = (index not in skipped and tokenizer.piece(index) for index in prompt_ids)
        self._num_stripped = 0 if any(visible) else tokenizer.num_stripped
        self._run = bytearray()
        tail = [self._piece_of(index) for index in prompt_ids[-PROMPT_TAIL:] if index not in skipped]
        for piece in tail:
            self._run = self._run + piece if isinstance(piece, bytes) else bytearray()
        self._run = bytearray(_incomplete_tail(self._run))

    def feed(self, ids: Iterable[int]) -> str:
        parts = []
        for index in ids:
            piece = self._piece_of(index)
            if isinstance(piece, bytes):
                self._run += piece
                if len(self._run) > MAX_HELD_BYTES:
                    parts.append(self._cut_run())
            else:
                if self._run:
                    parts.append(_decode_run(self._run))
                    self._run = bytearray()
                parts.append(piece)
        return self._strip("".join(parts))

    def finish(self) -> str:
        return self._strip(self._cut_run())

    def _cut_run(self) -> str:
        tail = _incomplete_tail(self._run)
        text = _decode_run(self._run[: len(self._run) - len(tail)])
        self._run = bytearray(tail)
        return text

    def _strip(self, text: str) -> str:
        if self._num_stripped and text:
            start = text[: self._num_stripped]
            text = start.lstrip(" ") + text[self._num_stripped :]
            self._num_stripped = 0
        return text


class WindowStream:
    """Any other decoder: decode the last few tokens with and without the new ones and take the difference."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], skipped: frozenset[int]):
        self._decode = tokenizer.decode
        self._ids = [index for index in prompt_ids[-PROMPT_TAIL:] if index not in skipped]
        self._read = len(self._ids)  # ids before it are in the text already

    def feed(self, ids: Iterable[int]) -> str:
        return "".join([self._feed_one(index) for index in ids])

    def finish(self) -> str:
        return self._take().rstrip("\ufffd")

    def _feed_one(self, index: int) -> str:
        self._ids.append(index)
        held = len(self._ids) - self._read
        text = self._take()
        if not text or (text.endswith("\ufffd") and held < MAX_HELD_TOKENS):
            return ""
        self._ids = self._ids[-max(held, PROMPT_TAIL) :]
        self._read = len(self._ids)
        return text

    def _take(self) -> str:
        before = self._decode(self._ids[: self._read])
        return self._decode(self._ids)[len(before) :]


STREAMS: dict[str, type[TextStream]] = {"bytes": ByteStream, "fallback": FallbackStream, "other": WindowStream}


def _incomplete_tail(data: bytes | bytearray) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(bytes(data))
    return decoder.getstate()[0]


def _decode_run(run: bytearray) -> str:
    try:
        return run.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(run)
