"""Who makes the others wait, and why: what kernels, gaps and messages of a rank take beyond those of its peers."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.interval_sets import union
from simpar.traces.table import COMMUNICATION, COMPUTE, COPY, NANOSECOND, Ints, Kernels, RankTrace, figures, whole

LEAST: Final = 0.02
"""Of a step: what costs less is named of nobody."""
CLEAR: Final = 2.0
"""What is named costs so many times as much on its ranks as on any other."""
MOST_OF_IT: Final = 0.6
"""A part that makes up so much of a cause stands for it."""
SOME_OF_IT: Final = 0.1
"""What a step needs, of the step that has most, to have some of a cause, too."""
FEW: Final = 1 / 3
"""Of the steps: gaps in no more of them are pauses."""
TOGETHER: Final = 0.8
"""Correlation of forward and backward of a micro-batch from which on its samples are what varies."""
UNEVEN: Final = 0.04
"""Standard deviation over mean of the forwards of a rank, of samples that are uneven."""
CERTAIN: Final = 3.0
"""Standard errors of a mean over steps, from which on it is none of chance."""
Cause = Literal['computes', 'kernel', 'copies', 'host', 'input', 'entry', 'pause', 'link', 'samples']
Floats = NDArray[np.float64]
Work = tuple[str, str]
"""What a kernel does: its name without numbers, and its shapes or its grid."""
_NUMBERS = re.compile(r'\d+')
_GAPS: Final[tuple[Cause, ...]] = ('input', 'entry', 'host')


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What makes ranks wait.

    Arguments:
        ranks: whose it is; all recorded ones of uneven samples.
        cause: ``computes``, all kernels take longer; ``kernel``, those of one name; ``copies``; ``host``, the device is
            idle between kernels; ``input``, before a step's first kernel; ``entry``, before collectives; ``pause``, at
            once in few steps; ``link``, messages between these ranks; ``samples``, micro-batches differ.
        seconds: of a step, more than those of peers. step: seconds of a step.
        times: how many times as long as peers'. what: the kernels or messages that are meant.
        within: share of the steps that have some of it.
    """

    ranks: tuple[int, ...]
    cause: Cause
    seconds: float
    step: float
    times: float = 0.0
    what: str = ''
    within: float = 1.0


@dataclass(frozen=True, eq=False)
class _Facts:
    """Of a rank, seconds by step, shape [steps].

    Arguments: ``kernels`` by what they do, and ``calls`` of each; ``gaps`` by cause; ``messages`` by
    group and kind: when they run, and their bytes; ``items``: seconds of forward and of backward of micro-batches.
    """

    step: float
    kernels: Mapping[Work, Floats]
    calls: Mapping[Work, int]
    copies: Floats
    gaps: Mapping[Cause, Floats]
    messages: Mapping[tuple[str, str], tuple[Floats, Floats]]
    items: tuple[Floats, Floats]


def culprit_of(traces: Sequence[RankTrace]) -> Culprit | None:
    """What makes others wait most; None where nothing clearly does, or a rank alone was recorded.

    Each rank is compared with those that run as many kernels of the same names, and each group's messages with those of
    other groups. Does not model: ranks that were not recorded, and a cause that lies on more than half of the ranks.
    """
    if len(traces) < 2:
        return None
    common = set.intersection(*(set(trace.steps) for trace in traces))
    facts = {trace.rank: one for trace in traces if (one := _facts(trace, common)) is not None}
    if len(facts) < 2 or len({len(one.copies) for one in facts.values()}) > 1:
        return None
    culprits = [*_by_rank(facts), *_links(facts), *_samples(facts)]
    # Only causes of which the ranks are clear, the costliest first.
    return max(culprits, key=lambda one: one.seconds, default=None)


@lru_cache(maxsize=4096)
def _family(name: str) -> str:
    """A kernel's name without numbers: layers and micro-batches of one kernel are alike."""
    return _NUMBERS.sub('#', name)


@lru_cache(maxsize=4096)
def _size(shapes: str) -> str:
    """Shapes or grid of a kernel; of simpar's own recordings the name of an op, which is alike in all layers."""
    return _NUMBERS.sub('#', shapes, count=1) if shapes[:1].isalpha() else shapes


