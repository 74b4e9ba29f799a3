"""`ResponseStore`: responses that may be asked for again, in memory and within bounds."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from minivllm.entrypoints.openai.shared_schema import MAX_ID_LENGTH
from minivllm.entrypoints.responses.schema import Item, ResponseObject
from minivllm.errors import NotFoundError

MAX_RESPONSES = 1000
MAX_BYTES = 128 << 20  # of all responses with their inputs and events
_EVENT_BYTES = 50  # that Python has for each

_decode = msgspec.json.decode
_encode = msgspec.json.encode


class StoredResponse:
    """One response, running or ended: what it was asked, its events so far, and what they add up to.

    `history`: the items before `given`, its own input. `new_ids`: those of `given` that this server made.
    """

    def __init__(self, response: ResponseObject, history: Sequence[Item], given: Sequence[Item], new_ids: Sequence[str]):
        self.id = response["id"]
        self.background = response["background"]
        self.task: asyncio.Task[None] | None = None  # that runs it in the background
        self.item_ids = list(new_ids)
        self.size = 0
        self._response: ResponseObject | None = response  # changes until the end
        self._final = b""
        self._input = _encode([*history, *given])
        self._events: list[bytes] = []
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._response is None

    def add(self, events: Sequence[bytes]) -> None:
        self._events += events
        self._wake()

    def end(self) -> None:
        """It does not change any more; from here on it is kept in as few bytes as possible."""
        if self._response is not None:
            self.item_ids += [item["id"] for item in self._response["output"]]
            self._final = _encode(self._response)
            self._response = None
            self.size = len(self._final) + len(self._input) + sum(len(event) + _EVENT_BYTES for event in self._events)
            self._wake()

    def body(self) -> bytes:
        """The response as JSON."""
        return self._final if self._response is None else _encode(self._response)

    def input_items(self) -> list[Item]:
        """All that it answers, from the first item of the conversation on."""
        items: list[Item] = _decode(self._input)
        return items

    def conversation(self) -> list[Item]:
        """Its input and its output."""
        output: list[Any] = _decode(self.body())["output"]
        return self.input_items() + output

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """The events behind number `after`; those to come when they do."""
        at = after + 1
        while True:
            news, ended = self._news, self.ended
            while at < len(self._events):
                yield self._events[at]
                at += 1
            if ended:
                return
            await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class ResponseStore:
    """The responses used least recently go first; those that run stay."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES):
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._owners: dict[str, StoredResponse] = {}  # of the items, by their ids
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, stored: StoredResponse) -> None:
        self._responses[stored.id] = stored
        self._forget()

    def settle(self, stored: StoredResponse) -> None:
        """`stored` has ended."""
        if not stored.ended:
            stored.end()
            if stored.id in self._responses:  # not deleted meanwhile
                self._num_bytes += stored.size
                self._owners |= dict.fromkeys(stored.item_ids, stored)
                self._forget()

    def get(self, response_id: str, param: str = "response_id") -> StoredResponse:
        stored = self._responses.get(response_id)
        if stored is None:
            raise NotFoundError(f"Response with id {response_id[:MAX_ID_LENGTH]!r} not found.", param=param)
        self._responses.move_to_end(response_id)
        return stored

    def find_item(self, item_id: str) -> Item | None:
        owner = self._owners.get(item_id)
        return None if owner is None else next(item for item in owner.conversation() if item["id"] == item_id)

    def remove(self, response_id: str) -> StoredResponse:
        stored = self.get(response_id)
        del self._responses[response_id]
        if stored.ended:
            self._num_bytes -= stored.size
            for item_id in stored.item_ids:
                del self._owners[item_id]
        return stored

    def _forget(self) -> None:
        ended = [stored for stored in self._responses.values() if stored.ended] if self._is_over() else []
        for stored in ended:
            if not self._is_over():
                return
            self.remove(stored.id)

    def _is_over(self) -> bool:
        return len(self._responses) > self._max_responses or self._num_bytes > self._max_bytes
