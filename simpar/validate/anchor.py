"""Anchor: what one node tells of a device and its stack, for predictions of larger clusters (`simpar run --anchor`).

And one number that is scaled until the prediction meets an own measured step (`--fit`).

Factors of the numbers that a prediction rests on (``simpar.numbers``) are fitted to measured steps: the likeliest ones,
where each number lies within the range that its grade has, and a step repeats and is modelled within ``NOISE``, both
normal in logarithms. What the steps do not move keeps its range, and is told as not known.

`--fit`: where the host issues for half of the step or more, the host's seconds for a kernel are scaled, forward and
backward alike; else the clock of the matrix units under load. Both stay within the bounds that all fitted numbers have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import NormalDist, median
from typing import Final

import numpy as np

from simpar import document, hardware, interval, profiles, units
from simpar.case import Case, load_case
from simpar.errors import refusal
from simpar.numbers import Number, Step, numbers_of, steps_of
from simpar.predict import step_and_costs, step_of
from simpar.traces import is_trace, read_traces, step_figures

NOISE: Final = 0.06
"""Standard deviation of log(measured / predicted) that no number explains. With it 80 % of larger runs of LLM-Foundry
and MindSpeed lay within the half-widths that runs on one node gave; it was chosen with these rows in sight, which
so do not prove it (docs/accuracy.md)."""
SIGMAS: Final = NormalDist().inv_cdf((1 + interval.LEVEL) / 2)
"""Standard deviations of the half-width of a range."""
ROUNDS: Final = 2
NUDGE: Final = 0.05
TOLD: Final = 0.8
"""A number whose range stays this share of what it was, or more, is not told by the anchor."""
FAR: Final = 3.0
"""Standard deviations from which on a step is no step of what is predicted."""
FELT: Final = 0.1
"""Share of the step from which a number that is not told is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A measured step.

    Arguments: ``schedule`` that ran, from the folder of the file; empty: the one that is predicted. ``step``, its
    seconds, or a ``recording`` of it.
    """

    schedule: str = ''
    step: document.Seconds | None = None
    recording: str = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorFile(Run):
    """What a file of ``--anchor`` has: a run, or several ``runs``; ``profile``, what `simpar calibrate` wrote."""

    runs: tuple[Run, ...] = ()
    profile: str = ''


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What came of a number: its ``factor`` of seconds, how far it is known, and how far it was (half-widths)."""

    number: Number
    factor: float
    known: float

    @property
    def is_told(self) -> bool:
        """Whether the anchor tells it."""
        return self.known < TOLD * self.number.range


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """What an anchor told.

    Arguments: ``steps``, seconds of each run: measured, predicted without and with it; ``factors``; ``unknown``,
    numbers that the prediction rests on and the anchor does not tell; ``known``, half-width of the logarithm of the
    predicted step; ``profile``, whose bench was taken, and its ``device``.
    """

    steps: tuple[tuple[float, float, float], ...] = ()
    factors: tuple[Factor, ...] = ()
    unknown: tuple[Number, ...] = ()
    known: float = inf
    profile: str = ''
    device: str = ''

    @property
    def lines(self) -> Iterator[str]:
        """All of it, in lines."""
        if self.profile:
            yield (f'Anchored by the bench of {self.profile}: its {self.device}, and its innermost link.')
        for measured, before, after in self.steps:
            times = ', '.join(map(units.format_time, (measured, before, after)))
            yield (f'Anchored by a step (measured, predicted without and with it): {times}.')
        texts = [f'{one.number.words} × {one.factor:.3f}' for one in self.factors if one.is_told]
        if self.steps:
            yield (f'It tells {", ".join(texts) or "no number"} (seconds, of those predicted).')
        if self.unknown:
            words = '; '.join(f'{one.words} ({one.settled} would)' for one in self.unknown)
            yield (f'It does not tell {words}.')


def anchored(case: Case, path: Path) -> tuple[Case, Anchored]:
    """The case with numbers as an anchor has them, of its baseline too where that is on the same devices.

    Raises ``ScheduleError`` for a file that says nothing, and where no stack is named.
    """
    _stack_of(case, '--anchor', 'tells numbers')
    anchor = _read(path)
    bench = anchor.profile
    if bench:
        measured = profiles.load_profile(_beside(path, bench))
        case = _on_profile(case, measured)
    runs = [*anchor.runs, *([anchor] if anchor.step or anchor.recording else [])]
    if not runs:
        return case, Anchored(profile=bench, device=case.cluster.profile.device.name)
    seconds = [_seconds(path, run) for run in runs]
    cases = [_of_run(case, path, run, bench) for run in runs]
    return _fitted(case, cases, seconds, bench)


def _stack_of(case: Case, flag: str, does: str) -> hardware.Stack:
    if case.cluster.stack is None:
        instead = f'name one in the schedule, as cluster.stack: eager, or leave {flag} out'
        raise refusal(flag, f'it {does} of a stack, and the cluster names none', instead)
    return case.cluster.stack


def _read(path: Path) -> AnchorFile:
    if path.is_dir() or is_trace(path):
        return AnchorFile(recording=str(path.resolve()))
    tree = document.read(path)
    if isinstance(tree.root, dict) and {'device', 'links'} <= tree.root.keys():
        return AnchorFile(profile=str(path.resolve()))
    anchor = document.build(tree, AnchorFile)
    if not (anchor.step or anchor.recording or anchor.runs or anchor.profile):
        what = 'it has no measured step'
        raise refusal(path, what, 'write e.g. step: 161 ms, and schedule: FILE of what ran')
    return anchor


