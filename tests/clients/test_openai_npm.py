"""The `openai` npm package against a live server, a loop of tool calls too; skipped only where there is no Node.js."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
"""
CHAT = """
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
AGENT = """
const getWeather = ({ city }) => `${city}: 31 degrees, storm`;
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const described = { name: "get_weather", description: "Get the current weather of a city", parameters };
const options = { model: "qwen", temperature: 0, max_tokens: 40, tools: [{ type: "function", function: described }] };
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const first = await client.chat.completions.stream({ ...options, messages, parallel_tool_calls: false }).finalMessage();
messages.push(first);
const called = first.tool_calls.map(({ function: called }) => [called.name, JSON.parse(called.arguments)]);
for (const { id, function: { arguments: given } } of first.tool_calls)
  messages.push({ role: "tool", tool_call_id: id, content: getWeather(JSON.parse(given)) });
messages.push({ role: "user", content: "So, how is the weather in Paris? Answer in one English sentence, without JSON." });
const answer = (await client.chat.completions.create({ ...options, messages })).choices[0].message.content;
console.log(JSON.stringify({ answer, called }));
"""


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("npm"):
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "openai@^6"]
    subprocess.run(command, cwd=folder, check=True, timeout=180)
    return folder


def run(script: str, server: Any, folder: Path) -> Any:
    (folder / "client.mjs").write_text(HEAD + script)
    command = ["node", "client.mjs", server.url]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_openai_npm(server: Any, node_folder: Path) -> None:
    answer = run(CHAT, server, node_folder)
    assert answer["whole"].startswith("The capital of France is Paris")
    assert answer["text"] == answer["whole"]
    assert (answer["status"], answer["usage"]) == (404, 8)


def test_tool_is_called_and_answered(qwen: Any, node_folder: Path) -> None:
    answer = run(AGENT, qwen, node_folder)
    assert answer["called"] == [["get_weather", {"city": "Paris"}]] and "31" in answer["answer"]
