#!/bin/sh
# The API with nothing but curl: sh examples/curl.sh [BASE_URL]
url=${1:-http://localhost:8000}
json='Content-Type: application/json'

echo "== Models"
curl -sS "$url/v1/models"

echo; echo "== A chat, streamed as server-sent events"
curl -sSN "$url/v1/chat/completions" -H "$json" -d '{
  "model": "smollm2", "stream": true, "max_tokens": 8,
  "messages": [{"role": "user", "content": "What is the capital of France?"}]}'

echo "== Two completions of one text, with the log probabilities of their tokens"
curl -sS "$url/v1/completions" -H "$json" -d '{
  "model": "smollm2", "prompt": "The capital of France is", "n": 2, "max_tokens": 4, "logprobs": 1, "seed": 1}'

echo; echo "== Text to tokens"
curl -sS "$url/tokenize" -H "$json" -d '{"model": "smollm2", "prompt": "Hello, world"}'

echo; echo "== What a mistake looks like"
curl -sS "$url/v1/completions" -H "$json" -d '{"model": "smollm2", "prompt": "x", "temperature": -1}'

echo; echo "== Some of the metrics"
curl -sS "$url/metrics" | grep -E '^minivllm:(num_requests|kv_cache|generation_tokens)'
