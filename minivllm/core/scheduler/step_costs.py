"""`StepCosts`: the seconds that a step will take, guessed from what it computes and corrected by how long steps took."""

import math
from dataclasses import dataclass, field

# First guesses, of what start-up does not measure, in seconds of one token's matrices.
_BASE = 16  # what every step takes, at least: reading the weights
_CONTEXT = 1 / 128  # a decoding token beside one token of its context
_PAIR = 1 / 1024  # a token of a chunk beside one token before it
_PACE = 0.4  # share of an error that a step corrects: a few steps alike are learnt from, one disturbed step is forgotten
_MOST = 8.0  # times the first guess, or its part


@dataclass(slots=True)
class StepWork:
    """What a step computes, counted by what takes its time."""

    num_tokens: int = 0
    num_context: int = 0  # tokens of context that decoding tokens attend to
    num_pairs: int = 0  # tokens of chunks × tokens that each attends to

    def add(self, num_tokens: int, num_computed: int) -> None:
        """`num_tokens` of a sequence whose first `num_computed` are there."""
        self.num_tokens += num_tokens
        if num_tokens == 1:
            self.num_context += num_computed
        else:
            self.num_pairs += num_tokens * num_computed + num_tokens * num_tokens // 2


@dataclass(slots=True)
class StepCosts:
    """Seconds = base + a weight for each count of `StepWork`; weights follow the machine, which has fast and slow minutes."""

    base: float  # of a step with next to nothing in it
    token: float
    _factors: list[float] = field(default_factory=lambda: [1.0] * 4)  # of the first guesses

    @classmethod
    def from_prompts(cls, times: list[tuple[int, float]]) -> "StepCosts":
        """From the seconds of steps with one prompt in them, by its length; at least one."""
        (length, elapsed), (shorter, less) = times[-1], times[-2] if len(times) > 1 else (0, 0.0)
        # Only a part of a step's time is the same for any length: a line flatter than that comes from a disturbed measurement.
        token = max((elapsed - less) / (length - shorter), elapsed / length / 2)
        return cls(max(elapsed - token * length, _BASE * token), token)

    def predict(self, work: StepWork) -> float:
        return sum(self._parts(work))

    def learn(self, work: StepWork, seconds: float) -> None:
        """A step took so long. What was guessed to take most of it is corrected most."""
        parts = self._parts(work)
        guess = sum(parts)
        error = min(seconds - guess, guess)  # the machine may stand still, but that says little about the next step
        share = _PACE * error / max(sum(part * part for part in parts), 1e-12)
        for at, part in enumerate(parts):
            self._factors[at] = min(max(self._factors[at] * (1 + share * part), 1 / _MOST), _MOST)

    def chunk_seconds(self, num_tokens: int, num_computed: int) -> float:
        """What a chunk of a prompt adds to a step."""
        token, pair = self._chunk_weights()
        return num_tokens * (token + pair * (num_computed + num_tokens / 2))

    def num_fitting(self, seconds: float, num_computed: int) -> int:
        """The longest chunk, after `num_computed` tokens of its prompt, that adds at most `seconds`."""
        token, pair = self._chunk_weights()
        linear = token + pair * num_computed
        return int(2 * seconds / (linear + math.sqrt(linear * linear + 2 * pair * seconds))) if seconds > 0 else 0

    def _chunk_weights(self) -> tuple[float, float]:
        return self.token * self._factors[1], self.token * _PAIR * self._factors[3]

    def _parts(self, work: StepWork) -> tuple[float, float, float, float]:
        base, token, context, pair = self._factors
        return (
            self.base * base,
            self.token * token * work.num_tokens,
            self.token * _CONTEXT * context * work.num_context,
            self.token * _PAIR * pair * work.num_pairs,
        )
