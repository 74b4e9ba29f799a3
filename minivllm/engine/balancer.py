"""Several engine cores as one: `Balancer` picks the core for a request, `BalancedClient` looks like the client of one core."""

import asyncio
import functools
import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from minivllm.config.engine_config import EngineConfig
from minivllm.engine.client import AsyncCoreClient
from minivllm.engine.launcher import Core, CoreProcess
from minivllm.engine.process_client import ProcessClient
from minivllm.errors import EngineDeadError, MinivllmError
from minivllm.messages.output import EngineReady, TokenOutputs
from minivllm.messages.request import EngineRequest
from minivllm.messages.stats import SchedulerStats
from minivllm.utils.board import Board

CHUNK = 64  # tokens of a prompt that are remembered, or not, as a whole
USUAL_OUTPUT = 256  # tokens that a request is expected to generate, if it may


def launch(config: EngineConfig) -> AsyncCoreClient:
    """A client of new core processes."""
    return connect(config, start_cores(config))


def start_cores(config: EngineConfig) -> list[CoreProcess]:
    """Start `data_parallel_size` core processes and return without waiting: they load the model meanwhile."""
    cores: list[CoreProcess] = []
    try:
        for rank in range(config.parallel.data_parallel_size):
            cores.append(CoreProcess(replace(config, parallel=replace(config.parallel, data_parallel_rank=rank))))
    except BaseException:
        for core in cores:
            core.close(patience=0)
        raise
    return cores


def connect(config: EngineConfig, cores: Sequence[Core], board: Board | None = None) -> AsyncCoreClient:
    """A client of cores that run. `board`: of several API processes."""
    clients = [ProcessClient(core, board.own if board else 0) for core in cores]
    if len(clients) == 1:
        return clients[0]
    return BalancedClient(clients, config.cache.enable_prefix_caching, config.model.seed, board)


@dataclass(slots=True)
class _Placed:
    core: int
    prompt_work: int  # tokens of the prompt that were not there, until it has been computed
    output_work: int


