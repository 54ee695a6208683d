"""Random programs and costs for the simulator: pipe × data × tensor ranks, a role for each pipe position.

Every rank's issue order is a projection of one global order and needs point backwards in it, so no program deadlocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from simpar.cost.costs import Communication, Costs
from simpar.program import Csr, OpClass, Partition, Program, Role, grid
from simpar.units import quantise

STREAMS = ('compute', 'tensor', 'data', 'pipe', 'other')


@dataclass(frozen=True)
class Case:
    """A program and what it costs."""

    program: Program
    costs: Costs

    def with_costs(self, **changes) -> Case:
        return Case(self.program, replace(self.costs, **changes))


@dataclass
class Draft:
    """Roles and op classes as they grow."""

    rng: Random
    partitions: dict[str, Partition]
    roles: list[list[tuple[int, int]]]
    op_classes: list[OpClass] = field(default_factory=list)

    def op_class(self, kind, stage, partition='', peer=0):
        """An op class of this kind: a new one, or one that is there."""
        wanted = (kind, f's{stage}', partition, peer)
        there = [i for i, op in enumerate(self.op_classes) if (op.kind, op.operator, op.partition, op.peer) == wanted]
        if len(there) > 1:
            return self.rng.choice(there)
        name = f'{kind}{len(self.op_classes)}'
        self.op_classes.append(OpClass(name, kind, f's{stage}', 'F', partition=partition, peer=peer))
        return len(self.op_classes) - 1

    def add(self, stage, op_class, stream):
        self.roles[stage].append((op_class, STREAMS.index(stream)))

    def grow(self):
        """Add one op of all that take part in it."""
        stage, stream = self.rng.randrange(len(self.roles)), self.rng.choice(STREAMS[1:])
        what = self.rng.choice(['compute', 'compute', *self.partitions])
        if what == 'compute':
            self.add(stage, self.op_class('compute', stage), self.rng.choice(['compute'] * 4 + ['other']))
        elif what != 'pipe':
            self.add(stage, self.op_class('collective', stage, what), self.rng.choice([stream, stream, 'compute']))
        elif self.rng.random() < 0.3:
            every = self.op_class('collective', 'all', 'pipe')
            for each in range(len(self.roles)):
                self.add(each, every, stream)
        else:
            peer = (stage + self.rng.choice([1, -1])) % len(self.roles)
            self.add(stage, self.op_class('send', stage, 'pipe', peer - stage), stream)
            self.add(peer, self.op_class('recv', peer, 'pipe', stage - peer), stream)


def make_role(rng: Random, name: str, slots: list[tuple[int, int]], **changes) -> Role:
    """A role with a few random needs and carry needs."""
    count = len(slots)
    needs = [sorted(rng.sample(range(i), min(i, rng.choice([0, 0, 1, 1, 2])))) for i in range(count)]
    carry = sorted({(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randrange(3))})
    return role_of(name, slots, needs, carry, STREAMS, **changes)


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


def make_case(seed: int, pipe: int, data: int, tensor: int, ops: int, links: str = 'alike', grain: float = 3.0) -> Case:
    """A random program with its costs.

    Arguments: ``ops``, about how many; ``links``: ``none``; ``alike``, patterns as clusters have them; ``any``, each
    group has its own; ``grain``, durations are multiples of 1 / (7 · grain) s, rounded to the grid of times.
    """
    rng = Random(seed)
    world = pipe * data * tensor
    partitions = grid(world, {'pipe': pipe, 'data': data, 'tensor': tensor})
    if data * tensor > 2:
        stages = [rng.sample(range(s * data * tensor, (s + 1) * data * tensor), data * tensor) for s in range(pipe)]
        partitions['mixed'] = Partition('mixed', np.array(stages, dtype=np.int32).reshape(-1, max(data, tensor)))
    draft = Draft(rng, partitions, [[] for _ in range(pipe)])
    for stage in range(pipe):
        draft.add(stage, draft.op_class('compute', stage), 'compute')
    for _ in range(ops):
        draft.grow()
    program = Program(
        roles=tuple(make_role(rng, f's{stage}', slots) for stage, slots in enumerate(draft.roles)),
        role_of_rank=np.repeat(np.arange(pipe, dtype=np.int32), data * tensor),
        partitions=partitions,
        op_classes=tuple(draft.op_classes),
        tensors=(),
    )
    return Case(program, make_costs(rng, program, links, grain))


def make_costs(rng: Random, program: Program, links: str, grain: float) -> Costs:
    """Random costs: some ops take no time, some ranks may be slow, and groups share links."""

    def seconds(most: int) -> float:
        return quantise(rng.randrange(most) / 7 / grain)

    names = () if links == 'none' else tuple(f'link{i}' for i in range(rng.randint(1, 4)))
    communication = {}
    for index, op in enumerate(program.op_classes):
        if op.kind in ('collective', 'send'):
            groups = len(program.partitions[op.partition].groups_GP)
            isolated = [(seconds(4), seconds(20)) for _ in range(groups if rng.random() < 0.1 else 1)]
            communication[index] = make_communication(rng, groups, len(names), links, isolated)
    count = len(program.op_classes)
    speed = np.ones(program.world)
    if rng.random() < 0.3:
        speed[rng.randrange(program.world)] = rng.choice([0.5, 0.9])
    factor = [1.0, 1.0, 0.9, 0.5, 0.7]
    host = rng.choice([0, 0, 1])
    return Costs(
        compute=np.array([seconds(20) if op.kind == 'compute' else 0.0 for op in program.op_classes]),
        host=np.array([host * seconds(8) for _ in range(count)]),
        beside_communication=np.array([rng.choice(factor) for _ in range(count)]),
        beside_compute=np.array([rng.choice(factor) for _ in range(count)]),
        communication=communication,
        links=names,
        rank_speed=speed,
        waiting_slows=rng.random() < 0.5,
    )


def make_communication(rng, groups, links, kind, isolated):
    """The cost of an op class in each group of its partition; ``isolated``: (alpha, transfer) of groups, in turn."""

    def demands(over):
        return tuple((link, rng.randint(1, 1024) / 1024) for link in sorted(over))

    shape, share = rng.choice(['one', 'all', 'each', 'half']), rng.randint(1, 1024) / 1024
    costs = []
    for group in range(groups):
        if kind == 'any':
            load = demands(rng.sample(range(links), rng.randint(0, links)))
        else:
            over = {'one': [0], 'all': range(links), 'each': [group % max(links, 1)], 'half': [group % 2]}[shape]
            load = tuple((link, share) for link in over if link < links)
        costs.append(Communication(*isolated[group % len(isolated)], load))
    return tuple(costs)
