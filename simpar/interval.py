"""Intervals: how far measured steps lay from predictions of their kind, told with every prediction.

A kind is a class of devices and what bounds the step, of the frameworks whose steps were scored: of steps for fitting,
intervals told by device fit models that were left out better than those told by stack. Where no step of that framework,
device or bound was scored, the interval is that of all frameworks, each counted once, wider by a rule (``WIDER``); or
that of the kind, where steps of several other frameworks on that device and bound were scored.
Within a kind kernels that stream are priced less well than products are. So errors are taken relative to √(1 + (ρ·s)²),
with s the share of the step that streaming kernels fill and ρ one number for all kinds. What the parts of a sum are
unsure by adds up in squares (GUM, JCGM 100:2008, section 5.1.2). Quantiles of errors relative to a scale that the
prediction knows are normalised conformal intervals (Papadopoulos, Gammerman, Vovk 2008, "Normalized nonconformity
measures for regression conformal prediction"; Lei et al. 2018, "Distribution-free predictive inference for regression",
section 5.2).

Half-widths are of published steps that numbers may be fitted on (docs/proofs/validate.md), and of no others; the
steps that were kept aside tell whether they hold (docs/accuracy.md). They are ratios: 80 % of measured steps lie
between step / r and step · r. `make accuracy` writes them to ``hw_profiles/intervals.csv``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from typing import Final

import numpy as np

from simpar import files, hardware, profiles
from simpar.cost.compute import MATRIX
from simpar.cost.costs import Costs
from simpar.program import Program

TABLE: Final = 'intervals.csv'
LEVEL: Final = 0.8
HOST, DEVICE = 'host', 'device'
ANY: Final = '*'
"""In the table, the device and the bound of the spread of all frameworks together, each counted once."""
FRAMEWORK: Final = 'framework'
WIDER: Final = 1.5
"""How many times as wide for a device, and for a bound, of which no step was scored: a choice, held against frameworks
that were left out whole (docs/accuracy.md)."""
_HALF: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How measured steps of a kind were spread about predictions.

    Arguments:
        device: class of devices; ``bound``, by the ``host`` or the ``device``.
        stacks: whose steps they are; ``rows``, ``models``: how many steps, of how many models.
        step: half-width in the logarithm of measured / predicted where nothing streams; ``streaming``, the ρ above.
        gain: half-width of the ratio of two plans of one model on equal devices, 0 where no such ``pairs`` were
            measured.
        anchored: whether an own measured step made it narrower.
        part: half-width of the speeds of parts that are sold under one name.
        lacking: of which of framework, device and bound no step was scored, where it is of others; see ``spread_of``.
        frameworks: of how many frameworks steps are; ``of_kind``, of others on this very device and bound.
    """

    device: str
    bound: str
    stacks: tuple[str, ...]
    rows: int
    models: int
    step: float
    streaming: float
    pairs: int
    gain: float
    part: float = 0.0
    lacking: tuple[str, ...] = ()
    frameworks: int = 1
    of_kind: bool = False
    anchored: bool = False

    @property
    def words(self) -> str:
        """What it rests on, in words."""
        if self.anchored:
            return 'as the anchor tells it, whatever its kind'
        parts = ', and for parts of unlike speed that are sold under one name' if self.part else ''
        if self.lacking and not self.of_kind:
            times = WIDER ** len({*self.lacking} - {FRAMEWORK})
            wider = f', {times:g} times as wide for what is not known' if times > 1 else ''
            return f'{self.rows} published steps of other kinds, each framework counted once{wider}{parts}'
        steps = f'{self.rows} published steps of {self.models} models ({", ".join(self.stacks)})'
        return f'{steps} on {self.device}, bound by the {self.bound}{parts}'

    def narrowed(self, width: float, share: float) -> Spread:
        """The spread where an anchor tells a half-width, of a step with this share, that is less than its own."""
        if width >= self.half_width(share):
            return self
        return replace(self, step=width / unsure(self.streaming, share), part=0.0, anchored=True)

    def half_width(self, share: float) -> float:
        """The half-width of a step of which streaming kernels fill this share."""
        return hypot(self.step * unsure(self.streaming, share), self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where ``LEVEL`` of such steps lie, in seconds, and what that rests on."""

    low: float
    high: float
    spread: Spread


def unsure(streaming: float, share: float) -> float:
    """How many times as unsure a step is as one without streaming kernels, of which these fill a share."""
    return hypot(1.0, streaming * share)


def interval(step: float, spread: Spread, share: float = 0.0) -> Interval:
    """The interval of a step of so many seconds, of which streaming kernels fill a share."""
    width = spread.half_width(share)
    return Interval(low=step * exp(-width), high=step * exp(width), spread=spread)


def bound_by(program: Program, costs: Costs, step: float) -> str:
    """What a step of so many seconds is bound by: the host, where it issues for half of it or more."""
    issued = max(float(costs.host[role.op_class].sum()) for role in program.roles)
    return HOST if issued >= _HALF * step else DEVICE


def streaming_share(program: Program, costs: Costs, step: float, bound: str) -> float:
    """The share of a step that kernels off the matrix units fill, on the rank that computes most.

    Arguments: ``bound``, as of ``bound_by``; where it is the host, what the device does fills none of the step.
    """
    if bound == HOST:
        return 0.0
    kinds, ops = program.cost_kinds
    streams = np.array([op.kind == 'compute' and op.operator not in MATRIX for op in ops])[kinds]
    streaming = np.where(streams, costs.compute, 0.0)
    busiest = max(program.roles, key=lambda role: float(costs.compute[role.op_class].sum()))
    return float(streaming[busiest.op_class].sum()) / step


def spread_of(cluster: hardware.Cluster, bound: str) -> Spread | None:
    """The spread of steps like those on a cluster; None without a stack: no published step is of a device alone."""
    device = cluster.profile.device
    bins = device.bins.value if device.bins else 1.0
    return spread_for(spreads(), cluster.stack.name, device_class(device.name), bound, bins) if cluster.stack else None


def spread_for(all_spreads: Sequence[Spread], stack: str, device: str, bound: str, bins: float = 1.0) -> Spread | None:
    """The spread of steps of a stack on a class of devices, bound by the host or the device.

    Where no step of the framework was scored, and of several others there were on such a device with such a bound, it
    is theirs; one other would not tell how frameworks differ. Else it is that of all frameworks, or of kinds of the
    framework where these are wider, ``WIDER`` times so for a device and for a bound that no scored step had.
    Arguments: ``bins``, as of ``Device``: how fast the part was is not told then, and is anywhere between.
    """
    every = spread_among(all_spreads, ANY, ANY)
    of_framework = [one for one in all_spreads if stack in one.stacks and one is not every]
    nearest = spread_among(all_spreads, device, bound)
    if nearest in of_framework or every is None:
        return nearest if nearest in of_framework else None
    part = LEVEL * log(bins) / 2
    if nearest and nearest.frameworks > 1 and not of_framework:
        return replace(nearest, lacking=(FRAMEWORK,), of_kind=True, part=part, pairs=0, gain=0.0)
    on_device = [one for one in all_spreads if one.device == device]
    kin = of_framework or on_device or [one for one in all_spreads if one is not every]
    lacks = {
        FRAMEWORK: not of_framework,
        DEVICE: device not in {one.device for one in of_framework or all_spreads},
        'bound': bound not in {one.bound for one in kin},
    }
    step = max(one.step for one in (every, *of_framework)) * WIDER ** (lacks[DEVICE] + lacks['bound'])
    lacking = tuple(name for name, holds in lacks.items() if holds) or ('both together',)
    return replace(every, device=device, bound=bound, step=step, lacking=lacking, part=part)


def spread_among(all_spreads: Sequence[Spread], device: str, bound: str) -> Spread | None:
    """That of a class of devices and what bounds the step."""
    return next((one for one in all_spreads if (one.device, one.bound) == (device, bound)), None)


def device_class(name: str) -> str:
    """A device's name without the size of its memory, which tells nothing of its speed."""
    return re.sub(r' \d+ GB$', '', name)


@functools.lru_cache(maxsize=1)
def spreads() -> tuple[Spread, ...]:
    """All rows of the table."""
    path = profiles.profile_folder() / TABLE
    return tuple(
        Spread(
            device=row['device'], bound=row['bound'], stacks=tuple(row['stacks'].split()), rows=int(row['rows']),
            models=int(row['models']), step=float(row['step']), streaming=float(row['streaming']),
            pairs=int(row['pairs']), gain=float(row['gain']), frameworks=int(row['frameworks']),
        )
        for row in (files.read_csv(path) if path.is_file() else ())
    )  # fmt: skip
