"""Topology: which levels of links a group of ranks crosses, and which channels of them it uses."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar import document, errors, files, plans
from simpar.hardware.profile import DeviceUse, Expansion, Link, Profile, RateFigure, ShareFigure, Waiting
from simpar.hardware.stack import Stack

# Kinds of kernels that collectives of NCCL are, and what they take of a device: the table ``beside.csv``.


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a collective takes of its devices.

    Arguments:
        blocks: multiprocessors times ranks, as the switch shares the work out; 0: copy engines do it.
        matrix: speed of products beside it, where that was measured.
        waits: whether it holds these while it waits for its peers.
    """

    blocks: int
    matrix: float | None
    waits: bool

    def speed(self, ranks: int, multiprocessors: float) -> float:
        """Speed of products beside it, of 1: what was measured, or the share of multiprocessors that it leaves."""
        share = math.ceil(self.blocks / ranks) / multiprocessors if self.blocks else 0.0
        return 1 - share if self.matrix is None else self.matrix


def kernels_of(tuning: str, mode: str) -> Mapping[str, Kernels]:
    """By operator, on devices of a row of NCCL's tables; ``dispatch``, as DeepEP does it, in any mode."""
    rows = [row for row in _rows() if row['tuning'] == tuning and row['mode'] in ('', mode)]
    return {
        row['operator']: Kernels(
            int(row['blocks']), float(row['matrix']) if row['matrix'] else None, row['waits'] == 'yes'
        )
        for row in rows
    }


@lru_cache(maxsize=1)
def _rows() -> list[dict[str, str]]:
    return files.read_csv(Path(__file__).with_name('beside.csv'))


@dataclass(frozen=True, slots=True)
class Shape:
    """How a group lies on the levels of links, innermost first.

    Arguments:
        members: at each level, how many communicate in one group there.
        domains: at each level, how many the group touches.
        ranks: how many are in the group.
        nodes: how many it touches.
    """

    members: tuple[int, ...]
    domains: tuple[int, ...]
    ranks: int
    nodes: int

    @property
    def outermost(self) -> int:
        """The outermost level that the group crosses."""
        return max((level for level, members in enumerate(self.members) if members > 1), default=0)