def _facts(trace: RankTrace, common: Collection[str]) -> _Facts | None:
    """Of the steps that all ranks have."""
    kernels = whole(trace)
    if kernels is not None and trace.steps:
        kernels = kernels.of(np.isin(kernels.step, [at for at, name in enumerate(trace.steps) if name in common]))
    if kernels is None or not len(kernels):
        return None
    _, step = np.unique(kernels.step, return_inverse=True)
    count = int(step.max()) + 1
    seconds = ((kernels.end - kernels.begin) * NANOSECOND).astype(np.float64)

    computes = np.flatnonzero(kernels.kind == COMPUTE)
    codes: dict[Work, int] = {}
    pairs = zip(kernels.name[computes].tolist(), kernels.shapes[computes].tolist(), strict=True)
    alike = [(_family(name), _size(shapes)) for name, shapes in pairs]
    code = np.array([codes.setdefault(work, len(codes)) for work in alike], dtype=np.int64)
    table = np.zeros((len(codes), count))
    np.add.at(table, (code, step[computes]), seconds[computes])
    calls = np.bincount(code, minlength=len(codes)).tolist()
    return _Facts(
        step=figures(kernels).span / count,
        kernels=dict(zip(codes, table, strict=True)),
        calls=dict(zip(codes, calls, strict=True)),
        copies=np.bincount(step, np.where(kernels.kind == COPY, seconds, 0.0), count).astype(np.float64),
        gaps=_gaps(kernels, step, count),
        messages=_messages(kernels),
        items=_items(kernels.of(computes), seconds[computes]),
    )


def _gaps(kernels: Kernels, step: NDArray[np.int64], count: int) -> dict[Cause, Floats]:
    """Idle time of a device by what ends it."""
    gaps: dict[Cause, Floats] = {cause: np.zeros(count) for cause in _GAPS}
    reach = np.maximum.accumulate(kernels.end)
    behind = np.flatnonzero(kernels.begin[1:] > reach[:-1]) + 1
    for at in behind.tolist():
        first = step[at] != step[at - 1]
        talks = kernels.kind[at] == COMMUNICATION
        # Of a message from one rank to another, what is behind its launch is a wait for the peer.
        until = min(kernels.launch[at], kernels.begin[at]) if talks and _is_pair(kernels, at) else kernels.begin[at]
        cause: Cause = 'input' if first else 'entry' if talks else 'host'
        gaps[cause][step[at]] += max(0, int(until - reach[at - 1])) * NANOSECOND
    return gaps


def _is_pair(kernels: Kernels, at: int) -> bool:
    """Whether a message goes from one rank to another."""
    kind = str(kernels.type[at])
    return kind in {'send', 'recv'} or (not kind and 'sendrecv' in str(kernels.name[at]).lower())


def _messages(kernels: Kernels) -> dict[tuple[str, str], tuple[Floats, Floats]]:
    """By group and kind, seconds of begins and ends of messages in order, shape [messages, 2], and their bytes."""
    by_group: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at in np.flatnonzero((kernels.kind == COMMUNICATION) & (kernels.group != '')).tolist():
        kind = str(kernels.type[at]) or _family(kernels.name[at])
        by_group[str(kernels.group[at]), kind.replace('recv', 'send')].append(at)
    times = (np.column_stack((kernels.begin, kernels.end)) - kernels.begin[0]) * NANOSECOND
    return {key: (times[rows], kernels.bytes[rows].astype(np.float64)) for key, rows in by_group.items()}


def _items(kernels: Kernels, seconds: Floats) -> tuple[Floats, Floats]:
    """Forward and backward of each micro-batch in order; empty where they are not told apart."""
    sums: dict[tuple[bool, str, int], float] = defaultdict(float)
    turn: dict[str, int] = defaultdict(int)
    for kind, took in zip(kernels.type.tolist(), seconds.tolist(), strict=True):
        phase, item = kind[:1], kind[1:]
        if phase in {'F', 'B', 'I', 'W'}:
            # A forward behind its backward is the next one's. Steps of a rank that runs ahead tell nothing.
            turn[item] += phase == 'F' and (False, item, turn[item]) in sums
            sums[phase == 'F', item, turn[item]] += took
    both = [(item, number) for forward, item, number in sums if forward and (False, item, number) in sums]
    forward, backward = (np.array([sums[phase, item, number] for item, number in both]) for phase in (True, False))
    return forward, backward


