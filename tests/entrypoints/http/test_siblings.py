"""Two API processes, here in one: what one of them keeps, clients of both know."""

import io

import httpx
import pytest
import uvloop
from fakes import FakeEngine

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.engine.live_requests import LiveRequest
from minivllm.entrypoints.http.app import build_app, init_app_state, start_batches
from minivllm.entrypoints.http.siblings import Siblings
from minivllm.ipc.addresses import new_address, of_client, unix_path

PROMPT = "<|user|>One<|end|><|assistant|>Yes<|end|><|user|>Two<|end|><|assistant|>"


@pytest.fixture
def run_both(tmp_path):
    """`run_both(test, **options)`: `await test(engines, clients, servers)`; the first one has a folder for files."""

    def run(test, **options):
        async def main():
            address = new_address()
            paths = [unix_path(of_client(address, index)) for index in range(2)]
            args = AsyncEngineArgs(model="org/fake", api_server_count=2, storage_dir=str(tmp_path), **options)
            engines, clients, servers = [FakeEngine(["Yes"]), FakeEngine(["Yes"])], [], []
            for index, engine in enumerate(engines):
                app = build_app(args.server)
                init_app_state(engine, app.state, args.server)
                if index == 0:
                    start_batches(engine, app.state, args.server)
                app.state.siblings = Siblings(index, paths)
                servers.append(await app.state.siblings.open(app))
                transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
                clients.append(httpx.AsyncClient(transport=transport, base_url="http://server"))
            await test(engines, clients, servers)

        uvloop.run(main())

    return run


def test_responses(run_both):
    async def test(engines, clients, servers):
        async def create(client, **body):
            return await client.post("/v1/responses", json={"model": "fake", "input": "One"} | body)

        first = (await create(clients[1])).json()
        for client in clients:
            assert (await client.get(f"/v1/responses/{first['id']}")).json() == first
            await create(client, input="Two", previous_response_id=first["id"])
            assert engines[0].requests[-1][0]["prompt"] == PROMPT
        items = [{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "Two"}]
        assert (await create(clients[1], input=items, store=False)).status_code == 200
        assert len(engines[0].requests) == 4 and not engines[1].requests

        own = (await create(clients[1], store=False, input=[{"role": "user", "content": "One"}])).json()
        assert len(engines[1].requests) == 1 and own["output"][0]["content"][0]["text"] == "Yes"
        streamed = await create(clients[1], stream=True)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.text.startswith("event: response.created") and "event: response.completed" in streamed.text

        bad = await clients[1].post("/v1/responses", content="{", headers={"content-type": "application/json"})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "body")
        for client in clients:
            assert (await client.get(f"/v1/responses/{own['id']}")).status_code == 404
            assert (await create(client, input="x" * 2000)).status_code == 413
        assert (await clients[1].delete(f"/v1/responses/{first['id']}")).json()["deleted"]
        assert (await clients[0].get(f"/v1/responses/{first['id']}")).status_code == 404

        servers[0].close()
        dead = await create(clients[1])
        assert (dead.status_code, dead.json()["error"]["message"]) == (503, "API process 0 does not answer.")

    run_both(test, max_request_bytes=1024)


def test_files_and_keys(run_both):
    async def test(engines, clients, servers):
        keys = {"Authorization": "Bearer secret"}
        files = {"file": ("in.jsonl", io.BytesIO(b"some text"))}
        assert (await clients[1].post("/v1/files", data={"purpose": "batch"}, files=files)).status_code == 401
        new = (await clients[1].post("/v1/files", data={"purpose": "batch"}, files=files, headers=keys)).json()
        for client in clients:
            assert (await client.get("/v1/files", headers=keys)).json()["data"] == [new]
            assert (await client.get(f"/v1/files/{new['id']}/content", headers=keys)).text == "some text"
        assert (await clients[1].get("/v1/batches", headers=keys)).json()["data"] == []

    run_both(test, api_key=("secret",))


def test_requests(run_both):
    def live(name, age):
        return LiveRequest(name, "decode", None, 1, 3, 3, 0, 1, 0, age, 0.0, 1.0, 2.0)

    async def test(engines, clients, servers):
        engines[0].live = [live("chatcmpl-a", 5.0), live("chatcmpl-b", 3.0)]
        engines[1].live = [live("chatcmpl-c", 4.0)]
        for client in clients:
            found = (await client.get("/v1/requests")).json()["data"]
            assert [request["id"] for request in found] == ["chatcmpl-a", "chatcmpl-c", "chatcmpl-b"]
            for name in "abc":
                assert (await client.get(f"/v1/requests/{name}")).json()["id"] == f"chatcmpl-{name}"
            assert (await client.delete("/v1/requests/d")).status_code == 404
        assert (await clients[1].delete("/v1/requests/b")).json()["deleted"]
        assert (await clients[0].delete("/v1/requests/c")).json()["deleted"]
        assert [engine.aborted for engine in engines] == [["chatcmpl-b"], ["chatcmpl-c"]]

    run_both(test)
