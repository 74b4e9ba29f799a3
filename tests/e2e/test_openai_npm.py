"""The `openai` npm package against a live server; skipped only where there is no Node.js."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const options = { model: "smollm2", messages, temperature: 0, max_tokens: 12 };
const whole = await client.chat.completions.create(options);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...options, stream: true }))
  text += chunk.choices[0]?.delta?.content ?? "";
let status = 0;
try { await client.completions.create({ model: "other", prompt: "x" }); } catch (error) { status = error.status; }
console.log(JSON.stringify({ whole: whole.choices[0].message.content, text, status, usage: whole.usage.completion_tokens }));
"""


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("npm"):
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "client.mjs").write_text(SCRIPT)
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "openai@^6"]
    subprocess.run(command, cwd=folder, check=True, timeout=180)
    return folder


def test_openai_npm(server, node_folder: Path) -> None:
    command = ["node", "client.mjs", server.url]
    done = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stdout)
    assert answer["whole"].startswith("The capital of France is Paris")
    assert answer["text"] == answer["whole"]
    assert (answer["status"], answer["usage"]) == (404, 8)
