"""A core that says what it is told: each request gets the tokens of a text, one a step. For tests of the engine above it."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

from fake_worker import make_config
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from minivllm.config.model_spec import ModelSpec
from minivllm.config.sections.generation import GenerationConfig
from minivllm.errors import ClientError, EngineDeadError
from minivllm.messages.output import EngineReady, FinishReason, TokenOutput, TokenOutputs
from minivllm.messages.stats import SchedulerStats
from minivllm.messages.step import TokenLogprobs
from minivllm.text.tokenizer import Tokenizer

EOS = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXTS = ["one two three four five six seven eight", "The capital of France is Paris.", "grün 🐢 STOP here <user> <assistant>"]


def make_tokenizer() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[EOS])
    backend.train_from_iterator(TEXTS * 3, trainer)
    return Tokenizer(backend, {"eos_token": EOS}, {"default": TEMPLATE})


def make_engine_config(tokenizer: Tokenizer, max_model_len: int = 64, **options):
    config = make_config(max_model_len=max_model_len, **options)
    hf = {"architectures": ["LlamaForCausalLM"], "vocab_size": tokenizer.size, "hidden_size": 16, "intermediate_size": 32}
    hf |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 1024}
    spec = ModelSpec.from_hf(hf)
    model = replace(config.model, served_model_name=("fake",))
    generation = GenerationConfig(eos_token_ids=(tokenizer.eos_token_id,), defaults={"temperature": 0.5, "max_new_tokens": 3})
    return replace(config, spec=spec, model=model, generation=generation)


def write_tiny_model(folder: Path, tokenizer: Tokenizer) -> Path:
    """A model folder with everything but weights: for load_format="dummy"."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": tokenizer.size, "hidden_size": 32}
    config |= {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config |= {"max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    return folder


class ScriptedCore:
    """`scripts` maps a prompt's ids to the ids that follow; others get `default`, over and over."""

    def __init__(self, tokenizer: Tokenizer, default: str = " one two three", tokens_per_step: int = 1):
        self.scripts: dict[tuple[int, ...], list[int]] = {}
        self.running: dict[str, tuple] = {}
        self.added, self.aborted, self.failing = [], [], set()
        self.down = False
        self._default = tokenizer.encode(default)
        self._tokens_per_step = tokens_per_step
        self._num_steps = 0

    def add(self, requests):
        for request in requests:
            self.added.append(request)
            self.running[request.request_id] = request, []

    def abort(self, request_ids):
        for request_id in request_ids:
            self.aborted.append(request_id)
            self.running.pop(request_id, None)

    def has_work(self):
        return bool(self.running)

    def step(self):
        self._num_steps += 1
        outputs = [self._output(request, known) for request, known in list(self.running.values())]
        stats = SchedulerStats(num_running=len(self.running), kv_cache_usage=0.5, num_steps=self._num_steps, num_preemptions=2)
        return TokenOutputs(outputs, stats, time.monotonic())

    def call(self, method, args):
        if method == "request_states":
            return [self._state(request, known) for request, known in self.running.values()]
        if method != "echo":
            raise ClientError(f"no method {method}")
        return args

    def shutdown(self):
        self.down = True

    @staticmethod
    def _state(request, known):
        """As from the wire. Whoever has no token yet waits."""
        num_tokens = len(request.prompt_token_ids) + len(known)
        return [request.request_id, bool(known), None if known else "slot", num_tokens, 0, 0, 0, 1.0 if known else 0.0]

    def _output(self, request, known):
        output = TokenOutput(request.request_id, [], num_cached_tokens=1, scheduled_time=request.arrival_time)
        params = request.sampling_params
        if request.request_id.partition("#")[0] in self.failing:
            output.finish_reason, output.error = FinishReason.ERROR, "NaN logits"
        script = self.scripts.get(tuple(request.prompt_token_ids), self._default)
        while output.finish_reason is None and len(output.token_ids) < self._tokens_per_step:
            token = script[len(known) % len(script)]
            known.append(token)
            output.token_ids.append(token)
            if token in request.eos_token_ids and not params.ignore_eos:
                output.finish_reason = FinishReason.STOP
            elif token in params.stop_token_ids:
                output.finish_reason, output.stop_reason = FinishReason.STOP, token
            elif len(known) >= params.max_tokens:
                output.finish_reason = FinishReason.LENGTH
        if params.logprobs is not None:
            output.logprobs = [TokenLogprobs([token, 5], [-0.5, -1.0], 1) for token in output.token_ids]
        if params.prompt_logprobs is not None and len(known) == len(output.token_ids):
            output.prompt_logprobs = [TokenLogprobs([token], [-2.0], 3) for token in request.prompt_token_ids[1:]]
        if output.finish_reason is not None:
            del self.running[request.request_id]
        return output


class ScriptedClient:
    """The same as an `AsyncCoreClient`. `pause` holds the steps back; `die` is a core that crashes."""

    def __init__(self, core: ScriptedCore, ready: EngineReady | Exception):
        self.core = core
        self.closed = False
        self._ready = ready
        self._error = None
        self._changed = asyncio.Event()
        self._may_step = asyncio.Event()
        self._may_step.set()

    def pause(self):
        self._may_step.clear()

    def resume(self):
        self._may_step.set()

    def die(self):
        self._error = EngineDeadError("The engine core died.")
        self._changed.set()
        self._may_step.set()

    async def start(self):
        await asyncio.sleep(0)
        if isinstance(self._ready, Exception):
            raise self._ready
        return [self._ready]

    def add(self, requests):
        self.core.add(requests)
        self._changed.set()

    def abort(self, request_ids):
        self.core.abort(request_ids)

    async def outputs(self):
        while True:
            await self._may_step.wait()
            if self._error is not None:
                raise self._error
            if self.core.has_work():
                await asyncio.sleep(0)
                return self.core.step()
            self._changed.clear()
            await self._changed.wait()

    async def call(self, method, args):
        return self.core.call(method, args)

    def close(self):
        self.closed = True