class Balancer:
    """A request goes to the core that has the least to do, counting what this request would add.

    Work is counted in tokens: those of prompts that a core must still compute, and for each open sequence those that it may
    generate, at most `USUAL_OUTPUT`. What a core computed before need not be computed again, so requests that begin alike
    stay together, until that core has more to do than the shared tokens are worth.
    """

    def __init__(self, num_remembered: Sequence[int], board: Board | None = None):
        """`num_remembered`: tokens whose computation each core remembers, which is the size of its prefix cache.

        What other API processes gave to the cores counts as well, by the board.
        """
        self._cells = (board or Board(len(num_remembered))).take(len(num_remembered))
        self._work = self._cells.own
        self._capacity = [size // CHUNK for size in num_remembered]
        self._known: list[OrderedDict[int, None]] = [OrderedDict() for _ in num_remembered]  # prefixes, the oldest first
        self._placed: dict[str, _Placed] = {}
        self._turn = 0  # of equals, the core after the one that was last chosen

    def place(self, request: EngineRequest) -> int:
        """Choose the core for a request, which is open from now on."""
        length, num_cores = len(request.prompt_token_ids), len(self._work)
        prefixes = _prefixes(request) if any(self._capacity) else []
        missing = [length - CHUNK * self._num_known(core, prefixes) for core in range(num_cores)]
        core = min(range(num_cores), key=lambda i: (self._cells.total(i) + missing[i], (i - self._turn) % num_cores))
        self._turn = core + 1
        placed = _Placed(core, missing[core], min(request.sampling_params.max_tokens or 0, USUAL_OUTPUT))
        self._placed[request.request_id] = placed
        self._work[core] += placed.prompt_work + placed.output_work
        self._remember(core, prefixes)
        return core

    def core_of(self, request_id: str) -> int | None:
        """None if it is not open."""
        placed = self._placed.get(request_id)
        return None if placed is None else placed.core

    def note_output(self, request_id: str) -> None:
        """There is an output, so the prompt has been computed."""
        placed = self._placed.get(request_id)
        if placed is not None and placed.prompt_work:
            self._work[placed.core] -= placed.prompt_work
            placed.prompt_work = 0

    def forget(self, request_id: str) -> None:
        """It has ended."""
        placed = self._placed.pop(request_id, None)
        if placed is not None:
            self._work[placed.core] -= placed.prompt_work + placed.output_work

    def _num_known(self, core: int, prefixes: list[int]) -> int:
        known = self._known[core]
        return next((count for count, prefix in enumerate(prefixes) if prefix not in known), len(prefixes))

    def _remember(self, core: int, prefixes: list[int]) -> None:
        """The longest first: without the shorter ones they are of no use, so they should be forgotten before these."""
        known = self._known[core]
        for prefix in reversed(prefixes):
            known[prefix] = None
            known.move_to_end(prefix)
        while len(known) > self._capacity[core]:
            known.popitem(last=False)


class BalancedClient:
    """An `AsyncCoreClient` over several: a request goes to one of them, a call to all, and one that dies ends them all."""

    def __init__(self, clients: Sequence[AsyncCoreClient], prefix_caching: bool, seed: int | None, board: Board | None = None):
        """`seed`: of the server's own random numbers. They are drawn here, so that no core draws the same as another."""
        self._clients = clients
        self._prefix_caching = prefix_caching
        self._board = board
        if seed is not None and board is not None and board.own:
            seed += board.own  # other numbers than those of the first API process
        self._seeds = None if seed is None else random.Random(seed)
        self._balancer = Balancer([0] * len(clients))
        self._outputs: asyncio.Queue[TokenOutputs | MinivllmError] = asyncio.Queue()
        self._pumps: list[asyncio.Task[None]] = []

    async def start(self) -> Sequence[EngineReady]:
        cores = [ready for found in await asyncio.gather(*(c.start() for c in self._clients)) for ready in found]
        remembered = [c.num_blocks * c.block_size if self._prefix_caching else 0 for c in cores]
        self._balancer = Balancer(remembered, self._board)
        self._pumps = [asyncio.create_task(self._pump(i), name=f"minivllm-core-{i}") for i in range(len(self._clients))]
        return cores

    def add(self, requests: Sequence[EngineRequest]) -> None:
        groups: defaultdict[int, list[EngineRequest]] = defaultdict(list)
        for request in requests:
            params = request.sampling_params
            if self._seeds is not None and params.seed is None:
                seed = self._seeds.getrandbits(64) - 2**63
                request.sampling_params = msgspec.structs.replace(params, seed=seed)
            request.data_parallel_rank = self._balancer.place(request)
            groups[request.data_parallel_rank].append(request)
        for core, group in groups.items():
            self._clients[core].add(group)

    def abort(self, request_ids: Sequence[str]) -> None:
        groups: defaultdict[int, list[str]] = defaultdict(list)
        for request_id in request_ids:
            core = self._balancer.core_of(request_id)
            if core is not None:
                groups[core].append(request_id)
                self._balancer.forget(request_id)
        for core, group in groups.items():
            self._clients[core].abort(group)

    async def outputs(self) -> TokenOutputs:
        found = await self._outputs.get()
        if isinstance(found, MinivllmError):
            self._outputs.put_nowait(found)  # it stands
            raise found
        for output in found.outputs:
            if output.finish_reason is not None:
                self._balancer.forget(output.request_id)
            else:
                self._balancer.note_output(output.request_id)
        return found

    async def call(self, method: str, args: Sequence[Any]) -> object:
        """Of each core; the results as one: see `RESULTS`, and else they are all alike."""
        results = await asyncio.gather(*(client.call(method, args) for client in self._clients))
        return RESULTS.get(method, _alike)(results)

    async def call_once(self, method: str, make_args: Callable[[], Sequence[Any]]) -> object:
        make_once = functools.cache(make_args)
        return _alike([await client.call_once(method, make_once) for client in self._clients])

    def close(self) -> None:
        self._outputs.put_nowait(EngineDeadError("The engine has been shut down."))
        for pump in self._pumps:
            if not pump.get_loop().is_closed():
                pump.cancel()
        for client in self._clients:
            client.close()

    async def _pump(self, core: int) -> None:
        try:
            while True:
                batch = await self._clients[core].outputs()
                batch.engine = core
                self._outputs.put_nowait(batch)
        except MinivllmError as error:
            self._outputs.put_nowait(error)


def _prefixes(request: EngineRequest) -> list[int]:
    """A number for each whole chunk of the prompt and all that is before it."""
    ids, found = request.prompt_token_ids, []
    prefix = hash(request.cache_salt)
    for end in range(CHUNK, len(ids) + 1, CHUNK):
        prefix = hash((prefix, *ids[end - CHUNK : end]))
        found.append(prefix)
    return found


def _alike(results: Sequence[Any]) -> object:
    """Cores that did the same say the same. Yes means: all of them."""
    return all(results) if all(isinstance(result, bool) for result in results) else results[0]


def _together(results: Sequence[Any]) -> object:
    return [item for result in results for item in result]


def _total(results: Sequence[Any]) -> object:
    """Of `SchedulerStats`: sums, and the mean share of the KV cache."""
    each = [msgspec.convert(result, SchedulerStats) for result in results]
    sums = {name: sum(getattr(stats, name) for stats in each) for name in SchedulerStats.__struct_fields__}
    sums["kv_cache_usage"] /= len(each)
    return msgspec.to_builtins(SchedulerStats(**sums))


RESULTS: dict[str, Callable[[Sequence[Any]], object]] = {"request_states": _together, "stats": _total}
