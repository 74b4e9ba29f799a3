"""`StepBudget`: what one step may hold. Every running stream gets its next token; chunks of prompts share what is left."""

from minivllm.core.scheduler.request import Request
from minivllm.core.scheduler.step_costs import StepCosts, StepWork

_STREAM_SECONDS = 0.08  # of a step while streams are running, so that they never pause for much more than 0.1 s
_SLOW_SECONDS = 0.13  # of one whose decoding takes most of that: prompts that get next to nothing keep streams few for long
_SLOWER = 1.6  # times decoding alone, where that takes too long anyway
_PROMPT_SECONDS = 0.25  # of a step that nobody waits for but those who have no token yet: larger steps are more efficient
_MIN_CHUNK = 32  # tokens of prompts in any step, else prompts would wait for all streams where decoding alone takes so long
_MULTIPLE = 16  # of tokens in a chunk that is not the last of its prompt: rows of the kernels' tiles


class StepBudget:
    def __init__(self, num_tokens: int, costs: StepCosts | None, num_stages: int = 1):
        """At most `num_tokens`; with `costs`, also not much longer than the seconds above. With several pipeline stages a step
        has its share of the requests, so that each stage has work."""
        self._num_tokens = num_tokens
        self.num_stages = num_stages
        self._num_requests_left = 0
        self._costs = costs
        self._num_left = 0
        self._num_reserved = 0  # of the tokens left, for streams that had none yet
        self._seconds_left = 0.0
        self._num_chunks = 0

    def start(self, running: list[Request], num_admissible: int) -> None:
        """A new step, which the running requests share with those that it admits, at most `num_admissible`."""
        self._num_left = self._num_tokens
        self._num_requests_left = -(-(len(running) + num_admissible) // self.num_stages)
        self._num_chunks = 0
        work = StepWork()
        for request in running:
            if request.num_needed == 1 and not (request.num_pending and self.num_stages > 1):
                work.add(1, request.num_computed)
        self._num_reserved = work.num_tokens
        if self._costs is not None:
            alone = self._costs.predict(work)
            self._seconds_left = (_seconds_beside(alone) if work.num_tokens else _PROMPT_SECONDS) - alone

    @property
    def is_spent(self) -> bool:
        return self._num_left <= 0 or self._num_requests_left <= 0

    def fit(self, num_tokens: int, num_computed: int) -> int:
        """How many of a request's next `num_tokens` still fit."""
        if num_tokens <= 1:
            return min(num_tokens, self._num_left)
        most = min(num_tokens, self._num_left - self._num_reserved)
        if self._costs is None or most <= 0:
            return max(most, 0)
        fitting = self._costs.num_fitting(self._seconds_left, num_computed)
        if self._num_chunks == 0:
            fitting = max(fitting, _MIN_CHUNK)
        return most if most <= fitting else fitting // _MULTIPLE * _MULTIPLE

    def spend(self, num_tokens: int, num_computed: int, is_stream: bool) -> None:
        """The request gets `num_tokens`. `is_stream`: as its next one, while it was running."""
        self._num_left -= num_tokens
        self._num_requests_left -= 1
        if is_stream:
            self._num_reserved -= 1
            return
        self._num_chunks += 1
        if self._costs is not None:
            self._seconds_left -= self._costs.chunk_seconds(num_tokens, num_computed)

    def learn(self, work: StepWork, seconds: float | None) -> None:
        """A step with this work took so long; None: nobody measured."""
        if self._costs is not None and seconds is not None:
            self._costs.learn(work, seconds)


def _seconds_beside(alone: float) -> float:
    """How long a step with streams may take whose next tokens take `alone` seconds."""
    return max(_STREAM_SECONDS, min(2 * alone, _SLOW_SECONDS), _SLOWER * alone)