@dataclass(frozen=True, slots=True)
class Topology:
    """The levels of links over devices in a row; device r is in node r // ``node``. Ranks here are those of devices.

    Arguments: ``links``, innermost first; ``sizes``, how many neighbouring devices each joins, 0: all.
    """

    links: tuple[Link, ...]
    sizes: tuple[int, ...]
    node: int

    def domain(self, level: int, rank: int) -> int:
        """The domain of a rank at a level: ranks of one domain reach each other without leaving the level."""
        size = self.sizes[level]
        # Size 0 joins all: a single domain.
        return rank // size if size else 0

    def shape(self, ranks: Sequence[int]) -> Shape:
        """How a group lies; where domains hold unequal numbers of members, the fullest counts."""
        members, domains = [], []
        # What communicates on a level are the domains of the level below; on the innermost, the ranks themselves.
        below = {rank: rank for rank in ranks}
        for level in range(len(self.links)):
            held: dict[int, set[int]] = {}
            for rank in ranks:
                held.setdefault(self.domain(level, rank), set()).add(below[rank])
            # The fullest domain is the slowest, and all wait for it.
            members.append(max(len(units) for units in held.values()))
            domains.append(len(held))
            below = {rank: self.domain(level, rank) for rank in ranks}
        return Shape(tuple(members), tuple(domains), len(ranks), len({rank // self.node for rank in ranks}))

    def channels(self, ranks: Sequence[int], level: int) -> tuple[str, ...]:
        """Names of the channels of a level that a group's collective uses, e.g. ``nvlink/3``, ``hccs/0-2``."""
        link = self.links[level]
        if link.per == 'device':
            return tuple(f'{link.name}/{rank}' for rank in ranks)
        if link.per == 'node':
            return tuple(f'{link.name}/node{node}' for node in sorted({rank // self.node for rank in ranks}))
        return tuple(f'{link.name}/{one}-{other}' for one, other in self._pairs(ranks, level))

    def _pairs(self, ranks: Sequence[int], level: int) -> Iterator[tuple[int, int]]:
        """Pairs of ranks that communicate at a level: in one of its domains, at one place of the domains below."""
        below = self.sizes[level - 1] if level else 1
        for one, other in combinations(sorted(ranks), 2):
            near = self.domain(level, one) == self.domain(level, other)
            # A hierarchical collective pairs ranks of equal places in different domains.
            if near and one // below != other // below and one % below == other % below:
                yield one, other


@dataclass(frozen=True, slots=True)
class Placement:
    """Which device each rank of a plan is on, where its axes lie in another order than ranks are numbered.

    Arguments: ``sizes``, degrees of the axes, the outermost first as ranks are numbered; ``strides``, how many devices
    neighbours on each are apart.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, plan: plans.Plan, world: int) -> 'Placement | None':
        """That of a plan on so many devices; None: rank r is on device r, or degrees and devices do not fit."""
        inner = plan.pipeline * plan.context * plan.tensor
        data = plan.data or world // inner
        degrees = {'pipeline': plan.pipeline, 'data': data, 'context': plan.context, 'tensor': plan.tensor}
        if data * inner != world:
            return None
        strides, apart = {}, 1
        for axis in plan.placement.split('-'):
            strides[axis] = apart
            apart *= degrees[axis]
        made = cls(tuple(degrees.values()), tuple([strides[axis] for axis in degrees]))
        return None if (made.devices(np.arange(world)) == np.arange(world)).all() else made

    def devices(self, ranks: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The devices of ranks, in the same shape."""
        left, numbers = ranks.astype(np.int64), np.zeros(ranks.shape, dtype=np.int64)
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            left, place = np.divmod(left, size)
            numbers += place * stride
        return numbers


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A profile's node, so many times.

    Arguments:
        devices: how many are in each node.
        slow: rank → its speed, where it is not 1.
        links: name of a link → what its bandwidth is multiplied with, where it is not as in the profile.
        stack: the framework that issues the ops; None, one kernel an op.
        work_queues: how many work queues of a device are used; 0: as the stack says, or all that the device has.
        spread: standard deviation of what devices take for the same work, as a share of its mean.
        expansion_mode: of the library; empty: as the stack says, or the profile's default.
        placement: which device a rank is on; None: rank r is on device r.
    """

    profile: Profile
    nodes: int
    devices: int
    slow: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[str, float] = field(default_factory=dict)
    stack: Stack | None = None
    work_queues: int = 0
    spread: float = 0.0
    expansion_mode: str = ''
    placement: Placement | None = None

    def __repr__(self) -> str:
        # Figures of the profile and of the stack would be 6,000 characters and more.
        more = {one.name: getattr(self, one.name) for one in fields(self)[3:]}
        more['stack'] = self.stack.name if self.stack else ''
        changed = ''.join(f', {key}={value!r}' for key, value in more.items() if value)
        return f'Cluster({self.profile.name!r}, nodes={self.nodes!r}, devices={self.devices!r}{changed})'

    def waiting_slows(self, of: Waiting) -> bool:
        """Whether collectives, or messages, that wait for peers slow kernels: as the stack says, else the profile."""
        waiting = self.stack.waiting if self.stack else None
        return (self.profile.slow_down.waiting if waiting is None else waiting) in (True, of)

    @property
    def queues(self) -> int:
        """How many work queues of a device are used; 0: one for each stream."""
        has = self.profile.device.work_queues
        return self.queues_asked or (int(has.value) if has else 0)

    @property
    def queues_asked(self) -> int:
        """How many work queues the user or the stack asks for; 0: they do not say."""
        queues = self.stack.work_queues if self.stack else None
        return self.work_queues or (queues.count if queues else 0)

    @property
    def sunk(self) -> bool:
        """Whether the step is one graph on the device: as the stack says, or else the profile's host."""
        return self.stack.sunk if self.stack else self.profile.host.mode == 'sink'

    @property
    def mode(self) -> str:
        """The mode in which the library expands collectives; empty: the profile knows of none."""
        has = self.profile.expansion
        return self.mode_asked or (has.default if has else '')

    @property
    def mode_asked(self) -> str:
        """The mode that the user or the stack asks for; empty: they do not say."""
        mode = self.stack.expansion_mode if self.stack else None
        return self.expansion_mode or (mode.mode if mode else '')

    @property
    def taken(self) -> DeviceUse | None:
        """What a running collective takes of a device; None: the profile does not say by mode."""
        has = self.profile.expansion
        # Words of users, told beforehand where there is no such mode.
        modes = {str(mode): taken for mode, taken in has.modes.items()} if has else {}
        return modes.get(self.mode)

    @property
    def kernels(self) -> Mapping[str, Kernels]:
        """By operator, what collectives take of a device where it is not what ``slow_down`` says."""
        return kernels_of(self.profile.library.tuning, self.mode)

    @property
    def world(self) -> int:
        """Number of devices."""
        return self.nodes * self.devices

    def devices_of(self, ranks: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """The devices that ranks are on, in the same shape."""
        return self.placement.devices(ranks) if self.placement else ranks

    # It is asked for often, and changed links are made anew.
    @cached_property
    def topology(self) -> Topology:
        """Its links over ranks 0 to world − 1; in a node with fewer devices than the profile's, they join fewer."""
        links = tuple([_changed(link, self.links.get(link.name, 1.0)) for link in self.profile.links])
        inside, devices = self.profile.devices, self.devices
        # Links inside a node shrink with it; those between nodes do not.
        sizes = tuple([min(link.devices, devices) if link.devices <= inside else link.devices for link in links])
        return Topology(links, sizes, devices)


def _changed(link: Link, factor: float) -> Link:
    """A link with so many times its bandwidth, which nobody has measured."""
    if factor == 1:
        return link
    nominal = link.bandwidth
    # Cut to what a source may be long; the grade tells that nobody has measured it.
    source = f'{nominal.source}; times {factor:g}, as the schedule asks'[:1000]
    bandwidth = RateFigure(value=nominal.value * factor, source=source, grade='estimate')
    return replace(link, bandwidth=bandwidth, share=_share(link, factor))


def _share(link: Link, factor: float) -> ShareFigure:
    """What transfers reach of a changed link: of a slower one more, where something else held up the full one."""
    card = link.card_share
    if card is None or factor > 1:
        return link.share
    # What held up the full link still does: a slower one is never quicker than it.
    value = min(card.value, link.share.value / factor)
    return ShareFigure(value=value, source=card.source, grade='estimate')


Fault = tuple[str, str]
"""What is wrong, and what to write instead."""


def faults_of(made: Cluster) -> Iterator[Fault]:
    """What is wrong with a cluster, and what to write instead."""
    profile, reach = made.profile, made.topology.sizes[-1]
    if made.nodes < 1 or made.devices < 1:
        yield f'{made.nodes} nodes of {made.devices} devices', 'write 1 or more of each'
    # A first link that joins all devices knows no bound of a node.
    elif made.devices > profile.devices and profile.links[0].devices:
        yield f'devices: {made.devices} in a node of {profile.devices}', f'write {profile.devices} or fewer'
    elif reach and made.world > reach:
        last = profile.links[-1].name
        yield (
            f'profile {profile.name!r} says how {reach} devices are joined, not {made.world}',
            f'add a link behind {last!r} with devices: 0, or take fewer nodes',
        )
    for rank, speed in made.slow.items():
        if not 0 <= rank < made.world:
            yield f'slow: there is no rank {rank}', f'write a rank from 0 to {made.world - 1}'
        if not 0 < speed < math.inf:
            yield f'slow: {speed} is no speed', 'write a number more than 0, e.g. 0.9'
    if not 0 <= made.spread < 1:
        yield f'spread: {made.spread} is no share', 'write a share from 0 to 0.2, e.g. 0.015'
    has = profile.device.work_queues
    if has and made.queues > has.value:
        yield (
            f'work_queues: {profile.device.name} has {has.value:g}, not {made.queues}',
            f'write {has.value:g} or fewer, or leave it out for all',
        )
    yield from _mode_faults(made)
    yield from _link_faults(made)


def _link_faults(made: Cluster) -> Iterator[Fault]:
    names = [link.name for link in made.profile.links]
    for name, factor in made.links.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            guess = f'did you mean {close[0]}? ' if close else ''
            yield (
                f'{document.dotted(("links", name))}: there is no such link',
                f'{guess}links of {made.profile.name}: {", ".join(names)}',
            )
        elif not 0 < factor < math.inf:
            yield f'links.{name}: {factor} times its bandwidth is no bandwidth', 'write a number above 0, e.g. 0.5'


def _mode_faults(made: Cluster) -> Iterator[Fault]:
    mode, name, has = made.mode_asked, made.profile.name, made.profile.expansion
    own = [row['mode'] for row in _rows() if row['tuning'] == made.profile.library.tuning]
    modes = tuple(dict.fromkeys(filter(None, own)))
    if mode and has is None and modes:
        if mode not in modes:
            yield f'expansion_mode: {name} has no mode {mode}', f'write one of {", ".join(modes)}, or leave it out'
    elif mode and has is None:
        yield f'expansion_mode: {name} has no modes: its collectives take what its slow_down says', 'leave it out'
    elif mode and has and made.taken is None:
        yield f'expansion_mode: {name} has no mode {mode}', f'write one of {", ".join(has.modes)}'


def expansion_problems(expansion: Expansion) -> Iterator[errors.Problem]:
    """What is wrong between the fields of an expansion."""
    if expansion.default not in expansion.modes:
        modes = ', '.join(expansion.modes) or 'none is there'
        yield errors.Problem(('expansion', 'default'), f'{expansion.default} is not among modes', f'one of {modes}')
    every = expansion.vector_cores.value if expansion.vector_cores else 0.0
    for mode, use in expansion.modes.items():
        if use.bandwidth and use.bandwidth.value == 1:
            yield errors.Problem(('expansion', 'modes', mode, 'bandwidth'), 'leaves no kernel any', 'write less than 1')
        for operator, figure in use.cores.items():
            if figure.value >= every:
                what = f'{figure.value:g} of {every:g} vector cores leave no kernel any'
                where = ('expansion', 'modes', mode, 'cores', operator)
                yield errors.Problem(where, what, 'write fewer than expansion.vector_cores')
