"""`build_app()` and `init_app_state()`: the FastAPI app without and with its engine. Used by `lifecycle` and tests."""

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.datastructures import State

from minivllm.config.sections.server import ServerConfig
from minivllm.entrypoints.anthropic.serving import AnthropicServingMessages
from minivllm.entrypoints.batches.internal_call import BackgroundEngine, Call, caller
from minivllm.entrypoints.batches.runner import BatchRunner
from minivllm.entrypoints.batches.storage import BatchStore, FileStore
from minivllm.entrypoints.chat.prompt import ChatPrompts
from minivllm.entrypoints.chat.session import ChatSessions
from minivllm.entrypoints.http.errors import install_error_handlers
from minivllm.entrypoints.http.middleware import middleware
from minivllm.entrypoints.http.routers import ROUTERS
from minivllm.entrypoints.llamacpp.serving import ServingInfill
from minivllm.entrypoints.openai.chat_serving import OpenAIServingChat
from minivllm.entrypoints.openai.completion_serving import OpenAIServingCompletion
from minivllm.entrypoints.pooling.embedding_serving import OpenAIServingEmbedding
from minivllm.entrypoints.pooling.score_serving import ServingScores
from minivllm.entrypoints.responses.serving import OpenAIServingResponses
from minivllm.entrypoints.responses.store import ResponseStore
from minivllm.text.parsers.registry import Dialect, check_names, choose
from minivllm.version import __version__

if TYPE_CHECKING:
    from minivllm.engine.async_engine import AsyncLLMEngine
    from minivllm.entrypoints.http.siblings import Siblings


MAX_BATCH_LINES = 64  # lines of a batch in the engine at a time


class AppState(State):
    """What routes find at `request.app.state`; complete after `init_app_state`."""

    engine: "AsyncLLMEngine"
    prompts: ChatPrompts
    chat_sessions: ChatSessions
    openai_serving_chat: OpenAIServingChat
    openai_serving_completion: OpenAIServingCompletion
    openai_serving_responses: OpenAIServingResponses
    anthropic_serving_messages: AnthropicServingMessages
    serving_infill: ServingInfill
    batch_runner: BatchRunner | None
    openai_serving_embedding: OpenAIServingEmbedding
    serving_scores: ServingScores
    siblings: "Siblings | None"  # the API processes, if there are several
    started: int  # Unix time
    draining: bool


def build_app(server: ServerConfig) -> FastAPI:
    """The app with all routes; it can answer once `init_app_state` has been called. `ConfigError` for an unknown parser."""
    check_names(server.tool_call_parser, server.reasoning_parser)
    docs = not server.disable_fastapi_docs
    app = FastAPI(
        title="minivllm",
        version=__version__,
        summary="OpenAI-compatible inference server",
        middleware=middleware(server),
        root_path=server.root_path,
        redirect_slashes=False,
        openapi_url="/openapi.json" if docs else None,
        docs_url="/docs" if docs else None,
        redoc_url="/redoc" if docs else None,
    )
    app.state = AppState()
    app.state.draining = False
    install_error_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    return app


def init_app_state(
    engine: "AsyncLLMEngine", state: AppState, server: ServerConfig, responses: ResponseStore | None = None
) -> None:
    """Make the serving objects on a ready engine. `ClientError` if the chat template is broken.

    `responses`: those of another app, to know them too.
    """
    config = engine.config
    fingerprint = "fp_" + hashlib.sha256(f"{__version__} {config.model.path} {config.model.dtype}".encode()).hexdigest()[:10]
    state.engine = engine
    template = server.chat_template or engine.tokenizer.chat_template
    tool_template = None if server.chat_template else engine.tokenizer.chat_templates.get("tool_use")
    dialect = _dialect(engine, f"{template or ''}{tool_template or ''}", server)
    state.prompts = ChatPrompts(engine.tokenizer, template, tool_template, dialect.calls.layout)
    state.chat_sessions = ChatSessions(engine, state.prompts, dialect, server.enable_auto_tool_choice)
    state.openai_serving_chat = OpenAIServingChat(engine, state.chat_sessions, fingerprint, server.response_role)
    state.openai_serving_completion = OpenAIServingCompletion(engine, fingerprint)
    state.openai_serving_responses = OpenAIServingResponses(
        engine, state.chat_sessions, ResponseStore() if responses is None else responses
    )
    state.anthropic_serving_messages = AnthropicServingMessages(engine, state.prompts, state.chat_sessions)
    state.serving_infill = ServingInfill(engine)
    state.batch_runner = None
    state.openai_serving_embedding = OpenAIServingEmbedding(engine, state.prompts)
    state.serving_scores = ServingScores(engine)
    state.siblings = None
    state.started = int(time.time())
    state.draining = False


def _dialect(engine: "AsyncLLMEngine", template: str, server: ServerConfig) -> Dialect:
    special_ids = {engine.tokenizer.token_text(index): index for index in engine.tokenizer.special_ids}
    return choose(template, special_ids, server.tool_call_parser, server.reasoning_parser)


def background_call(engine: "AsyncLLMEngine", server: ServerConfig, responses: ResponseStore | None = None) -> Call:
    """Calls the same routes as background work, without keys and limits of clients."""
    app = build_app(ServerConfig(disable_fastapi_docs=True))
    init_app_state(BackgroundEngine(engine), app.state, server, responses)  # type: ignore[arg-type]
    return caller(app)


def start_batches(engine: "AsyncLLMEngine", state: AppState, server: ServerConfig) -> None:
    """Batches that an earlier server did not finish go on. `ConfigError` if the folder cannot be used."""
    if server.storage_dir is not None:
        folder = Path(server.storage_dir).expanduser()
        concurrency = min(MAX_BATCH_LINES, max(1, engine.config.scheduler.max_num_seqs // 2))
        call = background_call(engine, server, state.openai_serving_responses.store)
        state.batch_runner = BatchRunner(FileStore(folder / "files"), BatchStore(folder / "batches"), call, concurrency)
