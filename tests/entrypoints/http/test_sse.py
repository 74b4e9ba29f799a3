"""Event streams over raw ASGI: keep-alive comments, hang-ups, a server that stops."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from minivllm.entrypoints.http.errors import ClientDisconnected
from minivllm.entrypoints.http.sse import DONE, KEEP_ALIVE, EventStream, until_disconnect
from minivllm.errors import ClientError, OverloadedError


class Connection:
    """One ASGI request: collects what is sent, and can hang up."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.started = False
        self.body = b""
        self.complete = False

    async def receive(self) -> dict:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            assert not self.started and message["status"] == 200
            self.started = True
        else:
            assert self.started and not self.complete
            self.body += message["body"]
            self.complete = not message.get("more_body", False)


class Source:
    """Events with pauses before them; remembers that it was closed."""

    def __init__(self, *items: bytes | float | Exception):
        self.items = items
        self.ended = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for item in self.items:
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, bytes):
                    yield item
                else:
                    await asyncio.sleep(item)
        finally:
            self.ended = True


def run(source: Source, keep_alive: float = 60.0, hang_up_after: float | None = None) -> Connection:
    async def main() -> Connection:
        connection = Connection()
        if hang_up_after is not None:
            asyncio.get_running_loop().call_later(hang_up_after, connection.gone.set)
        await EventStream(source.events(), keep_alive)({"type": "http"}, connection.receive, connection.send)
        assert len(asyncio.all_tasks()) == 1
        return connection

    return asyncio.run(main())


def test_events_then_done():
    connection = run(Source(b"a", b"b"))
    assert connection.body == b"ab" + DONE and connection.complete


def test_no_events_at_all():
    assert run(Source()).body == DONE


def test_refusal_before_the_first_event_is_raised():
    with pytest.raises(ClientError):
        run(Source(0.0, ClientError("no")))


def test_error_later_is_an_event():
    connection = run(Source(b"a", ClientError("no", param="x")))
    error = b'data: {"error":{"message":"no","type":"BadRequestError","param":"x","code":400}}\n\n'
    assert connection.body == b"a" + error + DONE and connection.complete


def test_keep_alive_comments_even_before_the_first_event():
    body = run(Source(0.25, b"<1>", 0.25, b"<2>"), keep_alive=0.1).body
    first, _, rest = body.partition(b"<1>")
    second, _, last = rest.partition(b"<2>")
    assert first and first.replace(KEEP_ALIVE, b"") == b""
    assert second and second.replace(KEEP_ALIVE, b"") == b"" and last == DONE


def test_error_after_a_comment_is_an_event():
    body = run(Source(0.2, ClientError("no")), keep_alive=0.05).body
    assert body.startswith(KEEP_ALIVE) and body.endswith(b'"code":400}}\n\n' + DONE)


@pytest.mark.parametrize("source", [Source(60.0), Source(b"a", 60.0)])
def test_hang_up_closes_the_source(source):
    connection = run(source, hang_up_after=0.05)
    assert source.ended and not connection.complete


def test_hang_up_while_working():
    async def main() -> None:
        connection = Connection()
        asyncio.get_running_loop().call_later(0.02, connection.gone.set)
        with pytest.raises(ClientDisconnected):
            await until_disconnect(connection.receive, asyncio.sleep(60))
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_result_and_error_of_work_pass_through():
    async def fail() -> None:
        raise ClientError("no")

    async def main() -> None:
        assert await until_disconnect(Connection().receive, asyncio.sleep(0, "result")) == "result"
        with pytest.raises(ClientError, match="no"):
            await until_disconnect(Connection().receive, fail())

    asyncio.run(main())


def test_server_stop_ends_stream_with_an_error_event():
    async def main() -> None:
        connection, source = Connection(), Source(b"a", 60.0)
        stream = EventStream(source.events())
        task = asyncio.create_task(stream({"type": "http"}, connection.receive, connection.send))
        await asyncio.sleep(0.05)
        task.cancel()
        await task
        assert source.ended and connection.complete
        assert connection.body.startswith(b'adata: {"error":{"message":"The server is shutting down."')
        assert connection.body.endswith(DONE)
        early = asyncio.create_task(EventStream(Source(60.0).events())({"type": "http"}, connection.receive, connection.send))
        await asyncio.sleep(0.05)
        early.cancel()
        with pytest.raises(OverloadedError):
            await early

    asyncio.run(main())
