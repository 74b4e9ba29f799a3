"""A client of a running server, as small as `minivllm chat` and `minivllm complete` need it."""

import argparse
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from minivllm.config import env
from minivllm.errors import ClientError, ConfigError, ServerError

TIMEOUT = 600  # seconds without a byte


def add_client_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://localhost:8000/v1", help="The server (default: %(default)s)")
    parser.add_argument("--model-name", metavar="NAME", help="Model to ask for (default: the server's first)")
    parser.add_argument("--api-key", metavar="KEY", help="Key to send (default: MINIVLLM_API_KEY)")


class Client:
    """Asks one server for one model; every failure is an error of one line."""

    def __init__(self, args: argparse.Namespace):
        self.url = args.url.rstrip("/").removesuffix("/v1") + "/v1"
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url must begin with http:// or https://, got {args.url!r}.", param="url")
        keys = [args.api_key] if args.api_key else list(env.api_keys())
        self.headers = {"Content-Type": "application/json"}
        if keys:
            self.headers["Authorization"] = f"Bearer {keys[0]}"
        self.model = args.model_name or self._first_model()

    def stream(self, path: str, **body: Any) -> Iterator[dict[str, Any]]:
        """The first choice of each event of a streamed answer."""
        with self._open(path, {"model": self.model, "stream": True, **body}) as response:
            try:
                for line in response:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        event = json.loads(line[6:])
                        if "error" in event:
                            raise ServerError(event["error"]["message"])
                        yield from event.get("choices", [])[:1]
            except (http.client.HTTPException, OSError) as e:
                raise ServerError(f"the connection to {self.url} broke: {e}") from e

    def _first_model(self) -> str:
        with self._open("/models") as response:
            models = json.loads(response.read())["data"]
        if not models:
            raise ServerError(f"the server at {self.url} serves no model.")
        return str(models[0]["id"])

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers)
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as e:
            raise ClientError(_message(e)) from e
        except (OSError, http.client.HTTPException) as e:
            reason = getattr(e, "reason", e)
            raise ConfigError(f"no server answers at {self.url} ({reason}). Start one: minivllm serve MODEL") from e


def _message(e: urllib.error.HTTPError) -> str:
    text = e.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {e.code}: {text[:200]}"
