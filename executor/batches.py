"""Batches that the user gives in place of drawn ones: checked against the program, and found by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import torch

from executor.stretch import Batch
from executor.tensors import TORCH, own_batches
from simpar.errors import Problem, ScheduleError
from simpar.program import Program, Tensor

Given: TypeAlias = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
_ORDER: Final = 'a tensor, a tuple in this order, or a dict by these names'


@contextmanager
def fed(first: int, batches: Sequence[Batch]) -> Iterator[None]:
    """Within it, inputs of steps from ``first`` on are those of the batches; none: they are drawn."""
    own_batches.update(enumerate(batches, first))
    try:
        yield
    finally:
        own_batches.clear()


def inputs_of(program: Program) -> dict[str, Tensor]:
    """The inputs of a step, by name, in the order in which the model reads them."""
    return {tensor.name: tensor for tensor in program.tensors if tensor.kind == 'input' and not tensor.like}


def shape_of(program: Program, tensor: Tensor) -> tuple[int, ...]:
    """The shape of an input of a whole step: all micro-batches, copies and ranks."""
    first, *rest = tensor.shape
    return (first * program.micro_batches, *rest)


def checked(program: Program, step: int, given: Any) -> Batch:
    """A batch by the names of the program's inputs.

    Raises ``ScheduleError`` with everything that does not fit.
    """
    wanted = inputs_of(program)
    batch = given if isinstance(given, Mapping) else dict(zip(wanted, _several(given), strict=False))
    many = len(batch) if isinstance(given, Mapping) else len(_several(given))
    known = ', '.join(f'{name} {list(shape_of(program, tensor))}' for name, tensor in wanted.items())
    where = f'data, batch {step}'
    problems = [
        Problem(where, f'has no input {name!r}', f'give {_ORDER}: {known}') for name in wanted if name not in batch
    ]
    problems += [Problem(where, f'has {name!r}, which the model does not read', f'give {known}') for name in batch
                 if name not in wanted]  # fmt: skip
    if many > len(wanted) and not isinstance(given, Mapping):
        problems.append(Problem(where, f'has {many} tensors, the model reads {len(wanted)}', f'give {_ORDER}: {known}'))
    for name, tensor in wanted.items():
        if name in batch and (what := _unfit(program, tensor, batch[name])):
            problems.append(Problem(f'{where}, {name}', what, f'the schedule asks for {known}'))
    if problems:
        raise ScheduleError(problems)
    return {name: batch[name].detach().cpu() for name in wanted}


def _several(given: Any) -> Sequence[Any]:
    return [given] if isinstance(given, torch.Tensor) or not isinstance(given, Sequence) else given


def _unfit(program: Program, tensor: Tensor, value: Any) -> str:
    """What is wrong with the value of an input; empty where nothing is."""
    if not isinstance(value, torch.Tensor):
        return f'is {type(value).__name__}, not a tensor'
    if tuple(value.shape) != shape_of(program, tensor):
        return f'has shape {list(value.shape)}, not {list(shape_of(program, tensor))}'
    if value.is_floating_point() != TORCH[tensor.dtype].is_floating_point:
        return f'is {str(value.dtype).removeprefix("torch.")}, not {tensor.dtype}'
    how, _, number = tensor.initial.partition('@')[0].partition(':')
    # Beyond the vocabulary, kernels would read other memory.
    if (
        how in ('tokens', 'classes')
        and value.numel()
        and not (int(value.min()) >= 0 and int(value.max()) < int(number))
    ):
        return f'has values from {int(value.min())} to {int(value.max())}, not from 0 to {int(number) - 1}'
    return ''


def skipped(data: Iterable[Given], count: int) -> Iterator[Given]:
    """The batches behind those that earlier runs have trained.

    Raises ``ScheduleError`` where there are fewer.
    """
    found = iter(data)
    for step in range(count):
        if next(found, None) is None:
            raise ended(step, count)
    return found


def ended(step: int, steps: int) -> ScheduleError:
    """The error that data end too early."""
    return ScheduleError(
        Problem('data', f'ends after {step} batches, {steps} steps are asked for', 'give more, or fewer steps')
    )
