"""Records what a function calls of the compiled ops as a `RecordedProgram`, which replays it in one native call.

Every op reaches the extension through `call`. While a `_Recorder` is active nothing is computed: `call` notes op and arguments,
and any torch operation that would compute makes the function unrecordable. Recording takes few rows; a program works for any
number of them, since all that depends on it are the counts of rows (variables) and the sizes of buffers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minivllm import _cpu
from minivllm.kernels import Unrecordable

_LINE = 64  # buffers start on a cache line
_active: "list[_Recorder]" = []


def call(op: Callable[..., None], *arguments: Tensor | float | None) -> None:
    """Run a function of the extension, or record it. A tensor stands for its address, None for no tensor.

    The first argument counts rows.
    """
    if _active:
        _active[-1].note(op.__name__, arguments)
    else:
        op(*[a.data_ptr() if isinstance(a, Tensor) else 0 if a is None else a for a in arguments])


def record(function: Callable[[], Tensor], inputs: Sequence[Tensor], counts: Sequence[int], max_rows: int) -> "RecordedProgram":
    """The program of `function`, whose result has one row for each row of its buffers.

    inputs: tensors that are others at each run. counts: numbers of rows in this recording, coprime, that may be others too; the
    first is that of the buffers, `max_rows` its limit. Raises `Unrecordable`.
    """
    recorder = _Recorder(inputs, counts)
    with recorder:
        _active.append(recorder)
        try:
            result = function()
        finally:
            _active.pop()
    return recorder.finish(result, max_rows)


class RecordedProgram:
    def __init__(self, program: Any, memory: Tensor, result: Tensor | int, kept: list[Tensor], max_rows: int):
        """result: or the index of the input that is changed into it."""
        self._program = program
        self._memory = (memory, kept)  # what the program has addresses of
        self._result = result
        self.max_rows = max_rows

    @property
    def ops(self) -> list[str]:
        """Names of the recorded calls."""
        return self._program.names

    def run(self, inputs: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
        """As in `record`. The result is valid until the next run."""
        self._program.run([*counts, *[tensor.data_ptr() for tensor in inputs]])
        return inputs[self._result] if isinstance(self._result, int) else self._result[: counts[0]]

    def run_timed(self, inputs: Sequence[Tensor], counts: Sequence[int]) -> list[float]:
        """As `run`; the seconds that each op took."""
        return self._program.run_timed([*counts, *[tensor.data_ptr() for tensor in inputs]])


@dataclass(slots=True)
class _Buffer:
    """Memory that the recorded function made; used by calls first to last."""

    tensor: Tensor  # keeps the address from being given out twice
    row_bytes: int
    first: int = -1
    last: int = -1
    offset: int = 0  # of its place in the program's memory


@dataclass(slots=True)
class _Place:
    """An address in a buffer."""

    buffer: _Buffer
    offset: int


@dataclass(slots=True)
class _Call:
    op: str
    arguments: list[Any] = field(default_factory=list)


class _Recorder(TorchDispatchMode):
    def __init__(self, inputs: Sequence[Tensor], counts: Sequence[int]):
        super().__init__()
        self._counts = counts
        self._inputs = {_storage(tensor): len(counts) + index for index, tensor in enumerate(inputs)}
        self._buffers: dict[int, _Buffer] = {}
        self._calls: list[_Call] = []
        self._kept: dict[int, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False keeps torch from importing its compiler here, which costs a second and 70 MB that nothing else needs."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.new_empty):
            row_bytes, rest = divmod(result.untyped_storage().nbytes(), self._counts[0])
            if rest:
                raise Unrecordable(f"a buffer of {list(result.shape)}, which does not grow with the rows,")
            self._buffers[_storage(result)] = _Buffer(result, row_bytes)
            return result
        made = result if isinstance(result, (list, tuple)) else [result]
        is_view = all(isinstance(tensor, Tensor) and _storage(tensor) == _storage(args[0]) for tensor in made)
        if func._schema.is_mutable or not is_view:
            raise Unrecordable(str(func.overloadpacket).replace("aten.", "torch's "))
        return result

    def note(self, op: str, arguments: Sequence[Tensor | float | None]) -> None:
        index = len(self._calls)
        noted = [self._variable(int(arguments[0] or 0))]  # type: ignore[arg-type]
        for argument in arguments[1:]:
            noted.append(
                self._address(argument, index) if isinstance(argument, Tensor) else 0 if argument is None else argument
            )
        self._calls.append(_Call(op, noted))

    def finish(self, result: Tensor, max_rows: int) -> RecordedProgram:
        variable = self._inputs.get(_storage(result), 0)
        buffer = self._buffers.get(_storage(result))
        if buffer is not None:
            buffer.last = len(self._calls)
        elif not variable:
            raise Unrecordable("a result that is no buffer of its own")
        size = _place([b for b in self._buffers.values() if b.first >= 0], max_rows)
        memory = torch.empty(size + _LINE, dtype=torch.uint8)
        memory = memory[-memory.data_ptr() % _LINE :]
        program = _cpu.Program()
        for made in self._calls:
            addresses = [memory.data_ptr() + a.buffer.offset + a.offset if isinstance(a, _Place) else a for a in made.arguments]
            program.add(made.op, tuple(addresses))
        kept = list(self._kept.values())
        if buffer is None:
            return RecordedProgram(program, memory, variable - len(self._counts), kept, max_rows)
        rows = memory[buffer.offset : buffer.offset + max_rows * buffer.row_bytes].view(result.dtype)
        return RecordedProgram(program, memory, rows.view(max_rows, *result.shape[1:]), kept, max_rows)

    def _variable(self, rows: int) -> Any:
        for index, count in enumerate(self._counts):
            if rows % count == 0:
                return _cpu.Variable(index, rows // count)
        raise Unrecordable(f"an op on {rows} rows")

    def _address(self, tensor: Tensor, index: int) -> Any:
        """A variable, a place in a buffer, or the fixed address of something like a weight."""
        storage = _storage(tensor)
        if storage in self._inputs:
            if tensor.storage_offset() != 0:
                raise Unrecordable("a part of an input")
            return _cpu.Variable(self._inputs[storage])
        buffer = self._buffers.get(storage)
        if buffer is None:
            self._kept[storage] = tensor
            return tensor.data_ptr()
        buffer.first = index if buffer.first < 0 else buffer.first
        buffer.last = max(buffer.last, index)
        offset = tensor.data_ptr() - storage
        if offset >= buffer.row_bytes:
            raise Unrecordable("a part of the rows of a buffer")
        return _Place(buffer, offset)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _place(buffers: list[_Buffer], max_rows: int) -> int:
    """Gives each buffer the lowest offset that no buffer in use at the same time covers; bytes for all."""
    placed: list[tuple[int, int, _Buffer]] = []  # begin, end
    for buffer in buffers:
        size = -(-buffer.row_bytes * max_rows // _LINE) * _LINE
        offset = 0
        for begin, end, other in sorted(placed, key=lambda p: p[0]):
            together = other.last >= buffer.first and other.first <= buffer.last
            if together and begin < offset + size and end > offset:
                offset = end
        buffer.offset = offset
        placed.append((offset, offset + size, buffer))
    return max((end for _, end, _ in placed), default=0)
