"""An own measured step: one number of a stack or device is scaled until the prediction meets it (`simpar run --fit`).

Where the host issues for half of the step or more, the host's seconds for a kernel are scaled, forward and backward
alike; else the clock of the matrix units under load. Both stay within the bounds that all fitted numbers have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from simpar import document, hardware, interval, units
from simpar.case import Case
from simpar.errors import refusal
from simpar.predict import step_and_costs, step_of

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    'forward': (3e-6, 40e-6),
    'backward': (3e-6, 40e-6),
    'step': (0.0, 0.5),
    'sustained': (0.7, 1.0),
    'memory': (0.6, 0.95),
}
"""Host seconds for a kernel forward and backward, and of a step; clock under load over that of short measurements;
bandwidth of streaming kernels over the peak."""
HALVINGS: Final = 14
CLOSE: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """What a file of ``--fit`` has: ``step``, the seconds of a step that the user measured with this very schedule."""

    step: document.Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What was scaled.

    Arguments: ``number``, in words; ``before`` and ``after``; ``bound``, whether it stopped at the end of its range;
    ``measured``, ``unfitted`` and ``fitted`` seconds of a step.
    """

    number: str
    unit: str
    before: float
    after: float
    bound: bool
    measured: float
    unfitted: float
    fitted: float

    @property
    def line(self) -> str:
        """All of it in a line."""
        how = f'{self.number} × {self.after / self.before:.3g} ({self.before:.3g} to {self.after:.3g}{self.unit})'
        steps = f'predicted {units.format_time(self.unfitted)}, now {units.format_time(self.fitted)}'
        end = '; this is the end of its range: something else is missing' if self.bound else ''
        return f'Fitted to a measured step of {units.format_time(self.measured)}: {how}; {steps}{end}.'


def read_own_step(path: Path) -> OwnStep:
    """The file of ``--fit``; raises ``ScheduleError`` with every problem."""
    return document.build(document.read(path), OwnStep)


def fitted_case(case: Case, own: OwnStep) -> tuple[Case, Fitted]:
    """The case with one number scaled, of its baseline too where that is on the same stack; and what was scaled.

    Raises ``ScheduleError`` where the cluster names no stack.
    """
    if case.cluster.stack is None:
        instead = 'name one in the schedule, as cluster.stack: eager, or leave --fit out'
        raise refusal('--fit', 'it scales a number of a stack, and the cluster names none', instead)
    stack, device = case.cluster.stack, case.cluster.profile.device
    step, costs = step_and_costs(case.program, case.cluster)
    if stack.host and interval.bound_by(case.program, costs, step) == interval.HOST:
        values = {key: getattr(stack.host, key).value for key in ('forward', 'backward')}
        number, unit, before = f"{stack.name}'s host seconds for a kernel", ' us', values['forward'] * 1e6
    else:
        values = {'sustained': device.sustained.value if device.sustained else 1.0}
        number, unit, before = f'the clock under load of {device.name}', '', values['sustained']
    low = max(BOUNDS[key][0] / value for key, value in values.items())
    high = min(BOUNDS[key][1] / value for key, value in values.items())
    # The factor of the slowest step first: a clock is the slower, the less it is.
    span = (low, high) if 'sustained' in values else (high, low)

    def scaled(cluster: hardware.Cluster, factor: float) -> hardware.Cluster:
        return with_numbers(cluster, {key: value * factor for key, value in values.items()})

    factor = _solved(lambda tried: step_of(case.program, scaled(case.cluster, tried)), own.step, span)
    other = case.baseline
    if other and other.cluster.stack is case.cluster.stack:
        other = replace(other, cluster=scaled(other.cluster, factor))
    made = replace(case, cluster=scaled(case.cluster, factor), baseline=other)
    found = Fitted(
        number=number, unit=unit, before=before, after=before * factor, bound=factor in span, measured=own.step,
        unfitted=step, fitted=step_of(made.program, made.cluster),
    )  # fmt: skip
    return made, found


def _solved(step: Callable[[float], float], wanted: float, span: tuple[float, float]) -> float:
    """The factor of which a step takes the wanted seconds; the end of its range where none does."""
    slow, fast = span
    if wanted >= step(slow):
        return slow
    if wanted <= step(fast):
        return fast
    for _ in range(HALVINGS):
        middle = (slow + fast) / 2
        seconds = step(middle)
        if abs(seconds / wanted - 1) < CLOSE:
            return middle
        slow, fast = (middle, fast) if seconds > wanted else (slow, middle)
    return (slow + fast) / 2


def with_numbers(cluster: hardware.Cluster, numbers: Mapping[str, float]) -> hardware.Cluster:
    """A cluster with other numbers of its stack and device."""
    stack, device = cluster.stack, cluster.profile.device
    if stack and stack.host:
        host = stack.host
        changed = {key: replace(getattr(host, key), value=numbers[key]) for key in ('forward', 'backward', 'step')
                   if key in numbers}  # fmt: skip
        stack = replace(stack, host=replace(host, **changed))
    if 'memory' in numbers:
        memory = device.memory
        device = replace(device, memory=replace(memory, share=replace(memory.share, value=numbers['memory'])))
    if 'sustained' in numbers:
        device = replace(device, sustained=replace(device.memory.share, value=numbers['sustained']))
    profile = cluster.profile if device is cluster.profile.device else replace(cluster.profile, device=device)
    return replace(cluster, stack=stack, profile=profile)
