"""`LLMEngine`: the engine with its core in this process, one step per call. Behind `LLM`, and for loops of one's own.

With data_parallel_size > 1, the cores are processes of their own, and a call takes what one step of one of them brought.
"""

from time import monotonic
from typing import Any

from minivllm.config.engine_args import EngineArgs
from minivllm.config.engine_config import EngineConfig
from minivllm.core.startup import build_core
from minivllm.core.startup import make_plan as plan_of
from minivllm.engine.client import BlockingClient, CoreClient, InprocClient
from minivllm.engine.input_processor import InputProcessor
from minivllm.engine.output_processor import OutputProcessor
from minivllm.messages.output import RequestOutput
from minivllm.messages.plan import Plan
from minivllm.messages.pooling_output import PoolingOutput, PoolingRequestOutput
from minivllm.messages.pooling_params import PoolingParams
from minivllm.messages.prompt import Prompt
from minivllm.messages.sampling_params import SamplingParams
from minivllm.metrics.families import Metric
from minivllm.metrics.recorder import Metrics
from minivllm.text.tokenizer import Tokenizer, load_tokenizer


class LLMEngine:
    """`add_request`, then `step` while `has_unfinished`. Not thread-safe."""

    def __init__(self, config: EngineConfig, client: CoreClient, tokenizer: Tokenizer):
        self.config = config
        self.tokenizer = tokenizer
        self.max_model_len = min(ready.max_model_len for ready in client.cores)
        self._client = client
        self._metrics = Metrics(config.model.served_model_names[0], self.max_model_len, len(client.cores))
        for recorder, ready in zip(self._metrics.recorders, client.cores, strict=True):
            recorder.set_info({"block_size": ready.block_size, "num_gpu_blocks": ready.num_blocks})
        self._inputs = InputProcessor(config, tokenizer, self.max_model_len, clamp=True)
        self._outputs = OutputProcessor(tokenizer, self._metrics)
        self._num_requests = 0

    @classmethod
    def from_engine_args(cls, args: EngineArgs, progress: bool = False) -> "LLMEngine":
        """Load the model. Raises `ConfigError` if it cannot be served as the arguments say."""
        config = args.resolve()
        tokenizer = load_tokenizer(config.model.tokenizer, config.model.trust_remote_code)
        if config.parallel.data_parallel_size > 1:
            from minivllm.engine.balancer import launch  # and sockets, which one core in this process does not need

            return cls(config, BlockingClient(launch(config)), tokenizer)
        core, ready = build_core(config, progress)
        return cls(config, InprocClient(core, ready), tokenizer)

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams | PoolingParams, priority: int = 0) -> None:
        """`ClientError` if it cannot be served. A max_tokens that goes beyond the model's length is shortened."""
        arrival_time = monotonic()
        self._num_requests += 1
        core_id = f"{request_id}#{self._num_requests}"
        if isinstance(params, PoolingParams):
            tokenized = self._inputs.tokenize_for_pooling(prompt, params)
            request = self._inputs.process_pooling(core_id, tokenized, params, priority, arrival_time)
        else:
            tokenized = self._inputs.tokenize(prompt)
            if params.structured_outputs is not None:
                self._client.call_once("set_tokenizer", self._inputs.grammar_facts)
                self._client.call("compile_grammar", [params.structured_outputs])
            request = self._inputs.process(core_id, tokenized, params, priority, arrival_time)
        self._client.add(self._outputs.add(request_id, tokenized.text, request)[1])

    def abort_request(self, request_id: str) -> None:
        self._client.abort(self._outputs.abort(request_id))

    def abort_all(self) -> None:
        """Forget every request."""
        self._client.abort(self._outputs.drop_all())

    def step(self) -> list[RequestOutput | PoolingRequestOutput[PoolingOutput]]:
        """One step of the core: the outputs of the requests that have something new, by their `output_kind`.

        A request that failed alone has a choice with finish reason "error".
        """
        batch = self._client.outputs() if self.has_unfinished() else None
        if batch is None:
            return []
        touched, aborts = self._outputs.process(batch)
        if aborts:
            self._client.abort(aborts)
        return [stream.take() for stream in dict.fromkeys(touched) if stream.has_output()]

    def has_unfinished(self) -> bool:
        return self._outputs.num_streams > 0

    def call(self, method: str, *args: Any) -> object:
        """Call a `@remote` method of the core."""
        return self._client.call(method, args)

    def get_metrics(self) -> list[Metric]:
        return self._metrics.snapshot()

    def shutdown(self) -> None:
        self._client.close()


def make_plan(args: EngineArgs) -> Plan:
    """What a model would take of this machine, without loading it."""
    return plan_of(args.resolve())
