"""What executors of several workers share: steps that end when somebody looks, and the answers of all ranks as one."""

from concurrent.futures import Future
from typing import Any

import msgspec

from minivllm.errors import ConfigError, MinivllmError, one_line
from minivllm.executor.launch import Call
from minivllm.messages.kv_spec import KVSpec
from minivllm.messages.plan import WorkerPlan
from minivllm.messages.step import StepPlan, StepResult
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)

OTHERS_SECONDS = 1.0  # after one worker's refusal, for that of a lower rank; one that waits for the refusing will not come


class Refusal(msgspec.Struct, tag=True):
    message: str
    is_config: bool
    param: str | None = None

    def error(self) -> Exception:
        return ConfigError(self.message, param=self.param) if self.is_config else RuntimeError(self.message)


class Answer(msgspec.Struct, array_like=True):
    """One worker's, to a call."""

    rank: int
    value: bool | int | float | KVSpec | WorkerPlan | Refusal | None
    call: int = 0  # its number


encode = msgspec.msgpack.Encoder().encode
decode_plan = msgspec.msgpack.Decoder(StepPlan).decode
decode_result = msgspec.msgpack.Decoder(StepResult).decode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


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


def answer(worker: object, rank: int, method: str, args: tuple[Any, ...], call: int = 0) -> Answer:
    """In a worker's process. That a neighbour is gone (EOFError) is no answer."""
    try:
        return Answer(rank, getattr(worker, method)(*args), call)
    except EOFError:
        raise
    except MinivllmError as e:
        return Answer(rank, Refusal(e.message, isinstance(e, ConfigError), e.param), call)
    except Exception as e:
        logger.exception("%s failed", method)
        return Answer(rank, Refusal(one_line(e), is_config=False), call)


def all_well(answers: dict[int, Answer]) -> bool:
    return not any(isinstance(each.value, Refusal) for each in answers.values())


def results_of(answers: dict[int, Answer]) -> list[Any]:
    """By rank. The error of the lowest rank that has one is raised."""
    values = [answers[rank].value for rank in sorted(answers)]
    for value in values:
        if isinstance(value, Refusal):
            raise value.error()
    return values
