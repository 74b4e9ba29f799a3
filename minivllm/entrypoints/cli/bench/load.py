"""Sends requests to a server as they are due and takes down when each piece of their answers comes. Used by `bench serve`."""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from tqdm import tqdm

from minivllm.entrypoints.cli.bench.http_client import HttpClient
from minivllm.errors import ServerError

_REQUEST_SECONDS = 3600  # whatever has not ended then counts as failed


@dataclass(slots=True)
class Outcome:
    """What came of one request; times in seconds, `start` and the stamps on the clock of `time.perf_counter`."""

    start: float = 0.0
    stamps: list[float] = field(default_factory=list)  # when each chunk with output came
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    text: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def ttft(self) -> float:
        return self.stamps[0] - self.start

    @property
    def latency(self) -> float:
        return self.stamps[-1] - self.start

    @property
    def tpot(self) -> float | None:
        """Seconds an output token, the first excluded; None if there is no second."""
        return (self.latency - self.ttft) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.stamps, self.stamps[1:], strict=False)]


def arrival_times(count: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Seconds from the start at which requests are due: gaps of a gamma distribution (1: a Poisson process; less: in bursts).

    They are scaled so that the last request is due after count / rate seconds, as in vLLM's benchmark.
    """
    if math.isinf(rate):
        return [0.0] * count
    times, now = [], 0.0
    for _ in range(count):
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
        times.append(now)
    return [t * count / rate / now for t in times]


async def run_load(
    client: HttpClient, path: str, bodies: Sequence[bytes], due: Sequence[float], max_concurrency: int | None, progress: bool
) -> tuple[list[Outcome], float]:
    """Outcomes in the order of `bodies`, and the seconds that it took in all."""
    gate = asyncio.Semaphore(max_concurrency or len(bodies))
    bar = tqdm(total=len(bodies), desc="Requests", dynamic_ncols=True, disable=not progress)
    begin = time.perf_counter()

    async def one(body: bytes, delay: float) -> Outcome:
        await asyncio.sleep(begin + delay - time.perf_counter())
        async with gate:
            outcome = await send(client, path, body)
        bar.update()
        return outcome

    with bar:
        outcomes = await asyncio.gather(*(one(body, delay) for body, delay in zip(bodies, due, strict=True)))
        return outcomes, time.perf_counter() - begin


async def send(client: HttpClient, path: str, body: bytes) -> Outcome:
    """One streamed request; what goes wrong is in the outcome."""
    outcome = Outcome(start=time.perf_counter())
    try:
        await asyncio.wait_for(_receive(client, path, body, outcome), _REQUEST_SECONDS)
        if not outcome.stamps:
            outcome.error = "an answer without any output"
    except asyncio.TimeoutError:
        outcome.error = f"no end within {_REQUEST_SECONDS} s"
    except ServerError as e:
        outcome.error = e.message
    except OSError as e:
        outcome.error = f"{type(e).__name__}: {e}"
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        outcome.error = f"an answer that is not of the OpenAI API ({type(e).__name__}: {e})"
    return outcome


async def _receive(client: HttpClient, path: str, body: bytes, outcome: Outcome) -> None:
    rest = b""
    usage: dict[str, Any] = {}
    async with contextlib.aclosing(client.stream("POST", path, body)) as pieces:
        async for piece in pieces:
            now = time.perf_counter()
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                event = orjson.loads(line[5:])
                if "error" in event:
                    raise ServerError(str(event["error"]["message"]))
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    _take(choice, now, outcome)
    outcome.num_prompt_tokens = usage.get("prompt_tokens", 0)
    outcome.num_output_tokens = usage.get("completion_tokens", len(outcome.stamps))


def _take(choice: dict[str, Any], now: float, outcome: Outcome) -> None:
    delta = choice.get("delta")
    text = choice.get("text") if delta is None else delta.get("content") or delta.get("reasoning_content")
    if delta is not None and "role" in delta and not text:
        return  # only says who speaks
    outcome.stamps.append(now)
    outcome.text.append(text or "")
