"""Sites of a step, where time is spent, and the places that a cause may be sought in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simpar.program import NONE, Kind, OpClass, Program, Role
from simpar.trace import RankTimes, Times, Trace, stream_order

# Sites: every op of every rank, in one numbering, so that times of a prediction and of a measurement are arrays.

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Sites:
    """The N sites of a program: rank by rank, and on a rank in issue order.

    Arguments:
        first: shape [world + 1], the first site of each rank, and at last N.
        rank, slot, op: shape [N]; ``op`` indexes the program's op classes.
        share: shape [N], 1 over how many sites tell the same: all members of a collective see it last equally long.
    """

    program: Program
    first: Ints
    rank: Ints
    slot: Ints
    op: Ints
    share: Times

    def __len__(self) -> int:
        return len(self.rank)

    @cached_property
    def computes(self) -> Mask:
        """Shape [N], whether a site computes."""
        kinds = np.array([op.kind == 'compute' for op in self.program.op_classes], dtype=bool)
        return np.asarray(kinds[self.op])

    @cached_property
    def words(self) -> Mapping[str, NDArray[np.str_]]:
        """What each op class has of the words of places, by their fields."""
        return {name: np.array([_word(op, name) for op in self.program.op_classes]) for name in _WORDS}

    @cached_property
    def stream(self) -> Ints:
        """Shape [N], the number of a site's stream in ``streams``."""
        number = {name: index for index, name in enumerate(self.streams)}
        of_role = [np.array([number[name] for name in role.streams]) for role in self.program.roles]
        roles = [int(role) for role in self.program.role_of_rank]
        return np.concatenate([of_role[role][self.program.roles[role].stream] for role in roles])

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams, in the order of first use."""
        return tuple(dict.fromkeys(name for role in self.program.roles for name in role.streams))

    @cached_property
    def channel(self) -> Ints:
        """Shape [N], the number of what a site communicates on, in ``channels``; -1 where it computes."""
        return self._channels[0]

    @cached_property
    def channels(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that meet on each channel: a group, or a sender and its receiver."""
        return self._channels[1]

    @cached_property
    def _channels(self) -> tuple[Ints, tuple[tuple[int, ...], ...]]:
        numbers: dict[tuple[object, ...], int] = {}
        met: list[tuple[int, ...]] = []
        by_rank = []
        for rank in range(self.program.world):
            turns = self.program.turns[int(self.program.role_of_rank[rank])]
            # Behind the numbers of all kinds stands that of what computes, which index -1 reads.
            mine = [_channel(self.program, kind, rank) for kind in turns.kinds]
            for name, ranks in mine:
                if numbers.setdefault(name, len(met)) == len(met):
                    met.append(ranks)
            by_rank.append(np.array([*(numbers[name] for name, _ in mine), NONE])[turns.kind])
        return np.concatenate(by_rank), tuple(met)

    def on(self, ranks: tuple[int, ...]) -> Mask:
        """Shape [N], whether a site is on one of these ranks; on any where none is named."""
        return np.isin(self.rank, ranks) if ranks else np.ones(len(self), dtype=bool)


def sites_of(program: Program) -> Sites:
    """The sites of a program."""
    roles = [program.role(rank) for rank in range(program.world)]
    first = np.cumsum([0, *map(len, roles)])
    op = np.concatenate([role.op_class for role in roles]).astype(np.int64)
    slot = np.arange(first[-1]) - np.repeat(first[:-1], np.diff(first))
    return Sites(program, first, np.repeat(np.arange(len(roles)), np.diff(first)), slot, op, _shares(program)[op])


def _channel(program: Program, kind: Kind, rank: int) -> tuple[tuple[object, ...], tuple[int, ...]]:
    """A name that is equal for all who meet there, and these ranks."""
    members = program.partitions[kind.partition].members(rank)
    if kind.kind == 'collective':
        return (kind.partition, kind.stream, members), members
    peer = members[(members.index(rank) + kind.peer) % len(members)]
    ranks = (rank, peer) if kind.kind == 'send' else (peer, rank)
    return (kind.partition, kind.stream, *ranks), ranks


def _shares(program: Program) -> Times:
    """For each op class, 1 over how many sites tell of one such op."""
    meet = {'compute': 1, 'send': 2, 'recv': 2}
    sizes = [meet.get(op.kind) or program.partitions[op.partition].size for op in program.op_classes]
    return 1.0 / np.array(sizes, dtype=np.float64)


# Own times: what of a step is an op's own doing, and not waiting for another op or rank.
#
# An op is ready when what it needs and the op before it on its stream have ended. Two times are its own: the delay from
# then until it arrives (its host issues it late, or something unknown to the Program held it back), and its run, from
# the last participant's arrival to its end. Every other difference between two traces follows from these.


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """Seconds of each site; shape [steps, N] or [N]."""

    delay: Times
    run: Times