def _others(rows: Floats) -> Floats:
    """Of each row the median of all other rows, by column."""
    order, count = np.sort(rows, axis=0), len(rows)
    place = np.argsort(np.argsort(rows, axis=0, kind='stable'), axis=0)
    # Without a row, all behind it come one place earlier.
    low, high = (
        np.take_along_axis(order, middle + (place <= middle), axis=0) for middle in ((count - 2) // 2, (count - 1) // 2)
    )
    return np.asarray((low + high) / 2)


def _beyond(facts: Mapping[int, _Facts]) -> dict[int, tuple[dict[Work, Floats], Floats]]:
    """By rank: by kernel, what it takes beyond the others for as many calls, by step; and what they take, of all
    kernels."""
    having: dict[Work, list[int]] = defaultdict(list)
    for rank, one in facts.items():
        for work in one.kernels:
            having[work].append(rank)
    usual: dict[int, dict[Work, Floats]] = {rank: {} for rank in facts}
    for work, ranks in having.items():
        if len(ranks) > 1:
            each = _others(np.array([facts[rank].kernels[work] / facts[rank].calls[work] for rank in ranks]))
            for rank, seconds in zip(ranks, each, strict=True):
                usual[rank][work] = seconds * facts[rank].calls[work]
    return {
        rank: (
            {work: seconds - usual[rank][work] for work, seconds in one.kernels.items() if work in usual[rank]},
            sum(usual[rank].values(), 0 * one.copies),
        )
        for rank, one in facts.items()
    }


def _by_rank(facts: Mapping[int, _Facts]) -> Iterator[Culprit]:
    """What lies on ranks: their kernels, copies and gaps."""
    step, count = median(one.step for one in facts.values()), len(next(iter(facts.values())).copies)
    beyond = _beyond(facts)
    total = {rank: sum(by_cause.values(), 0 * facts[rank].copies) for rank, (by_cause, _) in beyond.items()}
    for ranks, mean, within in _clear(total, step):
        first = total[ranks[0]]
        if mean <= CERTAIN * float(np.std(first)) / count**0.5:
            # It varies so much from step to step that the mean tells nothing.
            continue
        parts, usual = beyond[ranks[0]]
        work, part = max(((work, float(one.mean())) for work, one in parts.items()), key=lambda one: one[1])
        theirs = float(facts[ranks[0]].kernels[work].mean()) - part
        if len(parts) > 1 and part >= MOST_OF_IT * mean and theirs < MOST_OF_IT * usual.mean():
            times = 1 + part / theirs if theirs else 0.0
            yield Culprit(
                ranks=ranks, cause='kernel', seconds=mean, step=step, times=times, what=work[0], within=within
            )
        else:
            times = 1 + mean / float(usual.mean()) if usual.any() else 0.0
            yield Culprit(ranks=ranks, cause='computes', seconds=mean, step=step, times=times, within=within)
    peers = _peers(facts)
    copies = _compared({rank: one.copies for rank, one in facts.items()}, peers)
    yield from (
        Culprit(ranks=ranks, cause='copies', seconds=mean, step=step, within=within)
        for ranks, mean, within in _clear(copies, step)
    )
    idle = _compared({rank: sum(one.gaps.values(), 0 * one.copies) for rank, one in facts.items()}, peers)
    for ranks, mean, within in _clear(idle, step):
        before: list[tuple[float, Cause]] = []
        for gap in _GAPS:
            of_gap = _compared({rank: one.gaps[gap] for rank, one in facts.items()}, peers)
            before.append((float(of_gap[ranks[0]].mean()), gap))
        part, most = max(before)
        # What every step has is no pause, however few they are.
        few = within < 1 and within <= max(FEW, 2 / count)
        cause: Cause = 'pause' if few else most if part >= MOST_OF_IT * mean else 'host'
        yield Culprit(ranks=ranks, cause=cause, seconds=mean, step=step, within=within)


def _peers(facts: Mapping[int, _Facts]) -> list[list[int]]:
    """Ranks whose idle time is comparable: in pipelines those at one place of several; one alone, with that of all.

    Stages wait at unlike times, and their hosts catch up meanwhile. Ranks that send and run the same are a ring. Where
    a stage is one rank, all others are its peers.
    """
    line = {rank: {rank} for rank in facts}
    for group in {group for one in facts.values() for group, kind in one.messages if kind == 'send'}:
        joined = set[int]().union(*(line[rank] for rank, one in facts.items() if (group, 'send') in one.messages))
        line |= dict.fromkeys(joined, joined)
    names = {rank: {name for name, _ in one.calls} for rank, one in facts.items()}
    place = {
        rank: (len(mine), sorted(mine).index(rank) if any(names[one] != names[rank] for one in mine) else 0)
        for rank, mine in line.items()
    }
    peers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in facts:
        peers[place[rank]].append(rank)
    return [*peers.values()]


def _compared(by_rank: Mapping[int, Floats], peers: Sequence[Sequence[int]]) -> dict[int, Floats]:
    """What each rank has beyond the median of its peers, by step."""
    more: dict[int, Floats] = {}
    for group in peers:
        among = group if len(group) > 1 else [*by_rank]
        rows = np.array([by_rank[rank] for rank in among])
        each = dict(zip(among, rows - _others(rows), strict=True))
        more |= {rank: each[rank] for rank in group}
    return {rank: more[rank] for rank in by_rank}


def _clear(beyond: Mapping[int, Floats], step: float) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """The ranks that have clearly more than all others: how much a step, and in which share of the steps."""
    mean = {rank: float(one.mean()) for rank, one in beyond.items()}
    top = max(mean.values())
    ranks = tuple(sorted((rank for rank, one in mean.items() if one * CLEAR > top), key=lambda rank: -mean[rank]))
    if top < LEAST * step or 2 * len(ranks) > len(mean):
        return
    first = beyond[ranks[0]]
    yield ranks, top, float((first > SOME_OF_IT * first.max()).mean())


def _links(facts: Mapping[int, _Facts]) -> Iterator[Culprit]:
    """Groups whose messages take longer than those of other groups of as many ranks."""
    step, count = median(one.step for one in facts.values()), len(next(iter(facts.values())).copies)
    rates: dict[tuple[int, str], dict[str, tuple[float, float, int]]] = defaultdict(dict)
    members: dict[str, set[int]] = {}
    for group, kind in dict.fromkeys(key for one in facts.values() for key in one.messages):
        each = {rank: one.messages[group, kind] for rank, one in facts.items() if (group, kind) in one.messages}
        if len(each) > 1 and len({len(times) for times, _ in each.values()}) == 1:
            # The last to arrive waits for nobody.
            own = np.min([times[:, 1] - times[:, 0] for times, _ in each.values()], axis=0)
            alone = np.all([_alone(facts[rank], (group, kind), own) for rank in each], axis=0)
            weight = np.min([size for _, size in each.values()], axis=0)
            if alone.sum() * 2 > len(own):
                total = float(weight[alone].sum()) or float(alone.sum())
                rates[len(each), kind][group] = (float(own[alone].sum()), total, int(alone.sum()))
                members[group] = set(each)
    # By number of ranks, what messages take beyond those of others, and what they should take.
    more: dict[int, dict[str, Floats]] = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))
    for (size, _), groups in rates.items():
        for group, (own, weight, often) in groups.items():
            alike = [o / w for other, (o, w, n) in groups.items() if other != group and _near(w / n, weight / often)]
            if alike:
                usual = float(np.median(alike)) * weight
                more[size][group] += ((own - usual) / count, usual / count)
    for groups_of in more.values():
        top = max(groups_of, key=lambda group: groups_of[group][0])
        most, expected = groups_of[top].tolist()
        slow = [group for group, (mine, _) in groups_of.items() if mine * CLEAR > most]
        if most >= LEAST * step and 2 * len(slow) <= len(groups_of):
            # Where several pairs of a rank are slow, it is the rank's own link.
            shared = set.intersection(*(members[group] for group in slow))
            ranks = shared if len(slow) > 1 and shared else set().union(*(members[group] for group in slow))
            times = 1 + most / expected if expected else 0.0
            yield Culprit(ranks=tuple(sorted(ranks)), cause='link', seconds=most, step=step, times=times)


