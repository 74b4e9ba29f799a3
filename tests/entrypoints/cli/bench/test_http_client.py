"""The client against a server that sends exactly these bytes, however it cuts them."""

import asyncio
from collections.abc import Sequence

import pytest

from minivllm.entrypoints.cli.bench.http_client import HttpClient
from minivllm.entrypoints.cli.bench.load import Outcome, run_load, send
from minivllm.errors import ConfigError, ServerError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSE = b"<close>"


def chunked(*pieces: bytes) -> bytes:
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def with_length(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


class Server:
    """Answers each request with the next of `answers`, `step` bytes at a time; counts connections."""

    def __init__(self, answers: Sequence[bytes], step: int = 1 << 20):
        self.answers, self.step, self.connections, self.requests = list(answers), step, 0, []

    async def __aenter__(self) -> HttpClient:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.client = HttpClient(f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}", {"X-Key": "k"})
        return self.client

    async def __aexit__(self, *args: object) -> None:
        self.client.close()
        self.server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while self.answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
            self.requests.append(head + await reader.readexactly(length))
            answer = self.answers.pop(0)
            for at in range(0, len(answer.removesuffix(CLOSE)), self.step):
                writer.write(answer.removesuffix(CLOSE)[at : at + self.step])
                await writer.drain()
                await asyncio.sleep(0)
            if answer.endswith(CLOSE):
                break
        writer.close()


async def read(client: HttpClient) -> bytes:
    return b"".join([piece async for piece in client.stream("POST", "/x", b"{}")])


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_bodies_and_kept_connections(step: int) -> None:
    server = Server(
        [chunked(b"ab", b"c" * 300), with_length(b"[1]"), with_length(b""), HEAD[:17] + b"\r\nto the end<close>"], step
    )

    async def main() -> list[bytes]:
        async with server as client:
            return [await read(client) for _ in range(4)]

    assert asyncio.run(main()) == [b"ab" + b"c" * 300, b"[1]", b"", b"to the end"]
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:") and b"\r\nX-Key: k\r\n" in server.requests[0]
    assert server.requests[0].endswith(b"Content-Length: 2\r\n\r\n{}")


def test_a_connection_that_the_server_has_closed_is_replaced() -> None:
    server = Server([with_length(b"1") + CLOSE, with_length(b"2")])

    async def main() -> list[bytes]:
        async with server as client:
            return [await read(client), await read(client)]

    assert asyncio.run(main()) == [b"1", b"2"]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (with_length(b'{"error": {"message": "queue full"}}', b"503 x"), "HTTP 503: queue full"),
        (with_length(b'{"message": "no"}', b"400 x"), "HTTP 400: no"),
        (with_length(b"<html>", b"502 x"), "HTTP 502: <html>"),
        (HEAD + b"5\r\nab" + CLOSE, "the connection broke in the midst of an answer"),
        (CLOSE, "the server closed the connection without an answer"),
    ],
)
def test_failures(answer: bytes, message: str) -> None:
    async def main() -> None:
        async with Server([answer]) as client:
            await read(client)

    with pytest.raises(ServerError) as caught:
        asyncio.run(main())
    assert caught.value.message == message


def test_a_url_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--base-url must begin with http"):
        HttpClient("localhost:8000", {})


def outcome_of(answer: bytes, step: int = 1 << 20) -> Outcome:
    async def main() -> Outcome:
        async with Server([answer], step) as client:
            return await send(client, "/v1/completions", b"{}")

    return asyncio.run(main())


@pytest.mark.parametrize("step", [1, 50, 1 << 20])
def test_events_are_counted_however_they_are_cut(step: int) -> None:
    events = b': ping\n\ndata: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"text": ""}]}\n\n'
    rest = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\ndata: [DONE]\n\n'
    outcome = outcome_of(chunked(events[:40], events[40:] + rest), step)
    assert (outcome.error, len(outcome.stamps), outcome.num_prompt_tokens, outcome.num_output_tokens) == (None, 2, 7, 3)
    assert "".join(outcome.text) == "a" and outcome.start < outcome.stamps[0] <= outcome.stamps[1]


def test_the_chunk_that_only_names_the_speaker_is_no_token() -> None:
    deltas = b'{"role": "assistant", "content": ""}', b'{"content": "Hi"}', b'{"reasoning_content": "hm"}'
    outcome = outcome_of(chunked(*(b'data: {"choices": [{"delta": %s}]}\n\n' % delta for delta in deltas)))
    assert (len(outcome.stamps), outcome.num_output_tokens, outcome.text) == (2, 2, ["Hi", "hm"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'data: {"error": {"message": "the engine died"}}\n\n', "the engine died"),
        (b"data: [DONE]\n\n", "an answer without any output"),
        (b"data: [1\n\n", "an answer that is not of the OpenAI API (JSONDecodeError: "),
        (b"data: [1]\n\n", "an answer that is not of the OpenAI API (AttributeError: "),
    ],
)
def test_answers_that_are_none(body: bytes, message: str) -> None:
    assert str(outcome_of(chunked(body)).error).startswith(message)


def test_no_more_requests_in_flight_than_allowed() -> None:
    event = chunked(b'data: {"choices": [{"text": "a"}]}\n\n')
    server = Server([event] * 12, step=20)

    async def main() -> list[Outcome]:
        async with server as client:
            return (await run_load(client, "/v1/completions", [b"{}"] * 12, [0.0] * 12, 3, progress=False))[0]

    assert [o.error for o in asyncio.run(main())] == [None] * 12
    assert server.connections == 3
