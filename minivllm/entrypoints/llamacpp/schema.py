"""Wire types of `/infill`, with the names of llama.cpp's server."""

from typing import Annotated

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from minivllm.entrypoints.openai.shared_schema import Bool, Float, GenerationRequest, Int

MAX_FILES = 1024


class ExtraFile(BaseModel):
    filename: str = "file"
    text: str


class InfillRequest(GenerationRequest):
    """What stands before and after the gap; `prompt` is how what fills it begins. The server's own names work too."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] | None = Field(None, max_length=MAX_FILES)
    prompt: str = ""
    n_predict: Int | None = None  # -1: up to the end of the context
    repeat_penalty: Float | None = None
    t_max_prompt_ms: Annotated[Int, Field(ge=0)] | None = None
    t_max_predict_ms: Annotated[Int, Field(ge=0)] | None = None  # 0: no limit
    cache_prompt: Bool | None = None  # accepted without effect: prompts are cached


class Infilled(TypedDict):
    content: str
    stop: bool
    stop_type: str
    stopping_word: str
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
