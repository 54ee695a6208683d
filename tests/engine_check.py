"""One random program on every engine, folded and unfolded, and in exact fractions; and what happened in it.

Arrays of arrivals, starts and ends are equal to the bit, or the same deadlock is drawn. Where every moment and speed of
the exact run fits into doubles, its times are the engines'; elsewhere they are within ``BOUND``. The ranks that
fold are those of a refinement by lists, also with the costs in blocks, as thousands of ranks have them.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from engine_oracle import Oracle
from engine_programs import Sample

from simpar import Trace, simulate
from simpar.cost.costs import Block, Communication, Costs, Entries, entry_of
from simpar.engine.fold import fold
from simpar.errors import Deadlock
from simpar.program import Program
from simpar.units import GRID, format_time, parse

# Colour refinement by lists, exactly: which ranks and links behave alike, where the engine's own goes by hashes.


class Exchange(NamedTuple):
    """What some ranks do together: a group's collective, or a sender and its receiver; pairs (link, demand)."""

    kind: Hashable
    ranks: tuple[int, ...]
    sends: bool
    links: tuple[tuple[int, int], ...]

    def signature(self, ranks: list[int], links: list[int]) -> Hashable:
        """What tells it from others: a collective does not depend on who of its ranks is who, but a send does."""
        among = [ranks[rank] for rank in self.ranks]
        over = sorted((links[link], demand) for link, demand in self.links)
        return self.kind, tuple(among if self.sends else sorted(among)), tuple(over)


