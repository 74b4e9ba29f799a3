"""Keys, request ids, CORS, body size, draining, unknown paths, failures: what stands around every route."""

import pytest
from fakes import Client, FakeEngine

from minivllm.errors import EngineDeadError, OverloadedError

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
ORIGIN = {"Origin": "http://localhost:3000"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def locked() -> Client:
    return Client(FakeEngine(), api_key=("one", "zwei-ü"), allowed_origins=("http://localhost:3000",))


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/models", "/tokenize", "/metrics", "/version", "/docs", "//v1/models"]
)
@pytest.mark.parametrize("headers", [{}, bearer("wrong"), {"Authorization": "Basic one"}, {"Authorization": "Bearer"}])
def test_no_key(locked, path, headers):
    reply = locked.request("POST" if path == CHAT else "GET", path, headers=headers)
    assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
    error = {"message": "Unauthorized", "type": "AuthenticationError", "param": "Authorization", "code": 401}
    assert reply.json() == {"error": error}


@pytest.mark.parametrize("key", ["one", "zwei-ü"])
def test_each_key_opens(locked, key):
    headers = {"Authorization": f"bearer {key}".encode()}
    assert locked.post(CHAT, BODY, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/ping"])
def test_probes_need_no_key(locked, path):
    assert locked.get(path).status_code == 200


def test_cors(locked):
    ask = ORIGIN | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    preflight = locked.request("OPTIONS", CHAT, headers=ask)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    denied = locked.post(CHAT, BODY, headers=ORIGIN)
    assert denied.status_code == 401 and denied.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    other = locked.get("/health", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_no_cors_by_default():
    reply = Client(FakeEngine()).get("/v1/models", headers=ORIGIN)
    assert reply.status_code == 200 and "access-control-allow-origin" not in reply.headers


def test_request_id_header():
    client = Client(FakeEngine(), enable_request_id_headers=True)
    named = client.post(CHAT, BODY, headers={"X-Request-Id": "abc-123"})
    assert named.headers["x-request-id"] == "abc-123" and named.json()["id"] == "chatcmpl-abc-123"
    fresh = [client.post(CHAT, BODY) for _ in range(2)]
    assert fresh[0].headers["x-request-id"] != fresh[1].headers["x-request-id"]
    assert fresh[0].json()["id"] == "chatcmpl-" + fresh[0].headers["x-request-id"]
    for unfit in (b"a\x1b[31mb", b"r" * 129, "ü".encode()):
        reply = client.post(CHAT, BODY, headers={"X-Request-Id": unfit})
        assert reply.status_code == 200 and len(reply.headers["x-request-id"]) == 32
    assert client.get("/nope").headers["x-request-id"]
    assert "x-request-id" not in Client(FakeEngine()).post(CHAT, BODY, headers={"X-Request-Id": "abc"}).headers


def test_body_limit():
    client = Client(FakeEngine(), max_request_bytes=2000)
    assert client.post(CHAT, BODY).status_code == 200

    async def chunks():
        for _ in range(30):
            yield b" " * 100

    for content in (b" " * 3000, chunks()):
        reply = client.request("POST", CHAT, content=content, headers={"Content-Type": "application/json"})
        assert reply.status_code == 413
        assert reply.json()["error"] == {
            "message": "The request body is larger than 2000 bytes (--max-request-bytes).",
            "type": "PayloadTooLargeError",
            "param": "body",
            "code": 413,
        }


def test_unknown_path_and_method():
    client = Client(FakeEngine())
    reply = client.get("/nope")
    error = {"message": "There is no GET /nope here.", "type": "NotFoundError", "param": None, "code": 404}
    assert (reply.status_code, reply.json()) == (404, {"error": error})
    reply = client.get(CHAT)
    assert reply.status_code == 405 and reply.headers["allow"] == "POST"
    assert reply.json()["error"]["type"] == "MethodNotAllowedError"
    assert client.get("/v1/models/").status_code == 404


def test_draining():
    client = Client(FakeEngine())
    client.app.state.draining = True
    reply = client.post(CHAT, BODY)
    assert reply.status_code == 503 and reply.headers["retry-after"] == "5"
    assert reply.json()["error"]["type"] == "ServiceUnavailableError"
    assert client.get("/health/ready").status_code == 503
    assert [client.get(path).status_code for path in ("/health", "/health/live", "/metrics")] == [200, 200, 200]


def test_overload():
    engine = FakeEngine()
    engine.overloaded = OverloadedError("The engine is currently busy.", retry_after=7.4)
    reply = Client(engine).post(CHAT, BODY)
    assert reply.status_code == 503 and reply.headers["retry-after"] == "7"
    error = {"message": "The engine is currently busy.", "type": "ServiceUnavailableError", "param": None, "code": 503}
    assert reply.json() == {"error": error}


@pytest.mark.parametrize("stream", [False, True])
def test_dead_engine(stream):
    engine = FakeEngine()
    client = Client(engine)
    engine.dead_error = EngineDeadError("The engine core died.")
    assert client.post(CHAT, BODY | {"stream": stream}).status_code == 503
    assert [client.get(path).status_code for path in ("/health", "/health/live", "/health/ready", "/ping")] == [503] * 4
    assert client.get("/health").json()["error"]["message"] == "The engine core died."


def test_defect_shows_no_details():
    engine = FakeEngine()
    engine.fail_after = 0
    client = Client(engine)
    for stream in (False, True):
        reply = client.post(CHAT, BODY | {"stream": stream})
        assert reply.status_code == 500 and "secret" not in reply.text
        assert reply.json()["error"]["type"] == "InternalServerError"


def test_error_after_the_first_event():
    engine = FakeEngine()
    engine.fail_after = 1
    *_, error, done = Client(engine).events(CHAT, BODY)
    assert done == "[DONE]" and list(error) == ["error"]
    assert error["error"]["code"] == 500 and "secret" not in error["error"]["message"]


def test_docs_can_be_switched_off():
    client = Client(FakeEngine(), disable_fastapi_docs=True)
    assert [client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404] * 3


def test_openapi():
    client = Client(FakeEngine())
    assert client.get("/docs").status_code == 200
    spec = client.get("/openapi.json").json()
    schema = spec["components"]["schemas"]["ChatCompletionRequest"]
    assert schema["required"] == ["messages"]
    assert {"type": "integer"}.items() <= schema["properties"]["max_tokens"]["anyOf"][0].items()
    chat = spec["paths"][CHAT]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/ChatCompletionRequest"
    }
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert chat["responses"]["4XX"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ErrorBody"}
    assert "422" not in chat["responses"]
