"""Ask a chat model offline: python examples/offline_chat.py [MODEL]"""

import sys

from minivllm import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "HuggingFaceTB/SmolLM2-135M-Instruct"
conversations = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Name three colours."}],
]

with LLM(model, max_model_len=2048) as llm:
    results = llm.chat(conversations, SamplingParams(temperature=0.7, max_tokens=64))
    for conversation, result in zip(conversations, results, strict=True):
        print(conversation[-1]["content"], "->", result.outputs[0].text)
