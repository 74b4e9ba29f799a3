"""`POST /tokenize`, `/detokenize` and `/apply-template`: text and messages ↔ token ids, as in the endpoints that generate."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from minivllm.entrypoints.chat.prompt import encode
from minivllm.entrypoints.chat.request import ChatRequest
from minivllm.entrypoints.http.dependencies import JSONRoute, app_state
from minivllm.entrypoints.openai import sampling_codec as sampling
from minivllm.entrypoints.openai.chat_schema import ChatMessage, ToolDefinition
from minivllm.entrypoints.openai.reply import json_response
from minivllm.entrypoints.openai.shared_schema import ERRORS, Bool, TokenIds
from minivllm.entrypoints.openai.tools_codec import decode_tools
from minivllm.errors import ClientError
from minivllm.messages.sampling_params import SamplingParams

router = APIRouter(tags=["Server"], route_class=JSONRoute)


class TemplateRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[ChatMessage]
    add_generation_prompt: Bool | None = None
    continue_final_message: Bool | None = None
    tools: list[ToolDefinition] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Templated(TypedDict):
    prompt: str


class TokenizeRequest(TemplateRequest):
    """Give `prompt` or `messages`."""

    prompt: str | None = None
    messages: list[ChatMessage] | None = None  # type: ignore[assignment]
    add_special_tokens: Bool | None = None  # default: true for a prompt, false for messages
    return_token_strs: Bool | None = None


class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    tokens: TokenIds


class Detokenized(TypedDict):
    prompt: str


@router.post("/tokenize", responses={200: {"model": Tokenized}, **ERRORS})
async def tokenize(body: TokenizeRequest, raw_request: Request) -> Response:
    state = app_state(raw_request)
    tokenizer = state.engine.tokenizer
    sampling.check_model(body.model, state.engine.config.model.served_model_names)
    if (body.prompt is None) == (body.messages is None):
        raise ClientError("Give either `prompt` or `messages`.", param="prompt")
    if body.messages is not None:
        request = _chat_request(body, body.messages)
        request.add_special_tokens = bool(body.add_special_tokens)
        tokens = (await state.prompts.render(request))["prompt_token_ids"]
    else:
        tokens = await encode(tokenizer, body.prompt or "", body.add_special_tokens is not False)
    return json_response(
        {
            "count": len(tokens),
            "max_model_len": state.engine.max_model_len,
            "tokens": tokens,
            "token_strs": [tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None,
        }
    )


@router.post("/apply-template", responses={200: {"model": Templated}, **ERRORS})
async def apply_template(body: TemplateRequest, raw_request: Request) -> Response:
    """Messages as the text that the model would see."""
    state = app_state(raw_request)
    sampling.check_model(body.model, state.engine.config.model.served_model_names)
    return json_response({"prompt": (await state.prompts.render(_chat_request(body, body.messages))).get("prompt")})


@router.post("/detokenize", responses={200: {"model": Detokenized}, **ERRORS})
async def detokenize(body: DetokenizeRequest, raw_request: Request) -> Response:
    engine = app_state(raw_request).engine
    sampling.check_model(body.model, engine.config.model.served_model_names)
    size = engine.tokenizer.size
    wrong = next((token for token in body.tokens or [] if not 0 <= token < size), None)
    if body.tokens is None or wrong is not None:
        raise ClientError(f"tokens must be a list of ids from 0 to {size - 1}, got {wrong}.", param="tokens")
    return json_response({"prompt": engine.tokenizer.decode(body.tokens)})


def _chat_request(body: TemplateRequest, messages: list[ChatMessage]) -> ChatRequest:
    continue_final = bool(body.continue_final_message)
    return ChatRequest(
        messages=[message.model_dump(exclude_unset=True) for message in messages],
        sampling_params=SamplingParams(),
        tools=[tool.for_template() for tool in decode_tools(body.tools)] or None,
        add_generation_prompt=not continue_final if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continue_final,
        template_kwargs=body.chat_template_kwargs or {},
    )
