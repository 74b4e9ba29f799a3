"""What do grammars cost? Seconds of a decode step of 32 requests with and without one each, and where they go.

Run: python benchmarks/grammar.py <model folder> [--batch 32] [--steps 60] [--rounds 4]
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


def begin(engine: LLMEngine, batch: int, steps: int, form: StructuredOutputsParams | None) -> None:
    """Bring `batch` requests to where all of them decode, for `steps` steps at least."""
    for index in range(batch):
        params = SamplingParams(seed=index, max_tokens=steps + 30, ignore_eos=True, structured_outputs=form)
        params.output_kind = OutputKind.DELTA
        engine.add_request(str(index), f"{index}: people as JSON: ", params)
    while len(engine.step()) < batch:
        pass


def time_step(engine: LLMEngine) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    engine.step()
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    options = EngineArgs(model=args.model, max_model_len=2048, kv_cache_memory_bytes=1 << 28)
    forms = {"free": None, "grammar": StructuredOutputsParams(json=SCHEMA)}
    engines = {name: LLMEngine.from_engine_args(options) for name in forms}
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(args.rounds):
        for name, engine in engines.items():
            begin(engine, args.batch, args.steps, forms[name])
        # By turns, and neighbours compared: the speed of a machine that is shared drifts.
        for _ in range(args.steps):
            for name, engine in engines.items():
                times[name].append(time_step(engine))
        for engine in engines.values():
            while engine.has_unfinished():
                engine.step()
    for engine in engines.values():
        engine.shutdown()
    for name, each in times.items():
        print(f"{name:8} median {statistics.median(each):7.2f} ms, best {min(each):7.2f} ms a step of {args.batch}")
    more = statistics.median(grammar - free for free, grammar in zip(times["free"], times["grammar"], strict=True))
    share = 100 * more / statistics.median(times["free"])
    print(f"a grammar in each request: {more:+.2f} ms, {share:+.1f} % of a step (median of {len(times['free'])} neighbours)")


if __name__ == "__main__":
    main()