def numbered(signatures: Iterable[Hashable]) -> list[int]:
    """Equal signatures, equal numbers, by first occurrence."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(signature, len(number)) for signature in signatures]


def exchanges(program: Program, costs: Costs) -> list[Exchange]:
    """Those of all ranks, each once for op classes whose costs tell the same."""
    found: dict[Exchange, None] = {}
    for rank in range(program.world):
        role = program.role(rank)
        for index in sorted(set(role.op_class.tolist())):
            op = program.op_classes[index]
            if op.kind not in ('collective', 'send'):
                continue
            partition, entries = program.partitions[op.partition], costs.communication[index]
            group, place = partition.place(rank)
            seconds = numbered((one.alpha, one.transfer) for one in entries)
            demands: dict[float, int] = {}
            links = [tuple((link, demands.setdefault(d, len(demands))) for link, d in one.links) for one in entries]
            which, ranks = group, tuple(partition.groups_GP[group].tolist())
            if op.kind == 'send':
                which = entry_of(len(entries), len(partition.groups_GP), group, place)
                ranks = rank, ranks[(place + op.peer) % len(ranks)]
            told = tuple(zip(seconds, links, strict=True))
            kind = op.kind, op.partition, op.peer, told, seconds[which]
            found[Exchange(kind, ranks, op.kind == 'send', links[which])] = None
    return list(found)


def refined(program: Program, costs: Costs) -> list[int]:
    """The colour of each rank: colours split until equal ones have neighbours of equal colours."""
    every = exchanges(program, costs)
    ranks = numbered(zip(program.role_of_rank.tolist(), costs.rank_speed.tolist(), strict=True))
    links = [0] * len(costs.links)
    while True:
        colours = numbered(one.signature(ranks, links) for one in every)
        of_rank: list[list[tuple[int, int]]] = [[] for _ in ranks]
        of_link: list[list[tuple[int, int]]] = [[] for _ in links]
        for one, colour in zip(every, colours, strict=True):
            for place, rank in enumerate(one.ranks):
                of_rank[rank].append((colour, place if one.sends else 0))
            for link, demand in one.links:
                of_link[link].append((colour, demand))
        finer = [
            numbered((old, tuple(sorted(own))) for old, own in zip(before, edges, strict=True))
            for before, edges in ((ranks, of_rank), (links, of_link))
        ]
        if finer == [ranks, links]:
            return ranks
        ranks, links = finer


ENGINES = ('simpy', 'python', 'compiled')
ARRAYS = ('arrive_KS', 'start_KS', 'end_KS')
BOUND = 64
"""Ticks of 2⁻⁴⁰ s, about 6e-11 s."""
SMALL = 100
"""Ops of all ranks and steps up to which the exact run is made."""


class Difference(AssertionError):
    """Two machines do not agree on a program."""


def check(sample: Sample, *, exact: bool = True) -> tuple[Counter[str], float]:
    """What happened in a program, and how many ticks off the exact run's times it is at most.

    Arguments: ``exact``, whether to run it in fractions too, if it is small.
    Raises ``Difference`` where machines do not agree.
    """
    try:
        return _checked(sample, exact)
    except Difference as difference:
        raise Difference(f'seed {sample.seed}, {sample.steps} steps: {difference}') from None


def _checked(sample: Sample, exact: bool) -> tuple[Counter[str], float]:
    found = {(engine, unfold): _run(sample, engine, unfold) for unfold in (True, None) for engine in ENGINES}
    expected, folded = found['simpy', True], found['simpy', None]
    for (engine, unfold), other in found.items():
        _same(other, folded if unfold is None else expected, f'{engine}, {"un" * bool(unfold)}folded')
    _same_unfolded(folded, expected, sample)
    happened = Counter(programs=1, slots=sample.steps * sum(_slots(sample)))
    representatives = fold(sample.case.program, sample.case.costs)
    in_blocks_too = by_blocks(sample, representatives.of_rank, folded)
    if representatives.of_rank != refined(sample.case.program, sample.case.costs):
        raise Difference(f'by lists others fold than by hashes: {representatives.of_rank}')
    off = 0.0
    if exact and sample.steps * sum(_slots(sample)) <= SMALL:
        in_fractions, off = _by_fractions(sample, expected)
        happened += in_fractions
    happened['folded'] += len(representatives.ranks) < sample.case.program.world
    happened['folded in blocks'] += in_blocks_too and len(representatives.ranks) < sample.case.program.world
    if isinstance(expected, str):
        freed = sample.case.costs.work_queues and isinstance(_run(sample, 'compiled', None, work_queues=0), Trace)
        return happened + Counter({'deadlock': 1, 'deadlock by work queues': int(bool(freed))}), off
    return happened + Counter(features(sample, folded)), off


def by_blocks(sample: Sample, of_rank: list[int], folded: Trace | str) -> bool:
    """Whether there are messages, whose costs in blocks fold the same ranks and give the same times."""
    costs = sample.case.costs
    if not costs.communication:
        return False
    communication = {index: in_blocks(entries) for index, entries in costs.communication.items()}
    again = sample._replace(case=sample.case.with_costs(communication=communication))
    found = fold(again.case.program, again.case.costs).of_rank
    if found != of_rank:
        raise Difference(f'in blocks: {found}\none by one: {of_rank}')
    _same(_run(again, 'compiled', None), folded, 'in blocks')
    return True


def in_blocks(entries: Sequence[Communication]) -> Entries:
    """The same costs, groups of equal seconds and demands together."""
    rows: dict[tuple[float, float, tuple[float, ...]], list[int]] = {}
    for row, one in enumerate(entries):
        rows.setdefault((one.alpha, one.transfer, tuple(demand for _, demand in one.links)), []).append(row)
    return Entries(
        tuple(
            Block(
                rows=np.array(own, dtype=np.int64),
                alpha=alpha,
                transfer=transfer,
                links=np.array([[link for link, _ in entries[row].links] for row in own], dtype=np.int64).reshape(
                    len(own), -1
                ),
                parts=demands,
                widths=(1,) * len(demands),
            )
            for (alpha, transfer, demands), own in rows.items()
        )
    )


def _slots(sample: Sample) -> list[int]:
    """How many slots each rank has."""
    return [len(sample.case.program.role(rank)) for rank in range(sample.case.program.world)]


def _run(sample: Sample, engine: str, unfold: bool | None, **changes: object) -> Trace | str:
    """The trace, or the deadlock's drawing."""
    case = sample.case.with_costs(**changes)
    try:
        return simulate(case.program, case.costs, steps=sample.steps, unfold=unfold, engine=engine)
    except Deadlock as deadlock:
        return str(deadlock)


