"""`minivllm chat` and `minivllm complete` against a small stand-in for the server."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from minivllm.entrypoints.cli.main import main


class Handler(BaseHTTPRequestHandler):
    requests: list[tuple[str, str | None, dict[str, Any]]]

    def do_GET(self) -> None:
        self.reply(200, json.dumps({"data": [{"id": "small"}, {"id": "other"}]}), "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, self.headers["Authorization"], body))
        if body["model"] != "small":
            message = f"The model `{body['model']}` does not exist."
            return self.reply(404, json.dumps({"error": {"message": message}}), "application/json")
        prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        if prompt == "fail":
            return self.reply(200, 'data: {"error": {"message": "the engine died"}}\n\n', "text/event-stream")
        words = ["You", " said ", prompt]
        pieces = [{"delta": {"content": w}} if "messages" in body else {"text": w} for w in words]
        events = [{"choices": [piece]} for piece in pieces] + [{"choices": [], "usage": {}}]
        text = ": ping\n\n" + "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
        return self.reply(200, text, "text/event-stream")

    def reply(self, status: int, text: str, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Handler.requests = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_one_question(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", url, "-q", "hi", "--system-prompt", "Be kind.", "--api-key", "k"]) == 0
    assert capsys.readouterr().out == "You said hi\n"
    path, key, body = Handler.requests[0]
    assert (path, key, body["model"], body["stream"]) == ("/v1/chat/completions", "Bearer k", "small", True)
    assert body["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]


def test_a_conversation(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
    assert main(["chat", "--url", url + "/v1/"]) == 0
    assert capsys.readouterr().out == "You said one\nYou said two\n"
    assert [m["content"] for m in Handler.requests[1][2]["messages"]] == ["one", "You said one", "two"]


def test_complete(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIVLLM_API_KEY", "from-environment")
    assert main(["complete", "--url", url, "-q", "a text", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out == "You said a text\n"
    path, key, body = Handler.requests[0]
    assert (path, key) == ("/v1/completions", "Bearer from-environment")
    assert (body["prompt"], body["max_tokens"]) == ("a text", 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-q", "hi", "--model-name", "big"], "The model `big` does not exist."),
        (["-q", "fail"], "the engine died"),
    ],
)
def test_errors_are_one_line(url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["chat", "--url", url, *arguments]) == 1
    assert capsys.readouterr().err == f"minivllm: error: {message}\n"


def test_ctrl_c(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> Iterator[dict[str, Any]]:
        yield {"delta": {"content": "You"}}
        raise KeyboardInterrupt

    monkeypatch.setattr("minivllm.entrypoints.cli.client.Client.stream", interrupted)
    assert main(["chat", "--url", url, "-q", "hi"]) == 130
