"""Batches as their users meet them: through the openai SDK, over a kill of the server, and by `minivllm run-batch`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def requests_file(folder: Path, count: int, max_tokens: int = 8) -> Path:
    path = folder / "in.jsonl"
    bodies = [{"model": "m", "prompt": f"{i} + 1 =", "max_tokens": max_tokens, "temperature": 0} for i in range(count)]
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": b} for i, b in enumerate(bodies)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_batch_survives_a_kill(launch, smollm2: Path, tmp_path: Path) -> None:
    flags = (
        "--served-model-name",
        "m",
        "--max-model-len",
        "1k",
        "--max-num-seqs",
        "8",
        "--storage-dir",
        str(tmp_path / "kept"),
    )
    with launch(smollm2, *flags) as server:
        client = server.openai()
        uploaded = client.files.create(file=requests_file(tmp_path, 24, 24), purpose="batch")
        batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h")
        online = client.completions.create(model="m", prompt="Hi", max_tokens=2)  # is served in between
        assert online.usage.completion_tokens == 2
        while (known := client.batches.retrieve(batch.id)).request_counts.completed < 4:
            time.sleep(0.02)
        assert known.status == "in_progress"
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(10)
    with launch(smollm2, *flags) as server:
        client = server.openai()
        while (done := client.batches.retrieve(batch.id)).status == "in_progress":
            time.sleep(0.05)
        assert (done.status, done.request_counts.completed, done.error_file_id) == ("completed", 24, None)
        answers = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
        assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(24))
        alone = client.completions.create(model="m", prompt="7 + 1 =", max_tokens=24, temperature=0)
        (seventh,) = [a["response"]["body"] for a in answers if a["custom_id"] == "7"]
        assert seventh["choices"][0]["text"] == alone.choices[0].text
        assert {file.id for file in client.files.list()} == {uploaded.id, done.output_file_id}


def test_run_batch(smollm2: Path, tmp_path: Path) -> None:
    source, target = requests_file(tmp_path, 6), tmp_path / "out.jsonl"
    with source.open("a") as file:
        wrong = {"model": "m", "prompt": "x", "top_p": 7}
        file.write(json.dumps({"custom_id": "wrong", "method": "POST", "url": "/v1/completions", "body": wrong}) + "\n")
    command = [sys.executable, "-m", "minivllm", "run-batch", "-i", str(source), "-o", str(target)]
    flags = ["--model", str(smollm2), "--served-model-name", "m", "--max-model-len", "1k"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "6 of 7 requests served, 1 refused" in done.stdout, done.stderr
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [*map(str, range(6)), "wrong"]
    assert answers[0]["response"]["body"]["usage"]["completion_tokens"] == 8
    assert answers[6]["response"]["body"]["error"]["param"] == "top_p"
    source.write_text("{}\n")
    failed = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120)
    assert failed.returncode == 1 and "line 1" in failed.stderr and "Traceback" not in failed.stderr
