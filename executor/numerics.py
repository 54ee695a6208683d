"""Numerics: whether a program computes what the unsharded model computes, tensor by tensor."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite

import torch

from executor import inprocess, state
from executor.reference import Reference
from simpar import errors, plans
from simpar.program import Program
from simpar.workload import Adam, AdamW, Workload

TOLERANCE = 1e-10
EPSILON = 1e-5
SHOWN = 8
FLOOR = 1e-3
"""Of the largest gradient's (parameter's) norm: what is smaller is held to this, as terms that cancel (signs of an
absolute error, a key's bias) leave nothing but rounding."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far one loss, gradient or parameter of one step is from the reference's.

    Arguments: ``error``, the norm of the difference over the norm of the reference; infinite where one has it and the
    other does not.
    """

    step: int
    name: str
    error: float

    def __str__(self) -> str:
        return f'step {self.step}: {self.name} is off by {self.error:.2g}'


@dataclass(frozen=True, slots=True)
class Report:
    """Every comparison, worst first."""

    deviations: tuple[Deviation, ...]
    tolerance: float

    @property
    def worst(self) -> Deviation:
        """The largest deviation."""
        return self.deviations[0]

    @property
    def wrong(self) -> tuple[Deviation, ...]:
        """Those beyond the tolerance, worst first."""
        # Written as a negation, so that NaN counts as wrong.
        return tuple(deviation for deviation in self.deviations if not deviation.error <= self.tolerance)


def check(
    program: Program,
    workload: Workload,
    plan: plans.Plan,
    steps: int = 2,
    seed: int = 0,
    *,
    dtype: torch.dtype | None = torch.float64,
    tolerance: float = TOLERANCE,
) -> Report:
    """Compare every loss, gradient and updated parameter of some steps, in process, with torch autograd's in fp64.

    Arguments: ``dtype`` takes the place of every floating dtype of the program (None: the program's own; then choose a
    ``tolerance`` for it). Adam's epsilon counts as at least 1e-5. Raises ``NumericsWrong`` naming the tensors that are
    furthest off.
    """
    # Both sides get the same larger epsilon, or rounding noise in zero gradients would look like an error.
    program, workload = _conditioned(program, workload)
    if not plan.data:
        plan = replace(plan, data=max(1, program.world // (plan.context * plan.tensor * plan.pipeline)))
    machine, reference = inprocess.InProcess(program, seed, dtype), Reference(workload, plan, seed)
    deviations = [
        # Step by step, so that the first wrong step is named, not only the last.
        deviation
        for step in range(steps)
        for deviation in compare(machine.run(), reference.run(), first_step=step)
    ]
    report = Report(tuple(sorted(deviations, key=lambda deviation: -deviation.error)), tolerance)
    if report.wrong:
        lines = [str(deviation) for deviation in report.wrong[:SHOWN]]
        of = f'{len(report.wrong)} of {len(deviations)} losses, gradients and parameters differ from the reference'
        raise errors.NumericsWrong('\n  '.join([f'{of} by more than {tolerance:g} in norm:', *lines]))
    return report


def _conditioned(program: Program, workload: Workload) -> tuple[Program, Workload]:
    """Both with Adam's epsilon enlarged by the same factor, so that a program with another epsilon is still found.

    Adam divides by epsilon what gradients are zero but for rounding, e.g. those of a key's bias: at the usual 1e-8 a
    right program and the reference differ by 1e-9 in such weights.
    """
    if not isinstance(workload.optimizer, Adam | AdamW):
        return program, workload
    factor = max(1.0, EPSILON / workload.optimizer.epsilon)
    op_classes = tuple(
        replace(op, attributes={**op.attributes, 'epsilon': float(op.attributes['epsilon']) * factor})
        if op.operator == 'adam'
        else op
        for op in program.op_classes
    )
    optimizer = replace(workload.optimizer, epsilon=workload.optimizer.epsilon * factor)
    return program.replace(op_classes=op_classes), replace(workload, optimizer=optimizer)


def compare(result: state.Result, reference: state.Result, first_step: int = 0) -> Iterator[Deviation]:
    """The deviations of a result; gradients and parameters count to its last step."""
    for index, losses in enumerate(zip(result.losses, reference.losses, strict=True)):
        loss, expected = (torch.tensor(value, dtype=torch.float64) for value in losses)
        yield Deviation(first_step + index, 'loss', _error(loss, expected, 0.0))
    last = first_step + len(result.losses) - 1
    for actual, wanted in ((result.gradients, reference.gradients), (result.parameters, reference.parameters)):
        floor = FLOOR * max((float(tensor.norm()) for tensor in wanted.values()), default=0.0)
        for name in {**wanted, **actual}:
            both = name in actual and name in wanted
            yield Deviation(last, name, _error(actual[name], wanted[name], floor) if both else inf)


def _error(actual: torch.Tensor, wanted: torch.Tensor, floor: float) -> float:
    """The norm of the difference as a share of the wanted norm, or of ``floor`` where that is more."""
    if actual.shape != wanted.shape:
        return inf
    difference, size = float((actual.to(wanted.dtype) - wanted).norm()), max(float(wanted.norm()), floor)
    # NaN compares as false everywhere, and would pass the tolerance.
    if not isfinite(difference):
        return inf
    return difference / size if size else (inf if difference else 0.0)
