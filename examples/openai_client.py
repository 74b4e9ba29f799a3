"""Ask a running server with the openai package: python examples/openai_client.py [BASE_URL]"""

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="none")
model = client.models.list().data[0].id

answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    max_tokens=32,
    temperature=0,
)
print(answer.choices[0].message.content)
print(answer.usage)

# Parameters that OpenAI does not have go into extra_body.
completion = client.completions.create(
    model=model, prompt="The capital of France is", max_tokens=8, logprobs=2, extra_body={"top_k": 20, "min_p": 0.05}
)
print(completion.choices[0].text)
