"""Files and batches over a fake engine: what clients see, and what is on disk when a server ends half way."""

import asyncio
import io
import json
from dataclasses import replace

import httpx
import pytest
from fakes import Client, FakeEngine

from minivllm.config.engine_args import AsyncEngineArgs
from minivllm.config.sections.pooling import PoolingConfig
from minivllm.config.sections.scheduler import SchedulerConfig
from minivllm.entrypoints.http.app import build_app, init_app_state, start_batches
from minivllm.errors import OverloadedError
from minivllm.messages.request import BACKGROUND_PRIORITY

CHAT = "/v1/chat/completions"


def line(custom_id, body=None, url=CHAT, **more):
    body = {"model": "fake", "messages": [{"role": "user", "content": f"ask {custom_id}"}]} if body is None else body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body} | more)


class Server:
    """The app with a storage folder, for the time of one event loop."""

    def __init__(self, folder, engine=None, **options):
        args = AsyncEngineArgs(model="org/fake", storage_dir=str(folder), **options)
        self.engine = engine or FakeEngine()
        self.engine.config = replace(self.engine.config, scheduler=SchedulerConfig(max_num_seqs=64))
        self.app = build_app(args.server)
        init_app_state(self.engine, self.app.state, args.server)
        start_batches(self.engine, self.app.state, args.server)
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://server")

    async def upload(self, text, **fields):
        files = {"file": ("in.jsonl", io.BytesIO(text.encode()))}
        return await self.client.post("/v1/files", data={"purpose": "batch"} | fields, files=files)

    async def batch(self, text, endpoint=CHAT, **fields):
        file_id = (await self.upload(text)).json()["id"]
        return (await self.client.post("/v1/batches", json={"input_file_id": file_id, "endpoint": endpoint} | fields)).json()

    async def get(self, path):
        return (await self.client.get(path)).json()

    async def until(self, batch_id, *statuses):
        while (batch := await self.get(f"/v1/batches/{batch_id}"))["status"] not in statuses:
            await asyncio.sleep(0.01)
        return batch

    async def lines(self, file_id):
        text = (await self.client.get(f"/v1/files/{file_id}/content")).text
        return {each["custom_id"]: each for each in map(json.loads, text.splitlines())}

    async def stop(self):
        await self.app.state.batch_runner.stop()
        await self.client.aclose()


def serve(test, *args, **options):
    async def main():
        server = Server(*args, **options)
        try:
            return await asyncio.wait_for(test(server), 20)
        finally:
            await server.stop()

    return asyncio.run(main())


def test_files(tmp_path):
    async def test(server):
        first = (await server.upload("a\n")).json()
        assert first | {"id": "", "created_at": 0} == {
            "id": "", "bytes": 2, "created_at": 0, "filename": "in.jsonl", "purpose": "batch", "object": "file",
            "status": "processed", "expires_at": None,
        }  # fmt: skip
        short = (await server.upload("b\n", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})).json()
        assert short["expires_at"] == short["created_at"] + 3600
        assert (await server.client.get(f"/v1/files/{first['id']}/content")).text == "a\n"
        listed = await server.get("/v1/files?limit=1&order=asc")
        assert listed["has_more"] and len(listed["data"]) == 1
        rest = await server.get(f"/v1/files?order=asc&after={listed['last_id']}")
        assert {f["id"] for f in listed["data"] + rest["data"]} == {first["id"], short["id"]} and not rest["has_more"]
        deleted = await server.client.delete(f"/v1/files/{first['id']}")
        assert deleted.json() == {"id": first["id"], "object": "file", "deleted": True}
        for path in (f"/v1/files/{first['id']}", f"/v1/files/{first['id']}/content", "/v1/files/file-../../etc"):
            assert (await server.client.get(path)).status_code == 404
        assert (await server.upload("x", purpose="fine-tune")).json()["error"]["param"] == "purpose"
        assert (await server.client.post("/v1/files", json={})).json()["error"]["param"] == "file"

    serve(test, tmp_path)


def test_a_batch(tmp_path):
    async def test(server):
        wrong = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "temperature": -1}
        text = "\n".join([line("a"), line("wrong", wrong), line("b"), ""])
        batch = await server.batch(text, metadata={"who": "me"})
        assert batch["status"] == "validating" and batch["metadata"] == {"who": "me"}
        assert batch["expires_at"] == batch["created_at"] + 86400
        done = await server.until(batch["id"], "completed")
        assert done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        output, errors = await server.lines(done["output_file_id"]), await server.lines(done["error_file_id"])
        assert set(output) == {"a", "b"} and set(errors) == {"wrong"}
        answer = output["a"]["response"]
        assert answer["status_code"] == 200 and answer["body"]["choices"][0]["message"]["content"].startswith("Hello")
        assert errors["wrong"]["response"]["status_code"] == 400
        assert errors["wrong"]["response"]["body"]["error"]["param"] == "temperature"
        assert all(priority == BACKGROUND_PRIORITY for *_, priority in server.engine.requests)
        assert [b["id"] for b in (await server.get("/v1/batches"))["data"]] == [batch["id"]]
        again = await server.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert again.status_code == 400 and "completed" in again.json()["error"]["message"]

    serve(test, tmp_path)


