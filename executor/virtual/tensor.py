"""Tensors of virtual accelerators: every torch operation becomes a task on the current stream.

The form of a result follows at once, from what the operation gives for zeros of the same forms. Its numbers come when
the task runs. Reading a number on the host waits for the device, which is refused while a step is being issued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from executor.virtual.engine import HOST, HostLease, Lease, Queue, Touch, state
from simpar.errors import ProgramError

KIND: Final = 'virtual'
CPU: Final = torch.device('cpu')
aten = torch.ops.aten
READ_BY_HOST: Final = frozenset(
    {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.nonzero.default}
)
"""Operations whose answer, or whose size, the host needs at once."""
COPIES: Final = frozenset({aten.copy_.default, aten._to_copy.default})
"""Operations between devices."""


class Form(NamedTuple):
    """What a tensor looks like, its numbers aside."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class VirtualTensor(torch.Tensor):  # type: ignore[misc]
    """Arguments: ``cells``, its numbers, right only in tasks; ``lease``, its memory, which views share."""

    cells: torch.Tensor
    lease: Lease
    form: Form

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[VirtualTensor], form: Form, lease: Lease, device: torch.device) -> VirtualTensor:
        size, stride, offset, dtype = form
        tensor: VirtualTensor = torch.Tensor._make_wrapper_subclass(
            cls, size, strides=stride, storage_offset=offset, dtype=dtype, device=device
        )
        tensor.lease, tensor.form = lease, form
        tensor.cells = torch.empty(0, dtype=dtype).set_(lease.block.memory.untyped_storage(), offset, size, stride)
        return tensor

    def untyped_storage(self) -> Any:
        """What tells whether two tensors share memory."""
        return self.lease

    def __repr__(self, **_: object) -> str:
        return f'VirtualTensor({tuple(self.shape)}, {self.dtype}, {self.device})'

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return dispatch(func, args, kwargs or {})


@dataclass(frozen=True, slots=True)
class Made:
    """What an operation gives for arguments of some forms.

    Arguments:
        results: what is no tensor stands there itself.
        several: whether it gives a list.
        written: numbers of the arguments that it changes.
    """

    results: tuple[Any, ...]
    several: type | None
    written: frozenset[int]


class Part(NamedTuple):
    """A result in memory of an argument, or (None) in memory of its own of so many bytes; without a form, an argument
    itself."""

    argument: int | None
    form: Form | None = None
    bytes: int = 0


def dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Issue one operation."""
    leaves, shape = flat(args, kwargs)
    if state.issuing and func in COPIES and _blocks(func, args, kwargs):
        raise ProgramError(f'{func} has the host wait for the device inside of a step; copy without blocking')
    if func is aten.copy_.default and all(map(_is_on_host, args[:2])):
        # Between two tensors of the host that is done at once, by the host itself.
        args[0].cells.copy_(args[1])
        return args[0]
    if func in READ_BY_HOST or _to_host(func, args, kwargs):
        return _on_host(func, leaves, shape)
    forms = [_form(leaf) for leaf in leaves]
    key = (func, shape, tuple(forms))
    made: Made | None = state.made.get(key)
    if made is None:
        if func is aten.index.Tensor and any(isinstance(form, Form) and form.dtype is torch.bool for form in forms):
            raise ProgramError(f'{func}: how many elements a mask picks would have to be read by the host')
        made = state.made[key] = _tried(func, leaves, shape, forms)
    device = _device(leaves)
    queue = state.current_queue(device)
    results = list(made.results)
    fresh: list[tuple[int, VirtualTensor]] = []
    for place, one in enumerate(made.results):
        if not isinstance(one, Part):
            continue
        of = None if one.argument is None else leaves[one.argument]
        if one.form is None:
            results[place] = of
            continue
        lease = state.pool_of(device, queue).lease(one.bytes, queue) if of is None else of.lease
        results[place] = tensor = VirtualTensor(one.form, lease, device)
        if of is None:
            fresh.append((place, tensor))
    # A view is a matter of the host alone.
    if fresh or made.written or not made.results:
        _put(func, queue, device, leaves, shape, fresh, made.written)
    if made.several is None:
        return results[0] if results else None
    return made.several(results)


def _put(
    func: Any, queue: Queue, device: torch.device, leaves: list[Any], shape: Any,
    fresh: list[tuple[int, VirtualTensor]], written: frozenset[int],
) -> None:  # fmt: skip
    """A task for an operation."""
    what = str(func)
    real = list(leaves)
    touches: list[Touch] = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if leaf.device != device and func not in COPIES and not (leaf.dim() == 0 and leaf.device == CPU):
                raise ProgramError(f'{what} of tensors on {device} and on {leaf.device}')
            if isinstance(leaf, VirtualTensor):
                touches.append(Touch(id(leaf.lease.block), *_bytes(leaf.form), place in written))
                real[place] = leaf.cells
            else:
                if queue.capture is not None and leaf.dim():
                    raise ProgramError(f'{what} in a graph reads memory of the host, which is not kept for its replays')
                # The host may change its tensor before the task runs.
                real[place] = leaf.clone()
        elif isinstance(leaf, torch.device):
            real[place] = CPU
    touches += [Touch(id(tensor.lease.block), *_bytes(tensor.form), True) for _, tensor in fresh]
    args, kwargs = unflat(real, shape)
    targets = [(place, tensor.cells) for place, tensor in fresh]

    def run() -> None:
        output = func(*args, **kwargs)
        for place, target in targets:
            target.copy_(output[place] if isinstance(output, tuple | list) else output)

    queue.issue(what, run, touches)


def _tried(func: Any, leaves: list[Any], shape: Any, forms: list[Any]) -> Made:
    """Do it with zeros, and see what comes."""
    zeros = [
        _zeros(form) if isinstance(form, Form) else CPU if isinstance(leaf, torch.device) else leaf
        for form, leaf in zip(forms, leaves, strict=True)
    ]
    args, kwargs = unflat(zeros, shape)
    output = func(*args, **kwargs)
    several = type(output) if isinstance(output, tuple | list) else None
    results: list[Any] = []
    for one in output if several else [output]:
        if not isinstance(one, torch.Tensor):
            if one is not None or several:
                results.append(one)
            continue
        same = next((index for index, zero in enumerate(zeros) if zero is one), None)
        if same is not None and tuple(one.shape) != forms[same].size:
            raise ProgramError(f'{func} changes the size of a tensor, which virtual accelerators do not')
        if same is not None:
            results.append(Part(same))
            continue
        storage = one.untyped_storage()
        shared = next(
            (
                index
                for index, zero in enumerate(zeros)
                if isinstance(zero, torch.Tensor) and zero.untyped_storage()._cdata == storage._cdata
            ),
            None,
        )
        # Memory of its own begins with it, whatever it was cut from.
        results.append(Part(shared, form_of(one), 0 if shared is not None else _bytes(form_of(one))[1]))
    return Made(tuple(results), several, written(func, leaves, shape))


def _on_host(func: Any, leaves: list[Any], shape: Any) -> Any:
    """What the host asks for now: it waits for the stream."""
    if state.issuing:
        raise ProgramError(f'{func} is read by the host inside of a step; a device would stand still meanwhile')
    ours = [leaf for leaf in leaves if isinstance(leaf, VirtualTensor)]
    queue = state.current_queue(ours[0].device)
    if queue.capture is not None:
        raise ProgramError(f'{func} is read by the host while a graph is captured')
    queue.touch_all(touches(ours, []), f'{func} for the host')
    outputs: list[Any] = []
    real = [leaf.cells if isinstance(leaf, VirtualTensor) else leaf for leaf in leaves]
    args, kwargs = unflat(real, shape)
    queue.put(f'{func} for the host', lambda: outputs.append(func(*args, **kwargs)))
    queue.engine.wait_for(dict(queue.known), lambda: bool(outputs))
    return outputs[0]


def _to_host(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if func is aten._to_copy.default:
        device = kwargs.get('device')
        return device is not None and torch.device(device).type == 'cpu'
    return func is aten.copy_.default and not isinstance(args[0], VirtualTensor)


def _blocks(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether it copies from the host, or to its pinned memory, and is not told that the host need not wait."""
    if func is aten._to_copy.default:
        ends, waits = args[:1], not kwargs.get('non_blocking', False)
    else:
        ends, waits = args[:2], not (args[2] if len(args) > 2 else kwargs.get('non_blocking', False))
    # A number of the host goes with the launch.
    return waits and any(map(_is_on_host, ends)) and ends[-1].dim() > 0


