"""The scheduler's record of one request."""

import enum
from dataclasses import dataclass, field

from minivllm.core.grammar.grammar import Grammar
from minivllm.core.kv_cache.manager import SequenceBlocks
from minivllm.messages.request import EngineRequest
from minivllm.messages.step import TokenLogprobs

OrderKey = tuple[int, float, int]


class Status(enum.Enum):
    WAITING = enum.auto()  # also again after a preemption
    RUNNING = enum.auto()  # has a slot and blocks
    FINISHED = enum.auto()


@dataclass(slots=True, eq=False)
class Request:
    """`num_computed` counts tokens whose KV is in the cache or being computed by a step in flight."""

    data: EngineRequest
    order: OrderKey  # place among all requests: smaller is admitted earlier and preempted later
    max_length: int  # it ends when it has this many tokens
    blocks: SequenceBlocks
    tokens: list[int]  # prompt and accepted output
    grammar: Grammar | None = None  # follows the accepted output
    status: Status = Status.WAITING
    slot: int = -1
    num_computed: int = 0
    num_pending: int = 0  # tokens being sampled by steps in flight
    epoch: int = 0  # results of steps planned in an earlier epoch are void
    num_cached_tokens: int | None = None  # None until it was first admitted
    num_preemptions: int = 0
    scheduled_time: float = 0.0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # gathered until the first output
    num_prompt_logprobs: int = 0  # gathered in all

    @property
    def num_needed(self) -> int:
        """Tokens to compute until the next one can be sampled."""
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.data.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.data.prompt_token_ids)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Some prompt positions still have to pass through the model for their logprobs' sake."""
        return (
            self.data.sampling_params.prompt_logprobs is not None
            and self.num_prompt_logprobs < len(self.data.prompt_token_ids) - 1
        )

    @property
    def wants_all_hidden(self) -> bool:
        """Prompt tokens must pass through the model for more than their keys and values."""
        pooling = self.data.pooling_params
        return self.wants_prompt_logprobs or (pooling is not None and pooling.skip_reading_prefix_cache)

    @property
    def max_cached_tokens(self) -> int:
        """How many leading tokens may come from the prefix cache. At least one is always computed, to sample from."""
        return self.num_prompt_logprobs if self.wants_all_hidden else len(self.tokens) - 1
