"""The HTTP side. `AsyncEngineArgs.server`; the engine does not see it."""

from dataclasses import dataclass

from minivllm.config.option import option


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """Server"""

    host: str | None = option(None, "Address to listen on. Default: all.")
    port: int = option(8000, "Port to listen on; 0: any free one.", low=0, high=65535)
    uds: str | None = option(None, "Unix socket to listen on, in place of host and port.", metavar="PATH")
    api_server_count: int = option(
        1, "Processes that share the address and the engine: HTTP, tokenizing and streaming run in each.", low=1, short="-asc"
    )
    api_key: tuple[str, ...] = option(
        (),
        "Keys of which clients must send one (Authorization: Bearer KEY). Default: MINIVLLM_API_KEY.",
        secret=True,
        metavar="KEY",
    )
    admin_api_key: tuple[str, ...] = option(
        (),
        "Keys that may see and cancel everyone's requests (/v1/requests). Default: MINIVLLM_ADMIN_API_KEY, or any client.",
        secret=True,
        metavar="KEY",
    )
    root_path: str = option("", "Path prefix that a proxy in front strips.")
    ssl_keyfile: str | None = option(None, "Private key of the TLS certificate.", metavar="FILE")
    ssl_certfile: str | None = option(None, "TLS certificate; the server then speaks https.", metavar="FILE")
    ssl_ca_certs: str | None = option(None, "Certificates that may sign those of clients.", metavar="FILE")
    ssl_cert_reqs: int = option(0, "Certificates of clients. 0: not asked for; 1: checked if sent; 2: required.", low=0, high=2)
    allowed_origins: tuple[str, ...] = option(
        (), "Web origins whose pages may call the server (CORS); '*': all.", metavar="ORIGIN"
    )
    allow_credentials: bool = option(False, "Let pages of those origins send cookies and credentials.")
    allowed_methods: tuple[str, ...] = option(("*",), "Methods that those pages may use. Default: all.", metavar="METHOD")
    allowed_headers: tuple[str, ...] = option(("*",), "Headers that those pages may send. Default: all.", metavar="HEADER")
    chat_template: str | None = option(
        None, "Chat template in place of the model's: a Jinja file, or the template itself.", metavar="FILE"
    )
    tool_call_parser: str = option(
        "auto",
        "Format in which the model writes tool calls; 'auto': told by its chat template. See docs/tools.md for the names.",
        metavar="NAME",
    )
    reasoning_parser: str = option(
        "auto",
        "Format of the model's thoughts; 'auto': told by its chat template; 'none': they are part of the answer.",
        metavar="NAME",
    )
    enable_auto_tool_choice: bool = option(
        True, "Models may choose to call tools; if not, only tool_choice 'required' or a named tool works."
    )
    response_role: str = option("assistant", "Role of the answers to chat requests.")
    enable_request_id_headers: bool = option(False, "Add X-Request-Id to each response.")
    uvicorn_log_level: str = option(
        "info", "How much the web server logs.", choices=("critical", "error", "warning", "info", "debug", "trace")
    )
    disable_fastapi_docs: bool = option(False, "No /docs, /redoc and /openapi.json.")
    shutdown_timeout: float = option(
        30.0,
        "Seconds that running requests may still take after a SIGTERM or Ctrl-C; 0: end them at once.",
        low=0,
        metavar="SECONDS",
    )
    storage_dir: str | None = option(
        None, "Folder for /v1/files and /v1/batches, made if need be; without it there are none.", metavar="DIR"
    )
    max_request_bytes: int = option(
        32 << 20, "Largest body of a request; larger ones get status 413. Default: 32 MiB.", low=1024, metavar="BYTES"
    )
