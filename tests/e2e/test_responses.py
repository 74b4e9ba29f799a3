"""`/v1/responses` with a real model, through the `openai` SDK."""

import json

QUESTION = "What is the capital of France?"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
    "required": ["city", "big"],
    "additionalProperties": False,
}


def test_responses(server) -> None:
    responses = server.openai().responses
    options = {"model": "smollm2", "temperature": 0, "max_output_tokens": 16}
    whole = responses.create(input=QUESTION, **options)
    assert whole.output_text.startswith("The capital of France is Paris") and whole.status == "completed"
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (37, 8)
    with responses.stream(input=QUESTION, **options) as stream:
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == whole.output_text
    second = responses.create(input="And of Italy?", previous_response_id=whole.id, **options)
    assert "Rome" in second.output_text and second.usage.input_tokens_details.cached_tokens >= 32
    form = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    bound = responses.create(model="smollm2", input=QUESTION, text={"format": form}, max_output_tokens=60, temperature=0)
    answer = json.loads(bound.output_text)
    assert list(answer) == ["city", "big"] and isinstance(answer["city"], str) and isinstance(answer["big"], bool)


def test_how_responses_end(server) -> None:
    client = server.openai()
    long = {"model": "smollm2", "input": "Write a long story.", "extra_body": {"ignore_eos": True}}
    slow = client.responses.create(**long | {"extra_body": {"ignore_eos": True, "timeout_ms": 500}})
    assert (slow.status, slow.incomplete_details.reason) == ("incomplete", "timeout") and slow.output_text
    with client.responses.create(**long, stream=True) as stream:
        response_id = next(iter(stream)).response.id
        client.delete(f"/requests/{response_id}", cast_to=object)
        *_, last = stream
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    later = client.responses.create(**long, background=True)
    while not client.responses.retrieve(later.id).output_text:
        pass
    cancelled = client.responses.cancel(later.id)
    assert cancelled.status == "cancelled" and cancelled.usage.output_tokens > 0
    refused = client.responses.create(model="smollm2", input="long " * 9000, background=True)
    while (refused := client.responses.retrieve(refused.id)).status == "queued":
        pass
    assert (refused.status, refused.error.code) == ("failed", "invalid_prompt")
