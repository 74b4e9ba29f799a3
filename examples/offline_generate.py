"""Complete a few prompts offline: python examples/offline_generate.py [MODEL]"""

import sys

from minivllm import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "HuggingFaceTB/SmolLM2-135M-Instruct"
prompts = ["The capital of France is", "1, 2, 3, 4, 5,", "def fibonacci(n):"]

with LLM(model, max_model_len=2048) as llm:
    for result in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=32)):
        print(f"{result.prompt!r} -> {result.outputs[0].text!r}")