def _beside(path: Path, name: str) -> str:
    return str(path.parent / name) if (path.parent / name).exists() else name


def _seconds(path: Path, run: Run) -> float:
    if run.step:
        return run.step
    if not run.recording:
        raise refusal(f'{path}: runs', 'a run without a step', 'write step: 161 ms, or recording: PATH')
    [first, *_] = read_traces(Path(_beside(path, run.recording)))
    spans = [figures.span for _, figures in step_figures(first)]
    if not spans:
        raise refusal(run.recording, 'it has no step', 'record whole steps, or write step: 161 ms')
    # The first recorded step is often a warm-up.
    return median(spans[1:] or spans)


def _of_run(case: Case, path: Path, run: Run, bench: str) -> Case:
    if not run.schedule:
        return case
    other_case = load_case(Path(_beside(path, run.schedule)))
    mine, other = case.cluster.profile.device.name, other_case.cluster.profile.device.name
    if mine != other:
        what = f'{run.schedule} ran on {other}, and the schedule is of {mine}'
        raise refusal(path, what, 'anchor by a run on the same device')
    return _on_profile(other_case, case.cluster.profile) if bench else other_case


def _on_profile(case: Case, measured: hardware.Profile) -> Case:
    """The case on a device as its bench has it; links beyond the innermost stay as they are."""

    def changed(cluster: hardware.Cluster) -> hardware.Cluster:
        own = cluster.profile
        links = (replace(measured.links[0], name=own.links[0].name, devices=own.links[0].devices), *own.links[1:])
        profile = replace(own, device=measured.device, tables=measured.tables, links=links)
        return replace(cluster, profile=profile)

    other = replace(case.baseline, cluster=changed(case.baseline.cluster)) if case.baseline else None
    return replace(case, cluster=changed(case.cluster), baseline=other)


def _fitted(case: Case, cases: Sequence[Case], measured: Sequence[float], bench: str) -> tuple[Case, Anchored]:
    numbers = numbers_of(case.cluster)
    prior = np.diag([(one.range / SIGMAS) ** 2 for one in numbers])
    steps = [steps_of(one.program, one.cluster) for one in cases]
    plain = [step({}) for step in steps]
    logs, at = np.zeros(len(numbers)), plain
    for step, wanted, before in zip(steps, measured, plain, strict=True):
        felt = np.array(_moves(step, logs, numbers, before))
        if abs(log(wanted / before)) > FAR * sqrt(felt @ prior @ felt + NOISE**2):
            what = f'a step of {units.format_time(wanted)} was measured, and {units.format_time(before)} are predicted'
            instead = (
                'check that its schedule is what ran: model, batch, plan, type, devices; no number is that far off'
            )
            raise refusal('--anchor', what, instead)
    moved, spread = np.zeros((len(steps), len(numbers))), prior
    for _ in range(ROUNDS):
        moved = np.array([_moves(step, logs, numbers, own) for step, own in zip(steps, at, strict=True)])
        # The likeliest factors of a linear model with normal noise and prior (Bishop 2006, section 3.3.1).
        spread = np.linalg.inv(moved.T @ moved / NOISE**2 + np.linalg.inv(prior))
        lacks = np.array([log(wanted / own) for wanted, own in zip(measured, at, strict=True)]) + moved @ logs
        logs = spread @ moved.T @ lacks / NOISE**2
        at = [step(_factors(logs, numbers)) for step in steps]
    factors = _factors(logs, numbers)
    own = steps_of(case.program, case.cluster)
    felt = np.array(_moves(own, logs, numbers, own(factors)))
    uncertainty = SIGMAS * sqrt(felt @ spread @ felt + NOISE**2)
    factor_list = tuple(
        Factor(number=number, factor=factors[number.name], known=SIGMAS * sqrt(spread[index, index]))
        for index, number in enumerate(numbers)
    )
    unknown = tuple(one.number for one, part in zip(factor_list, felt, strict=True) if part >= FELT and not one.is_told)
    answer = Anchored(
        steps=tuple(zip(measured, plain, at, strict=True)), factors=factor_list, unknown=unknown, known=uncertainty,
        profile=bench, device=case.cluster.profile.device.name,
    )  # fmt: skip
    return replace(case, factors=factors, known=uncertainty), answer


def _factors(logs: np.ndarray, numbers: Sequence[Number]) -> Mapping[str, float]:
    return {one.name: exp(value) for one, value in zip(numbers, logs.tolist(), strict=True)}


def _moves(step: Step, logs: np.ndarray, numbers: Sequence[Number], plain: float) -> list[float]:
    """By how much log(seconds) moves with that of each number."""
    moved = []
    for index in range(len(numbers)):
        nudged = logs.copy()
        nudged[index] += NUDGE
        moved.append(log(step(_factors(nudged, numbers)) / plain) / NUDGE)
    return moved


# An own measured step, by which one number of a stack or device is scaled.

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
    stack, device = _stack_of(case, '--fit', 'scales a number'), case.cluster.profile.device
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
    fit = Fitted(
        number=number, unit=unit, before=before, after=before * factor, bound=factor in span, measured=own.step,
        unfitted=step, fitted=step_of(made.program, made.cluster),
    )  # fmt: skip
    return made, fit


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
