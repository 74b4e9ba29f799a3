"""`KVTransfers`: requests that wait for blocks of another engine, and those whose blocks another is to have.

Held by `EngineCore`. What comes is put into the prefix cache, where the scheduler finds it; what fails is computed as if
nobody had offered it.
"""

import concurrent.futures
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from minivllm.core.kv_cache.manager import KVCacheManager
from minivllm.core.kv_transfer.connector import TransferError
from minivllm.errors import EngineDeadError, one_line
from minivllm.executor.base import Executor
from minivllm.messages.kv_transfer import KVTransferParams
from minivllm.messages.output import TokenOutput
from minivllm.messages.request import EngineRequest
from minivllm.messages.stats import RequestState
from minivllm.utils.logging import get_logger

if TYPE_CHECKING:
    from minivllm.core.kv_transfer.exchange import Exchange
    from minivllm.core.kv_transfer.offers import Offer

logger = get_logger(__name__)

_PATIENCE = 0.002  # seconds
_MAX_FETCHES = 4  # at a time; others wait


class KVTransfers:
    def __init__(self, exchange: "Exchange", kv_cache: KVCacheManager, executor: Executor):
        self._exchange = exchange
        self._kv_cache = kv_cache
        self._executor = executor
        self._threads = ThreadPoolExecutor(_MAX_FETCHES, "minivllm-kv-fetch")
        self._fetching: dict[str, tuple[EngineRequest, KVTransferParams, Future[Offer]]] = {}
        self._offering: dict[str, EngineRequest] = {}  # to be offered when they have ended

    def __len__(self) -> int:
        """Requests that wait here."""
        return len(self._fetching)

    def hold(self, request: EngineRequest) -> bool:
        """Whether it stays here until `take` returns it."""
        params = request.kv_transfer
        if params is None or not params.do_remote_prefill:
            if params is not None:
                self._offering[request.request_id] = request
            return False
        handle = params.remote_request_id
        same = (future for _, other, future in self._fetching.values() if other.remote_request_id == handle)
        # One for all choices of a request.
        future = next(same, None) or self._threads.submit(self._exchange.fetch, params, time.monotonic())
        self._fetching[request.request_id] = request, params, future
        return True

    def abort(self, request_id: str) -> bool:
        """False if it does not wait here."""
        self._offering.pop(request_id, None)
        return self._fetching.pop(request_id, None) is not None

    def states(self) -> list[RequestState]:
        requests = [request for request, _, _ in self._fetching.values()]
        return [RequestState(r.request_id, False, "kv_transfer", len(r.prompt_token_ids), 0, 0, 0, 0.0) for r in requests]

    def wait(self) -> None:
        """For a moment, or until something has come: there is nothing else to do."""
        futures = [future for _, _, future in self._fetching.values()]
        concurrent.futures.wait(futures, _PATIENCE, concurrent.futures.FIRST_COMPLETED)

    def take(self) -> list[EngineRequest]:
        """Those that can run."""
        ready = [entry for entry in self._fetching.values() if entry[2].done()]
        for request, _, future in ready:
            del self._fetching[request.request_id]
            try:
                self._let_in(request, future.result())
            except EngineDeadError:
                raise
            except Exception as e:
                logger.warning("Request %s: its prompt is computed here, as its blocks cannot be had from the engine that "
                               "computed it: %s", request.request_id, one_line(e))  # fmt: skip
        return [request for request, _, _ in ready]

    def offer(self, outputs: Iterable[TokenOutput]) -> None:
        """Requests have ended: complete the outputs of those whose blocks are wanted. Before anything else is planned."""
        for output in [o for o in outputs if o.finish_reason is not None] if self._offering else ():
            request = self._offering.pop(output.request_id, None)
            if request is None or output.error is not None:
                continue
            try:
                output.kv_transfer_params = self._offer(request)
            except EngineDeadError:
                raise
            except Exception as e:
                logger.warning("Request %s: its blocks cannot be offered: %s", request.request_id, one_line(e))

    def close(self) -> None:
        self._exchange.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _offer(self, request: EngineRequest) -> dict[str, Any] | None:
        """None if the prompt fills no block."""
        blocks = self._kv_cache.open(request.cache_salt)
        ids = self._kv_cache.match_prefix(blocks, request.prompt_token_ids, len(request.prompt_token_ids))
        ids = ids[: self._exchange.max_blocks]
        if not ids:
            return None
        segments = self._exchange.make_segments(len(ids))
        paths = [segment.path for segment in segments]
        self._executor.call_all("copy_blocks", paths, len(ids), 0, ids, False)
        return msgspec.to_builtins(self._exchange.offer(blocks.digests[: len(ids)], segments))  # type: ignore[no-any-return]

    def _let_in(self, request: EngineRequest, offer: "Offer") -> None:
        """Into the prefix cache, as far as they are of this prompt and not there yet."""
        kv_cache, tokens, offered = self._kv_cache, request.prompt_token_ids, offer.blocks.digests
        blocks = kv_cache.open(request.cache_salt)
        own = kv_cache.digests(blocks, tokens)
        count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(own, offered, strict=False)))
        if count == 0:
            raise TransferError("they are of another prompt")
        num_tokens = count * kv_cache.block_size
        cached = kv_cache.match_prefix(blocks, tokens, num_tokens)
        if len(cached) == count:
            return
        if kv_cache.allocate(blocks, num_tokens, cached) is None:
            raise TransferError("the KV cache has no room for them now")
        paths = [segment.path for segment in offer.segments]
        new = blocks.block_ids[len(cached) :]
        is_good = False
        try:
            self._executor.call_all("copy_blocks", paths, len(offered), len(cached), new, True)
            kv_cache.commit(blocks, tokens, num_tokens)
            is_good = True
        finally:
            kv_cache.free(blocks, forget=not is_good)
