"""The server against its own OpenAPI schema: whatever is sent, no 500, no hang, and answers as they are described."""

import pytest
from fakes import Client, FakeEngine
from hypothesis import HealthCheck, settings

from minivllm.config.sections.pooling import PoolingConfig

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (minivllm[test])")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

# What a schema cannot say is refused too: ranges that depend on the model, fields that exclude each other.
EXCLUDED = [checks.positive_data_acceptance]
# They take the body of others, or fields of others: a few cases are enough.
ALIKE = [
    "/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/render", "/v1/responses/input_tokens",
    "/v1/messages/count_tokens", "/infill", "/apply-template",
]  # fmt: skip
ALIASES = ["/health/live", "/ping"]
# Their paths are also those of a response with that id, for other methods.
AMBIGUOUS = ("/v1/responses/input_tokens", "/v1/responses/render")


def schema_of(engine: FakeEngine, thorough: bool = True) -> object:
    for name in ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"):
        engine.tokenizer.learn(name)
    config = schemathesis.config.SchemathesisConfig.from_dict({"phases": {"coverage": {"enabled": thorough}}})
    return schemathesis.openapi.from_asgi("/openapi.json", Client(engine).app, config=config)


@schemathesis.pytest.parametrize(
    generating=schema_of(FakeEngine()).exclude(tag="Pooling").exclude(path=[*ALIKE, *ALIASES]),
    alike=schema_of(FakeEngine(), thorough=False).include(path=ALIKE),
    embedding=schema_of(FakeEngine(pooling=PoolingConfig(task="embed", types=("mean",), width=4))).include(tag="Pooling"),
    classifying=schema_of(
        FakeEngine(pooling=PoolingConfig(task="classify", types=("cls",), width=1, labels=("a",), activation="sigmoid"))
    ).include(path=["/classify", "/v1/rerank", "/pooling"]),
)
@settings(max_examples=2, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
def test_api(case: "schemathesis.Case") -> None:
    ambiguous = [checks.allow_header_conformance] if case.path in AMBIGUOUS else []
    case.call_and_validate(excluded_checks=EXCLUDED + ambiguous)
