"""`LLM`: offline generation in a script or notebook, over the engine in this very process."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast

import msgspec
from tqdm.auto import tqdm

from minivllm.config.engine_args import EngineArgs
from minivllm.config.sharded_state import check_target
from minivllm.engine.sync_engine import LLMEngine
from minivllm.entrypoints.pooling.pairs import can_score, cosine, pair_up
from minivllm.errors import ClientError
from minivllm.messages.output import RequestOutput
from minivllm.messages.pooling_output import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.prompt import Prompt, TextPrompt, TokensPrompt
from minivllm.messages.sampling_params import OutputKind, SamplingParams
from minivllm.metrics.families import Metric
from minivllm.text.chat_template import ChatTemplate
from minivllm.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
T = TypeVar("T")


class LLM:
    """A loaded model. Options are those of `EngineArgs`, by keyword:

    >>> llm = LLM("HuggingFaceTB/SmolLM2-135M-Instruct", max_model_len=2048)
    >>> llm.generate(["The capital of France is"], SamplingParams(temperature=0))[0].outputs[0].text
    """

    def __init__(self, model: str, **options: Any):
        self.engine = LLMEngine.from_engine_args(EngineArgs(model=model, **options), progress=True)
        self._num_requests = 0
        self._templates: dict[str, ChatTemplate] = {}

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Outputs in the order of the prompts, each a text, a list of token ids or a dict of either.

        One `SamplingParams` for all or one for each; None: the model's own defaults. All prompts are checked before
        the first one runs. An interruption (Ctrl-C) aborts them all and leaves the engine usable.
        """
        given = _as_list(prompts)
        params = _one_each(sampling_params if sampling_params is not None else self.get_default_sampling_params(), len(given))
        final = [msgspec.structs.replace(each, output_kind=OutputKind.FINAL_ONLY) for each in params]
        return cast(list[RequestOutput], self._run_all(given, final, use_tqdm, priority))

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool = True,
        pooling_task: str | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What a pooling model makes of each prompt; `outputs.data.tolist()` are the numbers.

        `pooling_task` "token_embed" gives a vector for each token; None does what the model is for.
        """
        given = _as_list(prompts)
        params = _one_each(pooling_params if pooling_params is not None else PoolingParams(), len(given))
        if pooling_task is not None:
            params = [msgspec.structs.replace(each, task=pooling_task) for each in params]
        return cast(list[PoolingRequestOutput[PoolingOutput]], self._run_all(given, params, use_tqdm))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt: `outputs.embedding`."""
        found = self.encode(prompts, pooling_params, use_tqdm, "embed")
        return [_with(output, EmbeddingOutput(output.outputs.data.tolist())) for output in found]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of the classes for each prompt: `outputs.probs`."""
        found = self.encode(prompts, pooling_params, use_tqdm, "classify")
        return [_with(output, ClassificationOutput(output.outputs.data.tolist())) for output in found]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """How well the texts of each pair go together: `outputs.score`. One text goes with each of several others.

        By a cross-encoder, or by the cosine of two embeddings.
        """
        config = self.engine.config.pooling
        if config is None or not can_score(config):
            raise ClientError("The model does not support Score API", param="model")
        first, second = ([data] if isinstance(data, str) else list(data) for data in (data_1, data_2))
        pairs = pair_up(first, second, "data_1")
        if config.task == "classify":
            prompts: list[Prompt] = [TextPrompt(prompt=one, second=other) for one, other in pairs]
            found = self.encode(prompts, pooling_params, use_tqdm)
            return [_with(output, ScoringOutput(output.outputs.data.tolist()[0])) for output in found]
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        vectors = dict(zip(texts, self.embed(texts, pooling_params, use_tqdm), strict=True))
        scored = []
        for one, other in pairs:
            a, b = vectors[one], vectors[other]
            score = ScoringOutput(cosine(a.outputs.embedding, b.outputs.embedding))
            scored.append(PoolingRequestOutput(a.request_id, score, a.prompt_token_ids + b.prompt_token_ids))
        return scored

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, with the model's chat template (or the one given)."""
        conversations: Any = messages if messages and not isinstance(messages[0], Mapping) else [messages]
        template = self._template(chat_template, tools)
        texts = [
            template.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        # The template has written the special tokens already.
        encode = self.get_tokenizer().encode
        prompts = [TokensPrompt(prompt_token_ids=encode(text, add_special_tokens=False), prompt=text) for text in texts]
        return self.generate(prompts, sampling_params, use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends, else neutral."""
        defaults = dict(self.engine.config.generation.defaults)
        if "max_new_tokens" in defaults:
            defaults["max_tokens"] = defaults.pop("max_new_tokens")
        return SamplingParams(**defaults)

    def get_metrics(self) -> list[Metric]:
        """All metrics at this moment: objects with `name`, `labels` and `value` (or `count`, `sum`, `buckets`)."""
        return self.engine.get_metrics()

    def save_sharded_state(self, path: str, max_size: int = 1 << 30) -> None:
        """Write the weights divided as this engine divides them, with all else of the model folder, for
        `--load-format sharded_state`: in files of at most `max_size` bytes, not quantized, in the engine's number type.
        """
        target = Path(path).expanduser().absolute()
        check_target(self.engine.config, target)
        self.engine.call("save_sharded_state", str(target), max_size)

    def shutdown(self) -> None:
        """Free the model and its memory."""
        self.engine.shutdown()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def _run_all(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams | PoolingParams],
        use_tqdm: bool,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput | PoolingRequestOutput[PoolingOutput]]:
        priorities = _one_each(priority if priority is not None else 0, len(prompts))
        ids: list[str] = []
        try:
            for prompt, each, urgency in zip(prompts, params, priorities, strict=True):
                self._num_requests += 1
                ids.append(str(self._num_requests))
                self.engine.add_request(ids[-1], prompt, each, urgency)
            found = {output.request_id: output for output in self._run(len(ids), use_tqdm)}
        finally:
            if self.engine.has_unfinished():
                self.engine.abort_all()
        return [found[request_id] for request_id in ids]

    def _run(self, num_requests: int, use_tqdm: bool) -> Iterator[RequestOutput | PoolingRequestOutput[PoolingOutput]]:
        num_prompt = num_output = 0
        bar = tqdm(total=num_requests, desc="Processed prompts", dynamic_ncols=True, disable=not use_tqdm)
        with bar, _interrupts_between_steps() as raise_if_interrupted:
            while self.engine.has_unfinished():
                raise_if_interrupted()
                for output in self.engine.step():
                    num_prompt += len(output.prompt_token_ids)
                    if isinstance(output, RequestOutput):
                        num_output += sum(len(choice.token_ids) for choice in output.outputs)
                    seconds = max(bar.format_dict["elapsed"], 1e-3)
                    speeds = f"input: {num_prompt / seconds:.2f} toks/s, output: {num_output / seconds:.2f} toks/s"
                    bar.set_postfix_str(speeds, refresh=False)
                    bar.update()
                    yield output

    def _template(self, source: str | None, tools: list[dict[str, Any]] | None) -> ChatTemplate:
        tokenizer = self.get_tokenizer()
        if source is None:
            name = "tool_use" if tools and "tool_use" in tokenizer.chat_templates else "default"
            source = tokenizer.chat_templates.get(name)
        if source is None:
            raise ClientError("This model has no chat template: give one by chat_template.", param="chat_template")
        if source not in self._templates:
            self._templates[source] = ChatTemplate(source, tokenizer.template_tokens)
        return self._templates[source]


@contextmanager
def _interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """Ctrl-C in the midst of a step would leave the engine half-way through it: it waits until the step is done.

    The second one does not wait. Where handlers cannot be set (not the main thread), nothing changes.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def remember(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt

    def raise_if_interrupted() -> None:
        if caught:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield raise_if_interrupted
        raise_if_interrupted()
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _with(output: PoolingRequestOutput[PoolingOutput], outputs: T) -> PoolingRequestOutput[T]:
    return PoolingRequestOutput(output.request_id, outputs, output.prompt_token_ids, True, output.num_cached_tokens)


def _as_list(prompts: Any) -> list[Prompt]:
    single = isinstance(prompts, (str, dict)) or (len(prompts) and isinstance(prompts[0], int))
    return [prompts] if single else list(prompts)


def _one_each(given: T | Sequence[T], count: int) -> list[T]:
    if not isinstance(given, Sequence):
        return list(repeat(given, count))
    if len(given) != count:
        raise ClientError(f"There are {count} prompts, but {len(given)} sampling_params or priorities: give one for each.")
    return list(given)
