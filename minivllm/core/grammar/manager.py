"""`GrammarManager`: compiles grammars in threads of its own, each once, and keeps the latest. Held by `EngineCore`."""

import json
import queue
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from minivllm.messages.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from minivllm.core.grammar.grammar import Compiler, Grammar
    from minivllm.core.grammar.sandbox import Sandbox

MAX_CACHED = 128  # grammars
MAX_CACHED_BYTES = 4 << 20  # of their texts; compiled, a grammar takes some fifty times as much
_THREADS = 2  # one can go on while a costly grammar keeps the other


class GrammarManager:
    """Nothing here blocks but `shutdown`, and nothing is loaded before the first grammar."""

    def __init__(self) -> None:
        self._compiler: Future[Compiler] | None = None
        self._cache: OrderedDict[bytes, Future[Grammar]] = OrderedDict()
        self._num_bytes = 0
        self._threads = ThreadPoolExecutor(_THREADS, "minivllm-grammar")
        self._sandboxes: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()

    def set_tokenizer(self, tokenizer: str, eos_token_ids: list[int], added_ids: dict[str, int], vocab_size: int) -> None:
        """Needed once, before the first grammar. `tokenizer`: the text of a tokenizer.json; `added_ids`: its added tokens."""
        if self._compiler is None:
            self._compiler = self._threads.submit(self._make_compiler, tokenizer, eos_token_ids, added_ids, vocab_size)

    def compile(self, params: StructuredOutputsParams) -> "Future[Grammar]":
        """The grammar of a text's beginning, to be copied. Its ValueError is the user's to mend."""
        plain = msgspec.structs.replace(params, reasoning_start=None, reasoning_end=None, origin=None)
        key = msgspec.msgpack.encode(plain)
        future = self._cache.get(key)
        if future is None:
            future = self._cache[key] = self._threads.submit(self._compile, plain)
            self._num_bytes += len(key)
            while len(self._cache) > MAX_CACHED or (self._num_bytes > MAX_CACHED_BYTES and len(self._cache) > 1):
                self._num_bytes -= len(self._cache.popitem(last=False)[0])
        else:
            self._cache.move_to_end(key)
        return future

    @property
    def mask_without_end(self) -> bytes:
        """Any token but those that end a text; known as soon as a grammar is."""
        assert self._compiler is not None
        return self._compiler.result().mask_without_end

    def shutdown(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._sandboxes.empty():
            self._sandboxes.get().close()

    def _make_compiler(
        self, tokenizer: str, eos_token_ids: list[int], added_ids: dict[str, int], vocab_size: int
    ) -> "Compiler":
        from minivllm.core.grammar.guidance import GuidanceCompiler
        from minivllm.core.grammar.sandbox import Sandbox

        for _ in range(_THREADS):
            self._sandboxes.put(Sandbox())
        try:
            return GuidanceCompiler(tokenizer, eos_token_ids, added_ids, vocab_size)
        except ValueError as error:
            raise ValueError(f"it is not supported with this model's tokenizer ({error})") from error

    def _compile(self, params: StructuredOutputsParams) -> "Grammar":
        assert self._compiler is not None, "set_tokenizer comes first"
        compiler = self._compiler.result()
        sandbox = self._sandboxes.get()
        try:
            return compiler.compile(sandbox.check(params, _named_in(params, compiler.special_ids)))
        finally:
            self._sandboxes.put(sandbox)


def _named_in(params: StructuredOutputsParams, special_ids: dict[str, int]) -> dict[str, int]:
    text = params.structural_tag
    if not isinstance(text, str):
        return {}
    return {name: token for name, token in special_ids.items() if name in text or json.dumps(name)[1:-1] in text}
