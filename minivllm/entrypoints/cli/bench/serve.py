"""`minivllm bench serve`: a load on a running server with an OpenAI-compatible API, seen from the client's side."""

import argparse
import datetime
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import uvloop

from minivllm.config import env
from minivllm.entrypoints.cli.bench import plot
from minivllm.entrypoints.cli.bench.datasets import Sample, add_dataset_options, make_samples
from minivllm.entrypoints.cli.bench.figures import GOODPUT_METRICS, LATENCIES, latencies_of, summarize, table
from minivllm.entrypoints.cli.bench.http_client import HttpClient
from minivllm.entrypoints.cli.bench.load import Outcome, arrival_times, run_load, send
from minivllm.errors import ConfigError, ServerError
from minivllm.text.tokenizer import Tokenizer, load_tokenizer
from minivllm.utils import hub

ENDPOINTS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
EPILOG = """\
Example:
  minivllm bench serve --num-prompts 64 --max-concurrency 8 --random-input-len 256 --random-output-len 128 --ignore-eos
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Send requests to a running server and measure latency and throughput as a client sees them."
    parser.epilog = EPILOG
    server = parser.add_argument_group("Server").add_argument
    server("--base-url", metavar="URL", help="The server, in place of host and port, as in http://localhost:8000")
    server("--host", default="127.0.0.1", help="(default: %(default)s)")
    server("--port", type=int, default=8000, metavar="N", help="(default: %(default)s)")
    server("--backend", choices=ENDPOINTS, default="openai", help="openai-chat sends each prompt as a message.")
    server("--endpoint", metavar="PATH", help="/v1/completions, or one that ends in /chat/completions (default: by backend)")
    server("--model", metavar="NAME", help="Model to ask for (default: the server's first)")
    server("--tokenizer", metavar="FOLDER", help="Folder or hub name of the model's tokenizer (default: as the server says)")
    server("--api-key", metavar="KEY", help="Key to send (default: MINIVLLM_API_KEY)")
    add_dataset_options(parser)
    load = parser.add_argument_group("Load").add_argument
    load("--seed", type=int, default=0, metavar="N", help="Same seed, same prompts and arrivals (default: %(default)s)")
    load("--request-rate", type=_positive, default=math.inf, metavar="X", help="Requests a second (default: inf, all at once)")
    load("--burstiness", type=_positive, default=1.0, metavar="X", help="1: Poisson arrivals; less: in bursts; more: evenly.")
    load("--max-concurrency", type=int, metavar="N", help="Requests in flight at a time; others wait before they are sent.")
    load("--num-warmups", type=int, default=1, metavar="N", help="Short requests before, not counted (default: %(default)s)")
    load("--ignore-eos", action="store_true", help="Let every output have its full length.")
    load("--temperature", type=float, default=0.0, metavar="X", help="(default: %(default)s)")
    load("--top-p", type=float, metavar="X", help="(default: the server's)")
    load("--top-k", type=int, metavar="N", help="(default: the server's)")
    load("--extra-body", type=_json_object, default={}, metavar="JSON", help="Further fields of every request.")
    result = parser.add_argument_group("Result").add_argument
    result(
        "--percentile-metrics", type=_names(LATENCIES), default=list(LATENCIES), metavar="LIST", help="Of ttft,tpot,itl,e2el."
    )
    result("--metric-percentiles", type=_percentiles, default=[90.0, 99.0], metavar="LIST", help="(default: 90,99)")
    result("--goodput", nargs="+", type=_limit, default=[], metavar="NAME:MS", help="As in ttft:200 tpot:50 e2el:5000.")
    result("--save-result", action="store_true", help="Write the figures to a JSON file.")
    result("--save-detailed", action="store_true", help="The figures of every request too.")
    result("--result-dir", type=Path, default=Path(), metavar="FOLDER", help="Where to write it (default: here)")
    result("--result-filename", metavar="NAME", help="(default: made of rate, concurrency, model and time)")
    result("--plot", metavar="FILE.png", help="Draw latencies and throughput (needs matplotlib).")
    result("--disable-tqdm", action="store_true", help="No progress bar.")


def run(args: argparse.Namespace) -> int:
    if args.plot:
        plot.check_available()
    return uvloop.run(_measure(args))


async def _measure(args: argparse.Namespace) -> int:
    keys = [args.api_key] if args.api_key else list(env.api_keys())
    base_url = (args.base_url or f"http://{args.host}:{args.port}").rstrip("/").removesuffix("/v1")
    client = HttpClient(base_url, {"Authorization": f"Bearer {keys[0]}"} if keys else {})
    try:
        args.model, root = await _find_model(client, base_url, args.model)
        tokenizer = _load_tokenizer(args.tokenizer or root)
        samples = make_samples(args, tokenizer, args.seed)
        path = args.endpoint or ENDPOINTS[args.backend]
        bodies = [_body(sample, args, path, tokenizer) for sample in samples]
        for _ in range(args.num_warmups):
            error = (await send(client, path, _body(Sample(samples[0].prompt[:4], 4, 4), args, path, tokenizer))).error
            if error:
                raise ServerError(f"the first request to {base_url}{path} failed: {error}")
        due = arrival_times(len(bodies), args.request_rate, args.burstiness, random.Random(args.seed))
        outcomes, duration = await run_load(client, path, bodies, due, args.max_concurrency, not args.disable_tqdm)
    finally:
        client.close()
    return _report(args, outcomes, duration)


def _report(args: argparse.Namespace, outcomes: list[Outcome], duration: float) -> int:
    figures = summarize(outcomes, duration, args.metric_percentiles, dict(args.goodput))
    settings: dict[str, float] = {}
    if args.max_concurrency:
        settings["Maximum request concurrency:"] = args.max_concurrency
    if math.isfinite(args.request_rate):
        settings["Request rate configured (RPS):"] = args.request_rate
    print("\n".join(table(figures, args.percentile_metrics, args.metric_percentiles, settings)))
    for reason, count in figures["failures"].items():
        print(f"{count} of {len(outcomes)} requests failed: {reason}", file=sys.stderr)
    if args.save_result or args.result_filename:
        path = args.result_dir / (args.result_filename or _file_name(args))
        path.write_text(json.dumps(_record(args, figures, outcomes), indent=1))
    if args.plot:
        plot.draw_load(args.plot, latencies_of([o for o in outcomes if o.error is None]), outcomes)
    return 1 if figures["failed"] else 0


def _record(args: argparse.Namespace, figures: dict[str, Any], outcomes: list[Outcome]) -> dict[str, Any]:
    record = {
        "date": datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend,
        "model_id": args.model,
        "dataset_name": args.dataset_name,
        "num_prompts": args.num_prompts,
        "request_rate": args.request_rate if math.isfinite(args.request_rate) else "inf",
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        **figures,
    }
    if args.save_detailed:
        record |= {
            "input_lens": [o.num_prompt_tokens for o in outcomes],
            "output_lens": [o.num_output_tokens for o in outcomes],
            "ttfts": [o.ttft if o.stamps else None for o in outcomes],
            "itls": [o.gaps for o in outcomes],
            "generated_texts": ["".join(o.text) for o in outcomes],
            "errors": [o.error for o in outcomes],
        }
    return record


def _file_name(args: argparse.Namespace) -> str:
    concurrency = f"-concurrency{args.max_concurrency}" if args.max_concurrency else ""
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{args.backend}-{args.request_rate:g}qps{concurrency}-{args.model.rpartition('/')[2]}-{time}.json"


async def _find_model(client: HttpClient, base_url: str, asked: str | None) -> tuple[str, str]:
    """Name of the model and what its tokenizer may be found by."""
    try:
        models = (await client.get("/v1/models"))["data"]
    except OSError as e:
        raise ConfigError(f"no server answers at {base_url} ({e}). Start one: minivllm serve MODEL") from e
    except (ValueError, KeyError, TypeError) as e:
        raise ServerError(f"{base_url}/v1/models does not tell the server's models.") from e
    for model in models:
        if asked in (None, model["id"]):
            return model["id"], model.get("root") or model["id"]
    if asked is None:
        raise ServerError(f"the server at {base_url} serves no model.")
    return asked, asked


def _load_tokenizer(name: str) -> Tokenizer:
    try:
        return load_tokenizer(hub.resolve_folder(name, what="tokenizer"))
    except ConfigError as e:
        raise ConfigError(f"{e.message} Name the folder of the model's tokenizer with --tokenizer.", param="tokenizer") from e


def _body(sample: Sample, args: argparse.Namespace, path: str, tokenizer: Tokenizer) -> bytes:
    prompt: dict[str, Any] = {"prompt": sample.prompt}
    if path.endswith("/chat/completions"):
        prompt = {"messages": [{"role": "user", "content": sample.text(tokenizer)}]}
    options = {"top_p": args.top_p, "top_k": args.top_k, "ignore_eos": args.ignore_eos or None}
    body = {
        "model": args.model,
        **prompt,
        "max_tokens": sample.output_len,
        "temperature": args.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: value for name, value in options.items() if value is not None},
        **args.extra_body,
    }
    return json.dumps(body).encode()


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return number


def _percentiles(text: str) -> list[float]:
    numbers = [float(part) for part in text.split(",")]
    if not all(0 <= number <= 100 for number in numbers):
        raise argparse.ArgumentTypeError(f"must be numbers from 0 to 100, got {text}")
    return numbers


def _names(known: Any) -> Any:
    def names(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"must be of {','.join(known)}, got {','.join(sorted(unknown))}")
        return found

    return names


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if name not in GOODPUT_METRICS or limit < 0:
        raise argparse.ArgumentTypeError(f"must be NAME:MILLISECONDS with a name of {', '.join(GOODPUT_METRICS)}, got {text!r}")
    return name, limit


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return value
