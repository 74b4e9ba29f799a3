"""Methods of the core that a client may call by name. A new one is a function here with `@remote`; nothing else changes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from minivllm.core.grammar.waiting_room import describe
from minivllm.errors import ClientError
from minivllm.messages.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from minivllm.core.engine_core import EngineCore

RemoteMethod = Callable[..., object]
_MethodT = TypeVar("_MethodT", bound=RemoteMethod)

_methods: dict[str, RemoteMethod] = {}


def remote(method: _MethodT) -> _MethodT:
    """Let clients call `method(core, *args)` by its name. Arguments and result must have a msgpack form."""
    _methods[method.__name__] = method
    return method


def call(core: "EngineCore", method: str, args: list[Any]) -> object:
    """ClientError for an unknown name; otherwise what the method returns or raises."""
    if method not in _methods:
        raise ClientError(f"The engine has no method {method!r}; it has {', '.join(sorted(_methods))}.", param="method")
    return _methods[method](core, *args)


@remote
def reset_prefix_cache(core: "EngineCore") -> bool:
    """Forget what the prefix cache knows; running requests go on."""
    core.scheduler.kv_cache.reset_prefix_cache()
    return True


@remote
def stats(core: "EngineCore") -> object:
    """`SchedulerStats` now."""
    return core.scheduler.stats()


@remote
def request_states(core: "EngineCore") -> object:
    """A `RequestState` for each request that has not ended."""
    return core.states()


@remote
def check_health(core: "EngineCore") -> bool:
    """True, or an error that says which worker is unwell."""
    core.executor.check_health()
    return True


@remote
def save_sharded_state(core: "EngineCore", path: str, max_size: int) -> bool:
    """Every worker writes its share of the weights into the folder, in files of at most so many bytes."""
    core.executor.call_all("save_sharded_state", path, max_size)
    return True


@remote
def set_tokenizer(
    core: "EngineCore", tokenizer: str, eos_token_ids: list[int], added_ids: dict[str, int], vocab_size: int
) -> bool:
    """What grammars need to know of the tokenizer; see `GrammarManager`."""
    core.grammars.set_tokenizer(tokenizer, eos_token_ids, added_ids, vocab_size)
    return True


@remote
def compile_grammar(core: "EngineCore", given: Any) -> bool:
    """Wait until the grammar of `StructuredOutputsParams` is compiled: ClientError now, where a request would end with it.

    For offline use: the core does nothing else meanwhile.
    """
    params = msgspec.convert(given, StructuredOutputsParams)  # what comes from another process is a dict
    try:
        core.grammars.compile(params).result()
    except ValueError as error:
        raise ClientError(describe(params, error), param=params.blamed_field) from error
    return True