def _same(one: Trace | str, other: Trace | str, what: str) -> None:
    """Of the same representatives: the same drawing, or the same bytes."""
    if isinstance(one, str) or isinstance(other, str):
        if one != other:
            raise Difference(f'{what}: {one}\nis not the reference: {other}')
    elif not np.array_equal(one.representative_of_rank, other.representative_of_rank):
        raise Difference(f'{what}: {one.representative_of_rank} is not {other.representative_of_rank}')
    else:
        for mine, theirs in zip(one.representatives, other.representatives, strict=True):
            _same_rank(mine, theirs, f'{what}, rank {mine.rank}')


def _same_rank(mine, theirs, what: str) -> None:
    for name in ARRAYS:
        left, right = getattr(mine, name), getattr(theirs, name)
        if left.tobytes() != right.tobytes() or left.shape != right.shape:
            where = np.argwhere(left != right)[:1]
            raise Difference(f'{what}: {name} differs, first at step and slot {where}:\n{left}\n{right}')


def _same_unfolded(folded: Trace | str, unfolded: Trace | str, sample: Sample) -> None:
    """Every rank has the spans of its representative; of deadlocks, the same heads are stuck at the same time."""
    if isinstance(folded, str) and isinstance(unfolded, str):
        if stuck(folded) is not None and stuck(unfolded) is not None and stuck(folded) != stuck(unfolded):
            raise Difference(f'folded: {folded}\nunfolded: {unfolded}')
    elif isinstance(folded, str) or isinstance(unfolded, str):
        raise Difference(f'folded: {folded}\nunfolded: {unfolded}')
    else:
        for rank in range(sample.case.program.world):
            _same_rank(folded.times_of(rank), unfolded.times_of(rank), f'rank {rank}, folded and unfolded')


def stuck(drawing: str) -> tuple[str, frozenset[tuple[int, str, int, str]]] | None:
    """The time of a deadlock, and (rank, stream, step, op class) of what is stuck; None where not all is drawn."""
    title, *lines = drawing.splitlines()
    if '…' in drawing:
        return None
    heads = set()
    for line in lines:
        ranks, stream, step, name = re.match(r' +ranks? ([\d, -]+?)  +(\S+) +step (\d+): (\S+)', line).groups()
        for span in ranks.split(', '):
            first, _, last = span.partition('-')
            heads |= {(rank, stream, int(step), name) for rank in range(int(first), int(last or first) + 1)}
    return re.match('deadlock at (.+): nothing', title)[1], frozenset(heads)


def _by_fractions(sample: Sample, expected: Trace | str) -> tuple[Counter[str], float]:
    """Compare with the exact run."""
    oracle = Oracle(sample.case.program, sample.case.costs, sample.steps)
    times = oracle.run()
    if isinstance(expected, str) or oracle.stuck():
        _same_deadlock(sample, oracle, expected)
        return Counter({'in fractions': 1, 'deadlock in fractions': 1}), 0.0
    off = GRID * max(
        abs(found - exact)
        for (rank, step, slot), of_op in times.items()
        for found, exact in zip(_times(expected, rank, step, slot), of_op, strict=True)
    )
    if off > (0 if oracle.exact else BOUND):
        raise Difference(f'off by {off} ticks from fractions, exact: {oracle.exact}')
    return Counter({'in fractions': 1, 'equal to fractions': int(off == 0), 'exact': int(oracle.exact)}), off


def _same_deadlock(sample: Sample, oracle: Oracle, expected: Trace | str) -> None:
    """The same heads are stuck, at the same time as far as the drawing's four digits tell."""
    program, now = sample.case.program, float(oracle.now)
    heads = set()
    for rank, step, slot in oracle.stuck():
        role = program.role(rank)
        heads.add((rank, role.streams[role.stream[slot]], step + 1, program.op(role, slot).name))
    drawn = stuck(expected) if isinstance(expected, str) else ('0 s', frozenset())
    # too many to draw
    if drawn is None:
        return
    if drawn[1] != heads or abs(parse(drawn[0], 'time') - now) > BOUND / GRID + 5e-4 * now:
        raise Difference(f'in fractions, at {format_time(now)}: {sorted(heads)}\n{expected}')


