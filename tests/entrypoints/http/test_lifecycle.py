"""The server as a process: start, drain, stop, death. The engine is a fake; the process, sockets and signals are real."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
SLOW = {"delay": 0.05, "script": [f" {number}" for number in range(200)], "max_model_len": 1000}


class Server:
    """serve_fake.py and what it writes."""

    def __init__(self, *flags: str, **engine: object):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parents[2])])}
        command = [sys.executable, str(HERE / "serve_fake.py"), json.dumps(engine), *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[str] = []

    def wait_for(self, pattern: str) -> re.Match[str]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no {pattern!r} in:\n" + "".join(self.lines))

    @property
    def url(self) -> str:
        return self.wait_for(r"Ready on (http\S+) in").group(1)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Exit status and all that was written, once it ends."""
        assert self.process.stderr is not None
        self.lines += self.process.stderr.readlines()
        return self.process.wait(20), "".join(self.lines)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.process.kill()
        server.process.wait()
        assert server.process.stderr is not None
        server.process.stderr.close()


def start(servers: list[Server], *flags: str, **engine: object) -> Server:
    server = Server("--port", "0", *flags, **engine)
    servers.append(server)
    return server


def open_stream(client: httpx.Client, url: str) -> tuple[httpx.Response, Iterator[str]]:
    """A running stream, of which the first event has come."""
    request = client.build_request("POST", f"{url}/v1/chat/completions", json={**CHAT, "stream": True})
    response = client.send(request, stream=True)
    lines = response.iter_lines()
    assert next(lines).startswith("data: {")
    return response, lines


def test_serves_then_stops_on_sigterm(servers):
    server = start(servers)
    url = server.url
    assert httpx.get(f"{url}/health").status_code == 200
    reply = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
    assert reply.json()["choices"][0]["message"]["content"] == 'Hello wörld 🐢! "quoted"\n'
    assert "server" not in reply.headers
    server.signal(signal.SIGTERM)
    status, output = server.end()
    assert status == 0
    assert "engine shut down, 0 aborted" in output
    assert "Traceback" not in output


def test_port_opens_only_when_the_engine_is_ready(servers):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = start(servers, "--host", "127.0.0.1", "--port", str(port), load_seconds=1.0)
    server.wait_for("engine started")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")
    assert server.url == f"http://127.0.0.1:{port}"
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(servers):
    server = start(servers, **SLOW | {"script": SLOW["script"][:20]})
    url = server.url
    with httpx.Client() as client:
        response, lines = open_stream(client, url)
        server.signal(signal.SIGTERM)
        server.wait_for("Stopping when 1 running requests are done")
        refused = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"] == {
            "message": "The server is shutting down and takes no new requests.",
            "type": "ServiceUnavailableError",
            "param": None,
            "code": 503,
        }
        assert httpx.get(f"{url}/health/ready").status_code == 503
        assert httpx.get(f"{url}/health/live").status_code == 200
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        response.close()
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert text == "".join(SLOW["script"][:20])
    status, output = server.end()
    assert status == 0 and "engine shut down, 0 aborted" in output


def test_shutdown_timeout_ends_streams_and_whole_replies_with_an_error(servers):
    server = start(servers, "--shutdown-timeout", "0.3", **SLOW)
    url = server.url
    replies: list[httpx.Response] = []
    whole = threading.Thread(target=lambda: replies.append(httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=30)))
    whole.start()
    with httpx.Client() as client:
        response, lines = open_stream(client, url)
        server.signal(signal.SIGTERM)
        rest = [line for line in lines if line]
        response.close()
    whole.join()
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["error"]["message"] == "The server is shutting down."
    assert replies[0].status_code == 503 and replies[0].json()["error"]["message"] == "The server is shutting down."
    status, output = server.end()
    assert status == 0 and "engine shut down, 2 aborted" in output and "Traceback" not in output


def test_second_signal_stops_at_once(servers):
    server = start(servers, "--shutdown-timeout", "600", **SLOW)
    with httpx.Client() as client:
        response, _ = open_stream(client, server.url)
        server.signal(signal.SIGINT)
        server.wait_for("Stopping when 1 running")
        server.signal(signal.SIGINT)
        status, output = server.end()
        response.close()
    assert status == 0 and "engine shut down, 1 aborted" in output and "Traceback" not in output


def test_signal_while_loading_stops(servers):
    server = start(servers, load_seconds=60.0)
    server.wait_for("engine started")
    server.signal(signal.SIGTERM)
    status, output = server.end()
    assert status == 128 + signal.SIGTERM and "engine shut down" in output and "Traceback" not in output


def test_engine_death_ends_streams_and_the_process(servers):
    server = start(servers, **SLOW)
    with httpx.Client() as client:
        response, lines = open_stream(client, server.url)
        server.signal(signal.SIGUSR1)
        rest = [line for line in lines if line]
        response.close()
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["error"] == {
        "message": "The engine core died.",
        "type": "ServiceUnavailableError",
        "param": None,
        "code": 503,
    }
    status, output = server.end()
    assert status == 1 and output.endswith("error: The engine core died.\n") and "Traceback" not in output


def test_port_in_use_is_one_line_before_the_engine_starts(servers):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, output = start(servers, "--host", "127.0.0.1", "--port", str(port)).end()
    assert status == 1
    assert output == f"error: Port {port} is in use: stop what listens there, or give another --port.\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--uds", "/nowhere/x.sock"], "error: Cannot listen on --uds /nowhere/x.sock: No such file or directory.\n"),
        (["--host", "203.0.113.7"], "error: Cannot listen on 203.0.113.7, port 0: Cannot assign requested address.\n"),
    ],
)
def test_bad_address_is_one_line(servers, flags, message):
    assert start(servers, *flags).end() == (1, message)


def test_bad_certificate_ends_the_engine(servers, tmp_path):
    certificate = tmp_path / "cert.pem"
    certificate.write_text("no certificate")
    status, output = start(servers, "--ssl-certfile", str(certificate), "--ssl-keyfile", str(certificate)).end()
    assert status == 1 and "engine shut down" in output and "Traceback" not in output
    assert f"error: Cannot use the TLS files {certificate}, {certificate}: " in output


def test_unix_socket_replaces_a_stale_one_and_is_removed(servers, tmp_path):
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = start(servers, "--uds", str(path))
    server.wait_for(f"Ready on unix:{path}")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        assert client.get("http://server/health").status_code == 200
    second = start(servers, "--uds", str(path)).end()
    assert second == (1, f"error: Cannot listen on --uds {path}: another server listens there.\n")
    server.signal(signal.SIGTERM)
    assert server.end()[0] == 0
    assert not path.exists()
