"""Main of the process that meets the grammars of users first: `python -m minivllm.core.grammar.checker`, started by `sandbox`.

The library bounds most of what a grammar may cost, but not all: some schemas take exponential time, and a long chain of rules
overflows the stack. Here either ends this process only, and the core compiles what came through.
"""

import resource
import signal
import sys
import threading

import msgspec
from llguidance import LLMatcher

from minivllm.core.grammar.guidance import LIMITS, brief
from minivllm.core.grammar.translate import translate
from minivllm.ipc.frames import read_frame, write_frame
from minivllm.messages.structured_outputs import StructuredOutputsParams

CPU_SECONDS = 0.25  # for one grammar: the costliest that is of use, at the size limit, takes some 0.18
SECONDS = 3.0  # likewise, if the machine is busy
_STACK_BYTES = 1 << 20  # less than the core's threads have: what fits here fits there
_MEMORY_BYTES = 2 << 30


class Job(msgspec.Struct, array_like=True):
    params: StructuredOutputsParams
    special_ids: dict[str, int]  # of special tokens that `params` names


class Verdict(msgspec.Struct, array_like=True):
    grammar: str = ""
    error: str | None = None


def main() -> None:
    for timer_signal in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(timer_signal, signal.SIG_DFL)  # ends the process, wherever it is
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def _serve() -> None:
    decoder = msgspec.msgpack.Decoder(Job)
    while True:
        try:
            job = decoder.decode(read_frame(sys.stdin.buffer))
        except EOFError:
            return
        _set_timers(CPU_SECONDS, SECONDS)
        verdict = check(job)
        _set_timers(0.0, 0.0)
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(verdict))


def check(job: Job) -> Verdict:
    try:
        grammar = translate(job.params, job.special_ids)
    except ValueError as error:
        return Verdict(error=str(error))
    message = LLMatcher.validate_grammar(grammar, limits=LIMITS)
    return Verdict(error=brief(message)) if message else Verdict(grammar)


def _set_timers(cpu_seconds: float, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    main()
