"""Random programs for all engines, each by a seed: roles, streams, meetings and costs of every kind that engines know.

Ranks do what they do together in one global order, and needs point backwards in it, so that such a program ends. In a
fifth of the programs a role may swap two ops, leave one out, send in a ring or need what comes later: many of these
deadlock. Ops that meet in a collective are of one op class. In a quarter hosts wait for their devices, in a quarter
devices have few work queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

import numpy as np

from simpar.cost.costs import Communication, Costs, Taking
from simpar.engine.queues import WAITS
from simpar.program import Csr, OpClass, Partition, Program, Role, grid
from simpar.units import quantise

LAYOUTS = (
    (1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 3, 1), (3, 1, 1), (2, 2, 1), (1, 2, 2), (4, 1, 1), (2, 1, 3),
    (1, 6, 1), (3, 2, 1), (2, 2, 2), (1, 4, 2), (8, 1, 1), (3, 2, 2), (2, 3, 2),
)  # fmt: skip
"""Pipe × data × tensor ranks."""
STREAMS = ('compute', 'second', 'tensor', 'data', 'pipe', 'more')
ACTS = (2, 5, 8, 8, 12, 12, 18, 25)
"""How often something is added to a program; a collective adds an op to several roles."""
MANY_ACTS, MANY_EVERY = 80, 40
"""One program in so many has this number of acts."""
BESIDE = ((1.0,), (1.0,), (1.0, 0.5), (0.5,), (1.0, 0.9, 0.7, 0.5), (0.25, 0.5, 0.75), (0.3,))
UNITS = (2.0**-3, 2.0**-3, 1 / 21, 1 / 21, 1e-6, 2.0**-40)
"""Seconds that lengths are multiples of; the last is one tick of the grid."""
SLOW = (0.5, 0.5, 0.9, 0.3)
UPDATES = ('square_sum', 'finite_check', 'adam')
"""Operators that hosts look at."""


@dataclass(frozen=True)
class Case:
    """A program and what it costs."""

    program: Program
    costs: Costs

    def with_costs(self, **changes) -> Case:
        return Case(self.program, replace(self.costs, **changes))


class Sample(NamedTuple):
    """A random program with its costs, run for some steps."""

    seed: int
    case: Case
    steps: int


class Issued(NamedTuple):
    """An op of a role: its op class and the name of its stream."""

    op_class: int
    stream: str


def make_sample(seed: int) -> Sample:
    """The program of a seed."""
    rng = Random(seed)
    pipe, data, tensor = rng.choice(LAYOUTS)
    draft = Draft(rng, _partitions(rng, pipe, data, tensor), _roles(rng, pipe, data * tensor))
    risky = rng.random() < 0.2
    for _ in range(MANY_ACTS if rng.randrange(MANY_EVERY) == 0 else rng.choice(ACTS)):
        draft.act(risky)
    if risky:
        draft.disturb()
    program = draft.program(risky)
    sample = Sample(seed, Case(program, make_costs(rng, program)), rng.choice([1, 2, 2, 3]))
    # Drawn by itself, so that the programs of seeds are what they were before hosts waited.
    return _with_queues(Random(f'queues {seed}'), _with_waits(Random(f'hosts {seed}'), sample))


def _with_waits(rng: Random, sample: Sample) -> Sample:
    """The same where hosts wait for their devices: in a quarter of all."""
    if rng.random() >= 0.25:
        return sample
    program, costs, unit = sample.case.program, sample.case.costs, rng.choice(UNITS)
    phases = [rng.choice('FIWU') if rng.random() < 0.7 else 'F' for _ in range(len(program.op_classes))]
    op_classes = [
        replace(
            op,
            phase=phase,
            operator=rng.choice(UPDATES) if op.kind == 'compute' and phase == 'U' else op.operator,
            stage=rng.choice([0, 0, 1, 2]),
        )
        for op, phase in zip(program.op_classes, phases, strict=True)
    ]
    most = rng.choice([1, 2, 4])
    roles = tuple(
        replace(role, micro_batch=np.array([rng.randrange(most) for _ in range(len(role))], dtype=np.uint16))
        for role in program.roles
    )
    waits = tuple(wait for wait in WAITS if rng.random() < 0.6) or (rng.choice(WAITS),)
    most, own = rng.choice([1, 3, 20]), rng.random() < 0.7
    host = np.array([quantise(rng.randint(0, most) * unit) for _ in op_classes]) if own else costs.host
    step = quantise(rng.choice([0, 0, rng.randint(1, most)]) * unit)
    batched = rng.random() < 0.7
    case = Case(program.replace(op_classes=tuple(op_classes), roles=roles, batched=batched), costs)
    return sample._replace(case=case.with_costs(waits=waits, host=host, host_step=step))


def _with_queues(rng: Random, sample: Sample) -> Sample:
    """The same where a device has few work queues: in a quarter of all."""
    if rng.random() >= 0.25:
        return sample
    return sample._replace(case=sample.case.with_costs(work_queues=rng.choice([1, 1, 2, 3])))


def _partitions(rng: Random, pipe: int, data: int, tensor: int) -> dict[str, Partition]:
    """Those of a mesh, one over all ranks and one over ranks in any order."""
    world = pipe * data * tensor
    partitions = grid(world, {'pipe': pipe, 'data': data, 'tensor': tensor})
    if world > 1:
        partitions['world'] = Partition('world', np.arange(world, dtype=np.int32).reshape(1, -1))
        size = rng.choice([size for size in range(2, world + 1) if world % size == 0])
        mixed = np.array(rng.sample(range(world), world), dtype=np.int32)
        partitions['mixed'] = Partition('mixed', mixed.reshape(-1, size))
    return partitions


def _roles(rng: Random, pipe: int, inside: int) -> list[int]:
    """The role of each rank: by stage, one for all, one each, as in a mirror, or any; a role may have no ranks."""
    world = pipe * inside
    how = rng.choice(['stage', 'stage', 'stage', 'one', 'each', 'mirror', 'any'])
    if how == 'any':
        count = rng.randint(1, 3)
        return [rng.randrange(count) for _ in range(world)]
    if how == 'mirror':
        return [min(rank, world - 1 - rank) for rank in range(world)]
    return {'stage': [rank // inside for rank in range(world)], 'one': [0] * world, 'each': [*range(world)]}[how]


@dataclass
class Draft:
    """Roles and op classes as they grow."""

    rng: Random
    partitions: dict[str, Partition]
    role_of_rank: list[int]
    op_classes: list[OpClass] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.roles: list[list[Issued]] = [[] for _ in range(max(self.role_of_rank) + 1)]
        self.streams = self.rng.sample(STREAMS, self.rng.randint(1, len(STREAMS)))
        self.computing = self.streams[: self.rng.choice([1, 1, 2, 3])]
        self.reuse = self.rng.choice([0.2, 0.8])
        self.needy = self.rng.choice([0.0, 0.3, 1.0])

    def act(self, risky: bool) -> None:
        """Add what some ranks do together."""
        what = self.rng.choice(['compute', *['collective', 'send'] * (len(self.partitions) > 0)])
        if what == 'compute':
            role = self.roles[self.rng.randrange(len(self.roles))]
            for _ in range(self.rng.choice([1, 1, 1, 1, 2, 3, 4, 18])):
                role.append(Issued(self._op_class('compute'), self._stream(self.computing)))
        elif what == 'collective':
            self._collective(self.rng.choice([*self.partitions]))
        else:
            self._send(self.rng.choice([*self.partitions]), risky)

    def _stream(self, mostly: list[str]) -> str:
        return self.rng.choice(mostly if self.rng.random() < 0.85 else self.streams)

    def _op_class(self, kind: str, partition: str = '', peer: int = 0) -> int:
        """An op class of this kind: one that is there, or a new one."""
        wanted = (kind, partition, peer)
        there = [i for i, op in enumerate(self.op_classes) if (op.kind, op.partition, op.peer) == wanted]
        if there and self.rng.random() < self.reuse:
            return self.rng.choice(there)
        number = len(self.op_classes)
        self.op_classes.append(OpClass(f'{kind}{number}', kind, kind, 'F', partition=partition, peer=peer))
        return number

    def _collective(self, name: str) -> None:
        """All roles that stand in a group together, or in groups with one another, call it."""
        groups = [{self.role_of_rank[rank] for rank in group} for group in self.partitions[name].groups_GP.tolist()]
        found = {self.rng.choice(self.role_of_rank)}
        while any(found & group and not group <= found for group in groups):
            found.update(*(group for group in groups if found & group))
        issued = Issued(self._op_class('collective', name), self._stream(self.streams))
        for role in found:
            self.roles[role].append(issued)

    def _send(self, name: str, risky: bool) -> None:
        """Some roles send, and all roles that stand at that distance from them receive."""
        size = self.partitions[name].size
        offset = self.rng.randrange(1, size)
        peers = {
            rank: group[(position + offset) % size]
            for group in self.partitions[name].groups_GP.tolist()
            for position, rank in enumerate(group)
        }
        edges = {(self.role_of_rank[rank], self.role_of_rank[peer]) for rank, peer in peers.items()}
        sends, before = {self.rng.choice(self.role_of_rank)}, set()
        while sends != before:
            before = sends
            receives = {there for here, there in edges if here in sends}
            sends = sends | {here for here, there in edges if there in receives}
        # A ring, in which not all can send first; of several roles, some may receive first.
        if sends & receives and not risky and (len(sends) == 1 or self.rng.random() < 0.8):
            return
        stream = self._stream(self.streams)
        for role in sends | receives:
            both = [Issued(self._op_class('send', name, offset - self.rng.choice([0, size])), stream)] * (role in sends)
            both += [Issued(self._op_class('recv', name, -offset), stream)] * (role in receives)
            self.roles[role] += self.rng.sample(both, len(both))

    def disturb(self) -> None:
        """Let a role swap two ops that communicate, or leave one out."""
        role = self.rng.choice(self.roles)
        places = [i for i, op in enumerate(role) if self.op_classes[op.op_class].kind != 'compute']
        what, called = self.rng.choice(['nothing', 'swap', 'swap', 'leave out']), self._called(role)
        if what == 'swap' and len(places) > 1:
            one, two = self.rng.sample(places, 2)
            role[one], role[two] = role[two], role[one]
            # otherwise collectives of different op classes would meet
            if self._called(role) != called:
                role[one], role[two] = role[two], role[one]
        elif what == 'leave out' and places:
            place = self.rng.choice(places)
            op = self.op_classes[role[place].op_class]
            if len(set(called.get((op.partition, role[place].stream), ()))) <= 1:
                del role[place]

    def _called(self, role: list[Issued]) -> dict[tuple[str, str], list[int]]:
        """For each partition and stream the collectives that a role calls, in order."""
        called: dict[tuple[str, str], list[int]] = {}
        for number, stream in role:
            if self.op_classes[number].kind == 'collective':
                called.setdefault((self.op_classes[number].partition, stream), []).append(number)
        return called

    def program(self, risky: bool) -> Program:
        """The program, with needs."""
        # An engine may take it that something is done.
        if not any(self.roles[role] for role in self.role_of_rank):
            self.roles[self.role_of_rank[0]].append(Issued(self._op_class('compute'), self.streams[0]))
        circle = risky and self.rng.random() < 0.2
        return Program(
            roles=tuple(self._role(f'role{number}', role, circle) for number, role in enumerate(self.roles)),
            role_of_rank=np.array(self.role_of_rank, dtype=np.int32),
            partitions=self.partitions,
            op_classes=tuple(self.op_classes),
            tensors=(),
        )

    def _role(self, name: str, issued: list[Issued], circle: bool) -> Role:
        """A role: its streams in any order, some of them perhaps empty; needs and carried needs among any ops."""
        rng, count = self.rng, len(issued)
        streams = rng.sample(self.streams, len(self.streams))
        needs = [
            sorted(rng.sample(range(i), min(i, rng.choice([1, 1, 2, 3])))) if rng.random() < self.needy else []
            for i in range(count)
        ]
        if circle and count > 1:
            one, two = sorted(rng.sample(range(count), 2))
            needs[one].append(two)
        carry = {(rng.randrange(count), rng.randrange(count)) for _ in range(rng.choice([0, 0, 1, 3]) * (count > 0))}
        slots = [(op, streams.index(stream)) for op, stream in issued]
        return role_of(name, slots, needs, sorted(carry), tuple(streams))


def make_costs(rng: Random, program: Program) -> Costs:
    """Random costs: of a program either none, some or most lengths are zero, and many or few are equal."""
    unit, most, zero = rng.choice(UNITS), rng.choice([1, 3, 20]), rng.choice([0.0, 0.1, 0.5])

    def seconds(least: float = 0.0) -> float:
        return 0.0 if rng.random() < max(zero, least) else quantise(rng.randint(1, most) * unit)

    names = tuple(f'link{number}' for number in range(rng.choice([0, 0, 1, 1, 2, 4])))
    latent, of_each, pattern = rng.choice([0.0, 0.5, 1.0]), rng.choice([0.0, 0.2]), rng.choice(['any', 'alike'])
    communication = {}
    for index, op in enumerate(program.op_classes):
        if op.kind in {'collective', 'send'}:
            groups, size = program.partitions[op.partition].groups_GP.shape
            entries = groups * (size if op.kind == 'send' and rng.random() < 0.5 else 1)
            lengths = [(seconds(latent), seconds()) for _ in range(entries if rng.random() < of_each else 1)]
            loads = _loads(rng, len(names), entries, pattern)
            communication[index] = tuple(
                Communication(*lengths[entry % len(lengths)], loads[entry]) for entry in range(entries)
            )
    count = len(program.op_classes)
    beside, lags = rng.choice(BESIDE), rng.choice([0.0, 0.0, 0.0, 0.3, 1.0, 4.0])
    return Costs(
        compute=np.array([seconds() if op.kind == 'compute' else 0.0 for op in program.op_classes]),
        host=np.array([quantise(lags * seconds()) for _ in range(count)]),
        beside_communication=np.array([rng.choice(beside) for _ in range(count)]),
        beside_compute=np.array([rng.choice(beside) for _ in range(count)]),
        communication=communication,
        links=names,
        rank_speed=np.array(_speeds(rng, program.world)),
        waiting_slows=rng.random() < 0.5,
        kinds=_kinds(Random(f'kinds {rng.getstate()[1][:2]}'), program, beside),
    )


def _kinds(rng: Random, program: Program, beside: Sequence[float]) -> tuple[Taking, ...]:
    """None to three kinds of communication beside that of most, by partition, as both ends are of one."""
    kind = {name: rng.randint(0, 3) for name in program.partitions} if rng.random() < 0.5 else {}
    return tuple(
        Taking(
            np.array([kind.get(op.partition, 0) == number for op in program.op_classes]),
            np.array([rng.choice(beside) for _ in program.op_classes]),
            rng.random() < 0.5,
        )
        for number in sorted({*kind.values()} - {0})
    )


def _loads(rng: Random, links: int, entries: int, pattern: str) -> list[tuple[tuple[int, float], ...]]:
    """What each group or pair asks of links: each its own, or all alike as clusters have it."""

    def demand() -> float:
        return rng.choice([1.0, 0.5, 0.25, rng.randint(1, 1024) / 1024])

    if pattern == 'any':
        over = [sorted(rng.sample(range(links), rng.randint(0, links))) for _ in range(entries)]
        return [tuple((link, demand()) for link in each) for each in over]
    share, shape = demand(), rng.choice(['one', 'all', 'each', 'half'])
    every = {
        'one': [[0]] * entries,
        'all': [[*range(links)]] * entries,
        'each': [[entry % max(links, 1)] for entry in range(entries)],
        'half': [[entry % 2] for entry in range(entries)],
    }[shape]
    return [tuple((link, share) for link in each if link < links) for each in every]


def _speeds(rng: Random, world: int) -> list[float]:
    """Speeds of ranks: all nominal; one slow; some equally slow; or each its own."""
    speeds = [1.0] * world
    how, slow = rng.choice(['none', 'none', 'none', 'one', 'equal', 'own']), rng.choice(SLOW)
    if how == 'own':
        return [rng.choice([1.0, *SLOW]) for _ in range(world)]
    for rank in rng.sample(range(world), {'none': 0, 'one': 1, 'equal': rng.randint(1, world)}[how]):
        speeds[rank] = slow
    return speeds


def _lists(pairs, count) -> Csr:
    return Csr.of(*np.array(pairs, dtype=np.int32).reshape(-1, 2).T, count)


def role_of(name, slots, needs, carry, streams, **changes) -> Role:
    """A role from lists: slots as (op class, stream), the needs of each, and carry needs."""
    zeros = np.zeros(len(slots), dtype=np.uint16)
    return Role(
        name=name,
        streams=streams,
        op_class=np.array([op for op, _ in slots], dtype=np.uint32),
        micro_batch=zeros,
        copy=zeros,
        stream=np.array([stream for _, stream in slots], dtype=np.uint16),
        need=_lists([(i, need) for i, own in enumerate(needs) for need in own], len(slots)),
        carry=_lists(carry, len(slots)),
        **changes,
    )