def own_times(trace: Trace, sites: Sites) -> Own:
    """The own times of all steps, shape [steps, N].

    Arguments: ``sites`` of the program whose needs count; the trace has the same slots.
    """
    program = sites.program
    times: dict[tuple[int, int], tuple[Times, Times]] = {}
    each = []
    for rank in range(program.world):
        role = int(program.role_of_rank[rank])
        key = int(trace.representative_of_rank[rank]), role
        if key not in times:
            times[key] = _of_rank(trace.times_of(rank), program.roles[role])
        each.append(times[key])
    return Own(*(np.concatenate(parts, axis=1) for parts in zip(*each, strict=True)))


def steady(trace: Trace, sites: Sites) -> Own:
    """The own times of the last step that has a follower, shape [N]."""
    own = own_times(trace, sites)
    return Own(own.delay[-2], own.run[-2])


def _of_rank(times: RankTimes, role: Role) -> tuple[Times, Times]:
    delay = np.maximum(times.arrive_KS - _ready(times.end_KS, role), 0.0)
    return delay, times.end_KS - times.start_KS


def _ready(end: Times, role: Role) -> Times:
    """When the needs of each slot and the slot before it on its stream have ended."""
    # A row for each slot: ``maximum.at`` is quick along the first axis.
    ends, ready = end.T, np.zeros_like(end.T)
    before, tail = stream_order(role.stream)
    follows = before >= 0
    ready[follows] = ends[before[follows]]
    np.maximum.at(ready, role.need.row, ends[role.need.item])
    # The first slot of a stream follows the stream's last slot of the step before.
    heads = np.flatnonzero(~follows)
    ready[heads, 1:] = np.maximum(ready[heads, 1:], ends[tail[heads], :-1])
    carried = np.zeros_like(ready[:, 1:])
    np.maximum.at(carried, role.carry.row, ends[role.carry.item][:, :-1])
    ready[:, 1:] = np.maximum(ready[:, 1:], carried)
    return ready.T


# Levels: what an op takes in an undisturbed step, and by how much steps vary; medians that weigh by time.


QUIET: Final = 0.2
"""Quantile over the steps that counts as undisturbed: what else a machine does only ever lengthens an op."""
EVEN: Final = 0.03
"""Share up to which variation counts as an op's own. Ops that vary by more are disturbed, and most of their mean is
not their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The steps of a measurement taken together; shape [N], seconds.

    Arguments:
        delay, run: of an undisturbed step, as the mean would be with the variation that most sites have.
        varies: what the mean of the steps is beyond that, delay and run together; of compute alone.
        noise: by which share the mean of most compute sites exceeds their quiet time.
        disturbed: by which time the mean run of a site exceeds its level.
        quickest: the same with the shortest run of all steps, site by site.
    """

    delay: Times
    run: Times
    varies: Times
    noise: float
    disturbed: Times
    quickest: Own


def level(own: Own, sites: Sites) -> Level:
    """The level of some steps; arguments: ``own`` of shape [steps, N]."""
    quiet = Own(*(np.quantile(times, QUIET, axis=0) for times in (own.delay, own.run)))
    mean = Own(*(times.mean(axis=0) for times in (own.delay, own.run)))
    rises = np.divide(mean.run, quiet.run, out=np.ones_like(quiet.run), where=quiet.run > 0) - 1
    noise = [weighted_median(rises[mask], quiet.run[mask]) for mask in (sites.computes, ~sites.computes)]
    run = quiet.run * (1 + np.minimum(np.where(sites.computes, *noise), EVEN))
    late = np.maximum(mean.delay - quiet.delay, 0.0)
    disturbed = np.maximum(mean.run - run, 0.0)
    varies = np.where(sites.computes, disturbed + late, 0.0)
    return Level(quiet.delay, run, varies, noise[0], disturbed, Own(quiet.delay, own.run.min(axis=0)))


def weighted_median(values: Times, weights: Times) -> float:
    """The value at which half of the weight is reached; 0 where there is no weight."""
    total = float(weights.sum())
    if total <= 0:
        return 0.0
    order = np.argsort(values, kind='stable')
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), total / 2)])


def joined(own: Level | Own) -> Times:
    """Runs and delays as one array, shape [2 N]."""
    return np.concatenate((own.run, own.delay))


def scale(seen: Level | Own, forecast: Own, changed: Own, share: Times) -> float:
    """How much of a change there is in what was seen: 0, as told; 1, as changed; the median, weighed by time."""
    moved, gap = joined(changed) - joined(forecast), joined(seen) - joined(forecast)
    ratio = np.divide(gap, moved, out=np.zeros_like(gap), where=moved != 0)
    return weighted_median(ratio, np.abs(moved) * np.concatenate((share, share)))


def misfit(seen: Level | Own, forecast: Own, sites: Sites) -> float:
    """Seconds by which own times differ, what several sites tell counted once."""
    return float(((np.abs(seen.run - forecast.run) + np.abs(seen.delay - forecast.delay)) * sites.share).sum())


# Places: where something may be wrong, as ranks and a selection of ops, and which sites that covers.

