"""Numbers: what a prediction rests on, how surely each is known, and a step with other values of them.

A number is a factor of the seconds of one part of a step: matrix products, attention, all other kernels, the host's
calls, a link; or of what overlap costs. The same program is priced once, its costs are scaled, and it is simulated
again, so that nothing is lowered anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Final, NamedTuple

import numpy as np

from simpar.cost.compute import MATRIX, PRODUCTS
from simpar.cost.costs import Costs
from simpar.cost.price import Effects, Pricer
from simpar.hardware import Cluster, Figure, Grade
from simpar.hardware.profile import worst
from simpar.predict import Pricing, step_of_costs, under_load
from simpar.program import OpClass, Program
from simpar.session import Session
from simpar.units import GRID, format_time

RANGE: Final[Mapping[Grade, float]] = {
    'measured': 0.05, 'vendor': 0.1, 'literature': 0.15, 'estimate': 0.25, 'claim': 0.4,
}  # fmt: skip
"""Within which factor, as a logarithm, 80 % of numbers of a grade lie: a choice (docs/reading.md)."""
SHOWN: Final = 3
"""Numbers that are told."""
_ONE: Final = 'simpar calibrate on one node'
NOTHING: Final = 1e-3
"""Of a step; what moves less decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One factor. Arguments: ``name``; ``words``; ``grade`` of what it rests on; ``settled``, what tells it."""

    name: str
    words: str
    grade: Grade
    settled: str

    @property
    def range(self) -> float:
        """Half-width of its factor's logarithm."""
        return RANGE[self.grade]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisive:
    """A number at both ends of its range: what comes of the gain, or of the step in seconds where there is no gain."""

    number: Number
    low: float
    high: float
    is_gain: bool

    @property
    def turns(self) -> bool:
        """Whether the sign of the gain turns within the range."""
        return self.is_gain and self.low * self.high < 0

    @property
    def line(self) -> str:
        """All of it in a line."""
        ends = (f'{100 * end:+.1f} %' if self.is_gain else format_time(end) for end in sorted((self.low, self.high)))
        turn = ', so it may turn' if self.turns else ''
        number, what = self.number, 'the gain' if self.is_gain else 'the step'
        within = f'{number.words} ({number.grade}, within {100 * number.range:.0f} %)'
        return f'{within}: {what} is {" to ".join(ends)}{turn}; {number.settled} tells it.'


def numbers_of(cluster: Cluster) -> tuple[Number, ...]:
    """What a step on a cluster rests on; links, innermost first, are the last."""
    profile, stack = cluster.profile, cluster.stack
    device, tables = profile.device, profile.tables
    kernel = stack.attention if stack else None
    # Of a device alone the clock is that of short measurements.
    clock: Figure | Grade = 'measured' if stack is None else device.sustained or 'estimate'
    products = tables.matmul.grade if tables.matmul else device.matmul.share
    own = kernel.share_on(device.name) if kernel else None
    attention = own or (tables.attention.grade if tables.attention else device.attention.share)
    host = stack.host.forward if stack and stack.host else profile.host.seconds
    slow = profile.slow_down
    rows: list[tuple[str, str, list[Figure | Grade], str]] = [
        ('products', f'matrix products of {device.name} under load', [products, clock], _ONE),
        ('attention', 'attention', [attention], _ONE),
        ('streaming', 'kernels that stream', [device.memory.share], _ONE),
        ('host', "the host's seconds for a kernel", [host], 'a recorded step (simpar import TRACE --for FILE)'),
        ('overlap', 'slow-down under overlap', [slow.matrix, slow.collective], 'simpar measure on one node'),
    ]
    for link in profile.links:
        where = _ONE if 0 < link.devices <= cluster.devices else 'simpar calibrate on two nodes'
        rows.append((link.name, f'bandwidth of {link.name}', [link.bandwidth, link.share], where))
    return tuple(
        Number(name=name, words=words, grade=worst(figures), settled=settled) for name, words, figures, settled in rows
    )


