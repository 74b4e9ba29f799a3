"""What do grammars cost? Seconds of a decode step of 32 requests with and without one each, and where they go.

Run: python benchmarks/grammar.py <model folder> [--batch 32] [--steps 40]
"""

import argparse
import statistics
import time

from minivllm import EngineArgs, SamplingParams, StructuredOutputsParams
from minivllm.engine.sync_engine import LLMEngine
from minivllm.messages.sampling_params import OutputKind

# Never ends within the steps measured, and is mostly free text: the usual case, and the costly one for a sampler.
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "date": {"type": "string", "format": "date"},
            "score": {"type": "number"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        },
        "required": ["name", "date", "score", "tags"],
        "additionalProperties": False,
    },
}


def measure(engine: LLMEngine, batch: int, steps: int, form: StructuredOutputsParams | None) -> list[float]:
    """Milliseconds of each decode step of `batch` requests."""
    for index in range(batch):
        params = SamplingParams(seed=index, max_tokens=steps + 30, ignore_eos=True, structured_outputs=form)
        params.output_kind = OutputKind.DELTA
        engine.add_request(str(index), f"{index}: people as JSON: ", params)
    times = []
    while engine.has_unfinished():
        begin = time.perf_counter()
        outputs = engine.step()
        if len(outputs) == batch:
            times.append((time.perf_counter() - begin) * 1e3)
    return times[:steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    engine = LLMEngine.from_engine_args(EngineArgs(model=args.model, max_model_len=2048))
    found: dict[str, list[float]] = {"free": [], "grammar": []}
    forms = {"free": None, "grammar": StructuredOutputsParams(json=SCHEMA)}
    for _ in range(args.rounds):
        for name, form in forms.items():
            found[name] += measure(engine, args.batch, args.steps, form)
    engine.shutdown()
    for name, times in found.items():
        print(f"{name:8} median {statistics.median(times):7.2f} ms, best {min(times):7.2f} ms a step of {args.batch}")
    more = statistics.median(found["grammar"]) / statistics.median(found["free"]) - 1
    print(f"a grammar in each request: {100 * more:+.1f} % of a step")


if __name__ == "__main__":
    main()