FIRST: Final = 8
"""Sets of ranks whose ops are looked at one by one."""
_WORDS: Final = ('partition', 'operator', 'phase', 'layer', 'op')


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Ranks, and of their ops those that have all of the words given; an empty field leaves a choice open.

    Arguments:
        ranks: empty for all.
        partition, operator, phase: as of ``OpClass``.
        layer, op: the name of one op class, and what stands before its first dot.
        streams: those that a lost overlap is between.
    """

    ranks: tuple[int, ...] = ()
    partition: str = ''
    operator: str = ''
    phase: str = ''
    layer: str = ''
    op: str = ''
    streams: tuple[str, ...] = ()

    def sites(self, sites: Sites, among: Mask) -> Mask:
        """Shape [N], which of the sites in ``among`` it covers."""
        return among & self.among(sites)

    def among(self, sites: Sites | Cells) -> Mask:
        """Shape as of the sites or cells, which of them it covers."""
        return self.on(sites) & self.named(sites)

    def named(self, sites: Sites | Cells) -> Mask:
        """Shape as of the sites or cells, which of them have all of its words."""
        fit = np.ones(len(sites.words['op']), dtype=bool)
        for name, words in sites.words.items():
            if word := getattr(self, name):
                fit &= words == word
        return np.asarray(fit[sites.op])

    def on(self, sites: Sites | Cells) -> Mask:
        """Which of them are on its ranks. What communicates belongs to one rank if that takes part, to several if none
        else does."""
        if not self.ranks:
            return np.ones(len(sites.rank), dtype=bool)
        own, some = set(self.ranks), len(self.ranks) == 1
        meets = [bool(own & {*ranks}) if some else own >= {*ranks} for ranks in sites.channels]
        # Index -1, of what computes, reads the entry behind those of all channels.
        communicating = np.array([*meets, False], dtype=bool)[sites.channel]
        return np.asarray(np.where(sites.computes, np.isin(sites.rank, self.ranks), communicating), dtype=bool)


def _word(op: OpClass, name: str) -> str:
    """What an op class has in a field; a receive is part of what sends."""
    if name == 'operator' and op.kind == 'recv':
        return 'send'
    if name == 'layer':
        return op.name.partition('.')[0]
    return op.name if name == 'op' else str(getattr(op, name))


def groups(sites: Sites) -> list[tuple[int, ...]]:
    """The ranks that communicate among themselves, where these are not all; each set once."""
    rank_sets = [tuple(sorted(ranks)) for ranks in sites.channels if 1 < len(ranks) < sites.program.world]
    return list(dict.fromkeys(rank_sets))


_TOLD_BY: Final = {
    True: (('operator',), ('phase',), ('operator', 'phase'), ('layer',), ('op',)),
    # Partitions first: where a partition does only one kind of op, its name is what a reader knows.
    False: (('partition',), ('operator',), ('partition', 'operator'), ('partition', 'operator', 'phase'), ('op',)),
}
"""By which words ops that compute, or that communicate, are told apart, one after the other."""


def crossed(sites: Sites, computes: bool, ranks: list[tuple[int, ...]]) -> Iterator[Place]:
    """Places of what computes, or of what communicates: sets of ranks by kinds of ops."""
    ops = [op for op in sites.program.op_classes if (op.kind == 'compute') == computes]
    kinds = [Place()]
    for names in _TOLD_BY[computes]:
        # A send and its receive are two ops.
        mine = (op for op in ops if names != ('op',) or op.kind in ('compute', 'collective'))
        pairs = dict.fromkeys(tuple((name, _word(op, name)) for name in names) for op in mine)
        kinds += [Place(**dict[str, Any](each)) for each in pairs]
    for number, some in enumerate(ranks):
        for kind in kinds:
            # There are many single ops; on a rank that is not among the first they are left out.
            if (kind.op or kind.layer) and number > FIRST:
                continue
            yield replace(kind, ranks=some)


# Cells: sites of one rank, op class and channel taken together, so that many places are weighed quickly.


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a program; shape [M] each.

    Arguments:
        words, rank, op, channel, computes, channels: as of ``Sites``.
        seen, told: seconds of all runs of a cell; what several sites tell counts once.
        count: how many ops that are.
    """

    words: Mapping[str, NDArray[np.str_]]
    rank: Ints
    op: Ints
    channel: Ints
    computes: Mask
    channels: tuple[tuple[int, ...], ...]
    seen: Times
    told: Times
    count: Times


def cells_of(seen: Level, forecast: Own, sites: Sites, among: Mask) -> Cells:
    """The cells of the sites in ``among``."""
    rank, op, channel = (each[among] for each in (sites.rank, sites.op, sites.channel))
    key = (rank * len(sites.program.op_classes) + op) * (len(sites.channels) + 1) + channel + 1
    _, first, cell = np.unique(key, return_index=True, return_inverse=True)
    share = sites.share[among]
    return Cells(
        words=sites.words,
        rank=rank[first],
        op=op[first],
        channel=channel[first],
        computes=sites.computes[among][first],
        channels=sites.channels,
        seen=np.bincount(cell, seen.run[among] * share).astype(np.float64),
        told=np.bincount(cell, forecast.run[among] * share).astype(np.float64),
        count=np.bincount(cell, share).astype(np.float64),
    )
