"""Intervals: how far measured steps lay from predictions of their kind, told with every prediction.

Half-widths are of published steps that numbers may be fitted on (docs/validate.md), and of no others; the steps that
were kept aside tell whether they hold (docs/accuracy.md). They are ratios: 80 % of measured steps lie between step / r
and step · r. `make accuracy` writes them to ``hw_profiles/intervals.csv``.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import Final

from simpar.cost.costs import Costs
from simpar.hardware import Cluster
from simpar.profiles import profile_folder
from simpar.program import Program
from simpar.stacks import load_stack, stack_names

TABLE: Final = 'intervals.csv'
LEVEL: Final = 0.8
HOST, DEVICE = 'host', 'device'
_HALF: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How measured steps of a kind were spread about predictions.

    Arguments:
        stack, device: of which they are; ``bound``, by the ``host`` or the ``device``.
        rows, models: how many steps, of how many models.
        step: half-width in the logarithm of measured / predicted; ``gain``, that of the ratio of two plans of one model
            on equal devices, 0 where no such ``pairs`` were measured.
    """

    stack: str
    device: str
    bound: str
    rows: int
    models: int
    step: float
    pairs: int
    gain: float

    @property
    def words(self) -> str:
        """What it rests on, in words."""
        steps = f'{self.rows} published steps of {self.models} models'
        return f'{steps}, {self.stack} on {self.device}, bound by the {self.bound}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where ``LEVEL`` of such steps lie, in seconds, and what that rests on."""

    low: float
    high: float
    spread: Spread


def interval(step: float, spread: Spread) -> Interval:
    """The interval of a step of so many seconds."""
    return Interval(low=step * exp(-spread.step), high=step * exp(spread.step), spread=spread)


def bound_by(program: Program, costs: Costs, step: float) -> str:
    """What a step of so many seconds is bound by: the host, where it issues for half of it or more."""
    issued = max(float(costs.host[role.op_class].sum()) for role in program.roles)
    return HOST if issued >= _HALF * step else DEVICE


def spread_of(cluster: Cluster, bound: str) -> Spread | None:
    """The spread of steps like those on a cluster; None where nobody published any that were scored."""
    if cluster.stack is None:
        return None
    return spread_among(spreads(), cluster.stack.name, device_class(cluster.profile.device.name), bound)


def spread_among(known: Sequence[Spread], stack: str, device: str, bound: str) -> Spread | None:
    """That of the stack, or of the nearest one that it extends, on a class of devices."""
    by = {(one.stack, one.device, one.bound): one for one in known}
    found = (by.get((name, device, bound)) for name in lineage(stack))
    return next((one for one in found if one), None)


def device_class(name: str) -> str:
    """A device's name without the size of its memory, which tells nothing of its speed."""
    return re.sub(r' \d+ GB$', '', name)


def lineage(stack: str) -> Iterator[str]:
    """A stack that comes with simpar and those that it extends, nearest first; a user's own file alone is itself."""
    while stack:
        yield stack
        stack = load_stack(stack).extends if stack in stack_names() else ''


@functools.lru_cache(maxsize=1)
def spreads() -> tuple[Spread, ...]:
    """All rows of the table."""
    path = profile_folder() / TABLE
    if not path.is_file():
        return ()
    with path.open(encoding='utf-8', newline='') as file:
        return tuple(
            Spread(
                stack=row['stack'], device=row['device'], bound=row['bound'], rows=int(row['rows']),
                models=int(row['models']), step=float(row['step']), pairs=int(row['pairs']), gain=float(row['gain']),
            )
            for row in csv.DictReader(file)
        )  # fmt: skip