def _alone(one: _Facts, key: tuple[str, str], own: Floats) -> NDArray[np.bool_]:
    """Which messages go while no other of the rank does: two that share a link tell nothing of it."""
    others = [times for other, (times, _) in one.messages.items() if other != key]
    if not others:
        return np.ones(len(own), dtype=np.bool_)
    busy, until = union(np.concatenate(others)), one.messages[key][0][:, 1]
    at = np.searchsorted(busy[:, 0], until) - 1
    beside = np.minimum(busy[np.maximum(at, 0), 1], until) - np.maximum(busy[np.maximum(at, 0), 0], until - own)
    return np.asarray((at < 0) | (beside <= SOME_OF_IT * own))


def _near(one: float, other: float) -> bool:
    """Whether messages are so alike in size that a rate of one tells that of the other."""
    return max(one, other) <= 4 * min(one, other)


def _samples(facts: Mapping[int, _Facts]) -> Iterator[Culprit]:
    """Forward and backward of micro-batches that vary together on most ranks."""
    step = median(one.step for one in facts.values())
    together = [one for one in facts.values() if vary_together(*one.items)]
    if 2 * len(together) <= len(facts):
        return
    totals = np.array([sum(map(np.sum, one.items)) / len(one.copies) for one in together])
    spread = float(np.mean([np.std(one.items[0] + one.items[1]) * np.sqrt(len(one.items[0]) / len(one.copies))
                            for one in together]))  # fmt: skip
    seconds = max(spread, float(totals.max() - totals.mean()))
    if seconds >= LEAST * step:
        yield Culprit(ranks=tuple(facts), cause='samples', seconds=seconds, step=step)