def _is_on_host(tensor: torch.Tensor) -> bool:
    return bool(tensor.device == CPU or tensor.device.index == HOST)


def pinned(size: Sequence[int], dtype: torch.dtype) -> VirtualTensor:
    """Memory of the host that only tasks read and write."""
    like = torch.empty(size, dtype=dtype, device='meta')
    return VirtualTensor(form_of(like), HostLease(like.nbytes, state.engine.races), torch.device(KIND, HOST))


def _device(leaves: list[Any]) -> torch.device:
    """Where an operation runs: on the device that it names, else where its tensors are."""
    for leaf in leaves:
        if isinstance(leaf, torch.device) and leaf.type == KIND:
            return state.with_index(leaf)
    there = [leaf.device for leaf in leaves if isinstance(leaf, VirtualTensor)]
    # A copy to the host runs on the device that it comes from.
    return next((device for device in there if device.index != HOST), there[0])


def flat(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """Arguments one behind the other, and how they stood: for each the length of its list, or −1."""
    leaves: list[Any] = []
    lengths = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            leaves.extend(value)
            lengths.append(len(value))
        else:
            leaves.append(value)
            lengths.append(-1)
    return leaves, (len(args), tuple(kwargs), tuple(lengths))


def unflat(leaves: list[Any], shape: Any) -> tuple[list[Any], dict[str, Any]]:
    """The inverse of ``flat``."""
    count, names, lengths = shape
    values: list[Any] = []
    at = 0
    for length in lengths:
        values.append(leaves[at] if length < 0 else leaves[at : at + length])
        at += abs(length)
    return values[:count], dict(zip(names, values[count:], strict=True))


def written(func: Any, leaves: list[Any], shape: Any) -> frozenset[int]:
    """Numbers of the arguments that an operation changes."""
    args, kwargs = unflat(list(range(len(leaves))), shape)
    numbers = set[int]()
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = kwargs.get(argument.name) if argument.kwarg_only or place >= len(args) else args[place]
        numbers.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(numbers)


def form_of(tensor: torch.Tensor) -> Form:
    """What a tensor looks like."""
    return Form(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)


def _form(leaf: Any) -> Any:
    if isinstance(leaf, VirtualTensor):
        return leaf.form
    if isinstance(leaf, torch.Tensor):
        return form_of(leaf)
    # 1, 1.0 and True are equal, and their results are not.
    return leaf if not isinstance(leaf, int | float) else (type(leaf), leaf)


def _zeros(form: Form) -> torch.Tensor:
    memory = torch.zeros(form.offset + _span(form.size, form.stride), dtype=form.dtype)
    return memory.as_strided(form.size, form.stride, form.offset)


def _span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to behind the last."""
    return 0 if 0 in size else sum((length - 1) * step for length, step in zip(size, stride, strict=True)) + 1


@lru_cache(maxsize=4096)
def _bytes(form: Form) -> tuple[int, int]:
    """The bytes from the first to behind the last element."""
    first = form.offset * form.dtype.itemsize
    return first, first + _span(form.size, form.stride) * form.dtype.itemsize


def touches(reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> list[Touch]:
    """The bytes that a task reads and writes."""
    accesses = []
    for tensors, changes in ((reads, False), (writes, True)):
        for tensor in tensors:
            # Those of a dry run have both, too.
            of: Any = tensor
            accesses.append(Touch(id(of.lease.block), *_bytes(of.form), changes))
    return accesses


def register() -> None:
    """Make ``torch.empty(..., device='virtual')`` and what is built on it work."""
    library = torch.library.Library('aten', 'IMPL')

    def made_of(func: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: dispatch(func, args, kwargs)

    # All other factories fill what these make, but for ``arange``, which changes its size.
    made = ('empty.memory_format', 'empty_strided', 'arange', 'arange.start', 'arange.start_step')
    # Torch takes it apart for devices that it does not know; those that it knows have a kernel.
    for name in (*made, 'silu_backward'):
        base, _, overload = name.partition('.')
        library.impl(name, made_of(getattr(getattr(aten, base), overload or 'default')), 'PrivateUse1')
    # Kept: its end would take the implementations back.
    state.libraries.append(library)