@pytest.mark.parametrize(
    ("text", "message", "number"),
    [
        ("", "no requests", None),
        ("{", "truncated", 1),
        (line("a") + "\n" + line("a"), "used twice", 2),
        (line("a", url="/v1/models"), "url must be one of", 1),
        (line("a", url="/v1/completions"), "the batch's endpoint", 1),
        (line("a", {"stream": True}), "no streams", 1),
        (line("a", method="GET"), "must be POST", 1),
        (line(""), "custom_id", 1),
        ('{"custom_id": 1}', "custom_id", 1),
    ],
)
def test_a_file_that_is_no_batch(tmp_path, text, message, number):
    async def test(server):
        failed = await server.until((await server.batch(text))["id"], "failed")
        (error,) = failed["errors"]["data"]
        assert message in error["message"] and error["line"] == number
        assert server.engine.requests == []

    serve(test, tmp_path)


def test_refusals(tmp_path):
    async def test(server):
        file_id = (await server.upload(line("a"))).json()["id"]
        for body, param in (
            ({"endpoint": CHAT}, "input_file_id"),
            ({"endpoint": "/v1/none", "input_file_id": file_id}, "endpoint"),
            ({"endpoint": CHAT, "input_file_id": file_id, "completion_window": "soon"}, "completion_window"),
            ({"endpoint": CHAT, "input_file_id": file_id, "completion_window": "31d"}, "completion_window"),
            ({"endpoint": CHAT, "input_file_id": file_id, "metadata": {"a": "x" * 600}}, "metadata.a"),
        ):
            reply = await server.client.post("/v1/batches", json=body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        missing = await server.client.post("/v1/batches", json={"endpoint": CHAT, "input_file_id": "file-none"})
        assert missing.status_code == 404 and (await server.client.get("/v1/batches/batch_x")).status_code == 404

    serve(test, tmp_path)


def test_without_a_folder_there_are_no_files():
    client = Client(FakeEngine())
    assert "--storage-dir" in client.get("/v1/files").json()["error"]["message"]
    assert client.post("/v1/batches", {"endpoint": CHAT, "input_file_id": "file-x"}).status_code == 404


def test_cancel_keeps_what_is_done(tmp_path):
    async def test(server):
        batch = await server.batch("\n".join(line(str(i)) for i in range(200)))
        while (await server.get(f"/v1/batches/{batch['id']}"))["request_counts"]["completed"] < 30:
            await asyncio.sleep(0.005)
        assert (await server.client.delete(f"/v1/files/{batch['input_file_id']}")).status_code == 400
        assert (await server.client.post(f"/v1/batches/{batch['id']}/cancel")).json()["status"] == "cancelling"
        done = await server.until(batch["id"], "cancelled")
        output, errors = await server.lines(done["output_file_id"]), await server.lines(done["error_file_id"])
        assert len(output) == done["request_counts"]["completed"] >= 30 and len(output) + len(errors) == 200
        assert {e["error"]["code"] for e in errors.values()} == {"batch_cancelled"} and not server.engine.running

    serve(test, tmp_path, FakeEngine(delay=0.03))


def test_expiry(tmp_path):
    async def test(server):
        batch = await server.batch("\n".join([line("a"), line("b")]), completion_window="1s")
        done = await server.until(batch["id"], "expired")
        assert {e["error"]["code"] for e in (await server.lines(done["error_file_id"])).values()} == {"batch_expired"}
        assert done["expired_at"] and done["output_file_id"] is None

    serve(test, tmp_path, FakeEngine(delay=1.0))


def test_a_batch_goes_on_after_a_restart(tmp_path):
    async def begin(server):
        batch = await server.batch("\n".join(line(str(i)) for i in range(200)))
        while (await server.get(f"/v1/batches/{batch['id']}"))["request_counts"]["completed"] < 30:
            await asyncio.sleep(0.005)
        return batch["id"]

    async def go_on(server):
        done = await server.until(batch_id, "completed")
        assert done["request_counts"] == {"total": 200, "completed": 200, "failed": 0}
        assert len(await server.lines(done["output_file_id"])) == 200
        return len(server.engine.requests)

    batch_id = serve(begin, tmp_path, FakeEngine(delay=0.03))
    half_written = tmp_path / "batches" / f"{batch_id}.output.jsonl"
    num_done = len(half_written.read_text().splitlines())
    with half_written.open("a") as file:
        file.write('{"id": "batch_req_cut, "custom')
    assert serve(go_on, tmp_path) == 200 - num_done


def test_a_full_queue_delays_a_batch_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("minivllm.entrypoints.batches.runner.RETRY_SECONDS", 0.01)

    async def test(server):
        server.engine.overloaded = OverloadedError("full")
        batch = await server.batch(line("a"))
        await server.until(batch["id"], "in_progress")
        await asyncio.sleep(0.05)
        server.engine.overloaded = None
        assert (await server.until(batch["id"], "completed"))["request_counts"]["completed"] == 1

    serve(test, tmp_path)


def test_embeddings_in_a_batch(tmp_path):
    async def test(server):
        text = line("a", {"input": "one two"}, "/v1/embeddings")
        batch = await server.until((await server.batch(text, "/v1/embeddings"))["id"], "completed", "failed")
        response = (await server.lines(batch["output_file_id"]))["a"]["response"]
        assert response["status_code"] == 200 and response["body"]["data"][0]["embedding"] == [2.0, 1.0]
        assert server.engine.pooled[0][3] == BACKGROUND_PRIORITY

    serve(test, tmp_path, FakeEngine(pooling=PoolingConfig(task="embed", types=("mean",), width=2)))
