"""What executors of several workers share: steps that end when somebody looks, and the answers of all ranks as one."""

from concurrent.futures import Future
from typing import Any

import msgspec

from minivllm.errors import MinivllmError, one_line
from minivllm.messages.step import StepPlan, StepResult
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

OTHERS_SECONDS = 1.0  # after one worker's refusal, for that of a lower rank; one that waits for the refusing will not come

encode = msgspec.msgpack.Encoder().encode  # a plan, or a result
decode_plan = msgspec.msgpack.Decoder(StepPlan).decode
decode_result = msgspec.msgpack.Decoder(StepResult).decode

Answer = tuple[bool, Any]  # to a call: whether it is a result, else an error, and which


class PolledStep(Future[StepResult]):
    """Whoever asks for it looks for what the workers say."""

    def look(self, timeout: float | None) -> None:
        """Wait so many seconds for something to come, and take it in; None: as long as it takes."""
        raise NotImplementedError

    def done(self) -> bool:
        if not super().done():
            self.look(0.0)
        return super().done()

    def result(self, timeout: float | None = None) -> StepResult:
        while not super().done():
            self.look(timeout)
        return super().result()


def answer(worker: object, method: str, args: tuple[Any, ...]) -> Answer:
    """In a worker's process. That a neighbour is gone (EOFError) is no answer."""
    try:
        return True, getattr(worker, method)(*args)
    except EOFError:
        raise
    except MinivllmError as e:
        return False, e
    except Exception as e:
        logger.exception("%s failed", method)
        return False, RuntimeError(one_line(e))


def all_well(answers: dict[int, Answer]) -> bool:
    return all(ok for ok, _ in answers.values())


def results_of(answers: dict[int, Answer]) -> list[Any]:
    """By rank. The error of the lowest rank that has one is raised."""
    in_order = [answers[rank] for rank in sorted(answers)]
    for ok, value in in_order:
        if not ok:
            raise value
    return [value for _, value in in_order]