def scaled(costs: Costs, program: Program, factors: Mapping[str, float]) -> Costs:
    """Costs with parts of them so many times as long; links are no part, see ``with_links``."""

    def number(op: OpClass) -> float:
        name = 'products' if op.operator in PRODUCTS else 'attention' if op.operator in MATRIX else 'streaming'
        return factors.get(name, 1.0) if op.kind == 'compute' else 1.0

    overlap, host = factors.get('overlap', 1.0), factors.get('host', 1.0)
    times = np.array([number(op) for op in program.op_classes])

    def slowed(speed: np.ndarray) -> np.ndarray:
        # Of what takes nothing of a device, there is nothing to change.
        return np.where(speed > 1, speed, 1 / (1 + (1 / np.minimum(speed, 1) - 1) * overlap))

    return replace(
        costs.with_speeds(slowed),
        compute=_on_grid(costs.compute * times),
        host=_on_grid(costs.host * host),
        host_step=float(_on_grid(np.array([costs.host_step * host]))[0]),
        beside_compute=slowed(costs.beside_compute),
    )


def _on_grid(seconds: np.ndarray) -> np.ndarray:
    return np.asarray(np.rint(seconds * GRID) / GRID)


def with_links(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """A cluster whose links take so many times as long for their bytes."""
    changed = {
        link.name: cluster.links.get(link.name, 1.0) / factors[link.name]
        for link in cluster.profile.links
        if factors.get(link.name, 1.0) != 1.0
    }
    return replace(cluster, links={**cluster.links, **changed}) if changed else cluster


def pricing_with(factors: Mapping[str, float]) -> Pricing:
    """What prices programs with some numbers otherwise, for ``predict``."""
    return _pricing(lambda costs, program: scaled(costs, program, factors), factors)


def pricing_by(seconds: Mapping[str, Mapping[str, float]]) -> Pricing:
    """What prices programs whose ops were timed, for ``predict``; arguments: by a program's hash, seconds by op."""

    def changed(costs: Costs, program: Program) -> Costs:
        timed, defaults = seconds.get(program.hash, {}), costs.compute.tolist()
        compute = [timed.get(op.name, before) for op, before in zip(program.op_classes, defaults, strict=True)]
        return replace(costs, compute=_on_grid(np.array(compute)))

    return _pricing(changed, {})


def _pricing(changed: Callable[[Costs, Program], Costs], links: Mapping[str, float]) -> Pricing:
    """What prices programs with changed costs; arguments: ``links``, see ``with_links``."""
    pricers: list[tuple[Program, Cluster, Pricer]] = []

    def priced(program: Program, cluster: Cluster, effects: Effects) -> Costs:
        # A program is priced with one effect after the other; its clocks need a simulation.
        pricer = next((made for of, on, made in pricers if of is program and on is cluster), None)
        if pricer is None:
            pricer = Pricer(program, under_load(program, with_links(cluster, links)))
            pricers.append((program, cluster, pricer))
        return changed(pricer.costs(effects), program)

    return priced


Step = Callable[[Mapping[str, float]], float]
"""Seconds of a step by factors of numbers."""


def steps_of(program: Program, cluster: Cluster, models: Session | None = None) -> Step:
    """What gives seconds of a step with some numbers otherwise; arguments: ``models``, shared with other programs."""
    shared = models or Session()
    loaded = under_load(program, cluster, shared)
    plain = Pricer(program, loaded, models=shared).costs()

    def step(factors: Mapping[str, float]) -> float:
        changed = with_links(loaded, factors)
        costs = plain if changed is loaded else Pricer(program, changed, models=shared).costs()
        return step_of_costs(program, scaled(costs, program, factors))

    return step


class Side(NamedTuple):
    """A program on a cluster; ``batch``, samples of a step."""

    program: Program
    cluster: Cluster
    batch: int


def decisive(sides: Sequence[Side]) -> tuple[Decisive, ...]:
    """The numbers that could turn the sign of the gain within their range, then those that move it most.

    Without a baseline those that move the step most. Programs are priced and simulated twice for each number.
    Arguments: ``sides``, the plan and its baseline.
    """
    models, numbers = Session(), numbers_of(sides[0].cluster)
    steps = [steps_of(side.program, side.cluster, models) for side in sides]

    def answer(factors: Mapping[str, float]) -> float:
        seconds = [step(factors) for step in steps]
        if len(sides) == 1:
            return seconds[0]
        return (seconds[1] / sides[1].batch) / (seconds[0] / sides[0].batch) - 1

    decisions = [
        Decisive(
            number=one, low=answer({one.name: exp(-one.range)}), high=answer({one.name: exp(one.range)}),
            is_gain=len(sides) > 1,
        )
        for one in numbers
    ]  # fmt: skip
    plain = answer({})
    moved = [one for one in decisions if abs(one.high - one.low) > NOTHING * (1.0 if one.is_gain else plain)]
    return tuple(sorted(moved, key=lambda one: (not one.turns, -abs(one.high - one.low)))[:SHOWN])