def vary_together(forward: Floats, backward: Floats) -> bool:
    """Whether samples differ: forward and backward of a micro-batch are longer together (Lin et al. 2025)."""
    if len(forward) < 4 or not forward.any() or np.std(forward) < UNEVEN * np.mean(forward) or not np.std(backward):
        return False
    return bool(np.corrcoef(forward, backward)[0, 1] >= TOGETHER)


# How long ranks waited in collectives of several recordings, joined, and who came last to them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Of a rank, seconds of all whole steps.

    Arguments:
        caused: how much earlier its collectives would begin, had it come when the one before it came.
        waited: for the last rank of each collective.
        own: of its collectives, from the last rank's arrival to the end.
    """

    caused: float = 0.0
    waited: float = 0.0
    own: float = 0.0


class Meeting(NamedTuple):
    """The collectives that ranks of a group have in common, in order, on the clock of the first of them.

    Arguments: ``rows`` of each rank's kernels; ``begin``, ``end``, shape [ranks, collectives], nanoseconds; ``shift``,
    how much later each rank's own clock is, shape [ranks].
    """

    ranks: tuple[int, ...]
    rows: tuple[NDArray[np.int64], ...]
    begin: Ints
    end: Ints
    shift: Ints


def meetings_of(tables: Mapping[int, Kernels]) -> Iterator[Meeting]:
    """The n-th collective of a group on one rank meets the n-th on the others.

    Clocks are set by the ends of what ranks have in common, for a collective ends at once on all. Groups whose
    recordings hold different numbers of collectives, or other ones, are left out.
    """
    groups: dict[str, dict[int, NDArray[np.int64]]] = defaultdict(dict)
    for rank, kernels in tables.items():
        talks = np.flatnonzero(kernels.kind == COMMUNICATION)
        for group in dict.fromkeys(kernels.group[talks].tolist()):
            groups[str(group)][rank] = talks[kernels.group[talks] == group]
    for rows in groups.values():
        names = (tuple(map(_family, tables[rank].name[mine].tolist())) for rank, mine in rows.items())
        if len(rows) > 1 and len(set(names)) == 1:
            end = np.array([tables[rank].end[mine] for rank, mine in rows.items()])
            begin = np.array([tables[rank].begin[mine] for rank, mine in rows.items()])
            shift = np.median(end - end[0], axis=1).astype(np.int64)
            both = (begin - shift[:, None], end - shift[:, None])
            yield Meeting(tuple(rows), tuple(rows.values()), *both, shift)


def waits_of(traces: Sequence[RankTrace]) -> dict[int, Waits]:
    """The waits of each rank in collectives of whole steps; of a rank alone there are none."""
    if len(traces) < 2:
        return {}
    total: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    tables = {trace.rank: kernels for trace in traces if (kernels := whole(trace)) is not None}
    for meeting in meetings_of(tables):
        ordered = np.sort(meeting.begin, axis=0)
        last = ordered[-1]
        for rank, begin, end in zip(meeting.ranks, meeting.begin, meeting.end, strict=True):
            caused = np.where(begin == last, last - ordered[-2], 0).sum()
            own = np.maximum(end - np.maximum(last, begin), 0).sum()
            for place, value in enumerate((caused, (last - begin).sum(), own)):
                total[rank][place] += float(value) * NANOSECOND
    return {rank: Waits(caused=one[0], waited=one[1], own=one[2]) for rank, one in total.items()}
