"""Print an answer while it is written: python examples/stream_chat.py "a question" [BASE_URL]"""

import sys

from openai import OpenAI

question = sys.argv[1] if len(sys.argv) > 1 else "Tell me a short story about a lighthouse."
client = OpenAI(base_url=sys.argv[2] if len(sys.argv) > 2 else "http://localhost:8000/v1", api_key="none")

stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": question}],
    max_tokens=200,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    elif chunk.usage:
        print(f"\n[{chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out]")