def _times(trace: Trace, rank: int, step: int, slot: int) -> list[float]:
    return [getattr(trace.times_of(rank), name)[step, slot] for name in ARRAYS]


def features(sample: Sample, trace: Trace) -> dict[str, int]:
    """What happened in a program that ended, each 0 or 1.

    What slows is counted where some op ends at another time without it, not where it is only asked for.
    """
    case, program = sample.case, sample.case.program
    costs, ones = case.costs, np.ones(len(program.op_classes))
    without = {
        'contention': (costs.links, {'communication': _unlinked(costs.communication)}),
        'slow-down of compute': ((costs.beside_communication < 1).any(), {'beside_communication': ones}),
        'slow-down of communication': ((costs.beside_compute < 1).any(), {'beside_compute': ones}),
        'waiting that slows': (costs.waiting_slows, {'waiting_slows': False}),
        'kinds of communication': (costs.kinds, {'kinds': ()}),
        'stragglers': ((costs.rank_speed < 1).any(), {'rank_speed': np.ones(program.world)}),
        'late hosts': (costs.host.any(), {'host': 0 * costs.host}),
        'hosts that wait': (costs.waits, {'waits': ()}),
        'work queues': (costs.work_queues, {'work_queues': 0}),
    }
    happened = {
        name: int(bool(asked) and _changes(sample, trace, changes)) for name, (asked, changes) in without.items()
    }
    kinds = {program.op(role, slot).kind for role in program.roles for slot in range(len(role))}
    roles = [program.role(rank) for rank in range(program.world)]
    streams = [
        {int(role.stream[slot]) for slot in range(len(role)) if program.op(role, slot).kind == 'compute'}
        for role in roles
    ]
    return happened | {
        'ties': int(_ties(program, trace)),
        'zero lengths': int(any((one.start_KS == one.end_KS).any() for one in trace.representatives)),
        'rendezvous': int('send' in kinds),
        'collectives': int('collective' in kinds),
        'unequal stragglers': happened['stragglers'] * int(len(set(costs.rank_speed.tolist())) > 2),
        'several compute streams': int(max(map(len, streams)) > 1),
        'carried needs': int(sample.steps > 1 and any(len(role.carry.item) for role in roles)),
        'empty streams': int(any(len(set(role.stream.tolist())) < len(role.streams) for role in roles)),
        'ranks without ops': int(not all(map(len, roles))),
        'flows over several links': int(
            happened['contention'] and any(len(one.links) > 1 for each in costs.communication.values() for one in each)
        ),
        'nothing slowed': int(not any(happened[name] for name in [*happened][:4])),
        'one rank': int(program.world == 1),
    }


def _unlinked(communication):
    return {index: tuple(replace(one, links=()) for one in entries) for index, entries in communication.items()}


def _changes(sample: Sample, trace: Trace, changes: dict[str, object]) -> bool:
    """Whether some op ends at another time with other costs."""
    # Folded as it is: with other costs other ranks may be alike.
    other = _run(sample, 'compiled', True, **changes)
    return any(
        not np.array_equal(trace.times_of(rank).end_KS, other.times_of(rank).end_KS)
        for rank in range(sample.case.program.world)
    )


def _ties(program, trace: Trace) -> bool:
    """Whether ops of two op classes, that both last, end at one instant."""
    ends = [
        {
            (int(role.op_class[slot]), one.end_KS[step, slot])
            for step, slot in np.argwhere(one.end_KS > one.start_KS).tolist()
            if program.op(role, slot).kind != 'recv'
        }
        for one in trace.representatives
        for role in [program.role(one.rank)]
    ]
    found = {end for of_rank in ends for end in of_rank}
    return any(one != other for (one, a), (other, b) in combinations(found, 2) if a == b)
