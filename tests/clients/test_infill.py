"""Code between two texts, as editors ask for it: `suffix` through the `openai` package, and `/infill`."""

from typing import Any

import httpx

BEFORE, AFTER = "import numpy as np\n\nx = np.", "((3, 4))  # all zeros\n"


def test_suffix_and_infill(qwen: Any) -> None:
    choice = qwen.openai().completions.create(model="qwen", prompt=BEFORE, suffix=AFTER, max_tokens=6, temperature=0).choices[0]
    assert choice.text.startswith("zeros")
    body = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 6, "temperature": 0}
    reply = httpx.post(f"{qwen.url}/infill", json=body, timeout=60).json()
    assert reply["content"] == choice.text
    files = [{"filename": "names.py", "text": 'SECRET_GREETING = "Ahoy"\n'}]
    body |= {"input_prefix": "from names import SECRET_", "input_suffix": "\n", "input_extra": files, "n_predict": 6}
    reply = httpx.post(f"{qwen.url}/infill", json=body, timeout=60).json()
    assert reply["content"].startswith("GREETING")


def test_model_that_has_not_learnt_it(server: Any) -> None:
    reply = httpx.post(f"{server.url}/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "input_prefix"
