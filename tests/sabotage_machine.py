"""A machine that a sabotage has been done to: a simulation in which every op of every step has a cost of its own.

All steps of a run become one long step, in which each op class stands for one op of one step on one rank. So noise is
drawn for each, and a sabotage changes whichever it likes; order, needs, shared links and slow-down stay the engine's.
"""

from dataclasses import dataclass, replace

import numpy as np

from simpar import Transformer, Workload, cluster, load_profile, price
from simpar.cost.costs import Communication, Costs
from simpar.engine import simulate
from simpar.lower import lower
from simpar.predict import followed
from simpar.program import Csr, Program
from simpar.trace import RankTimes, Trace


@dataclass
class Machine:
    """Seconds of every op of a run, to be changed; lists by rank of shape [steps, slots].

    Arguments: ``transfer`` and ``alpha`` count where the rank sends, or is the first of its group.
    """

    program: Program
    costs: Costs
    steps: int
    compute: list
    host: list
    alpha: list
    transfer: list
    step: float
    late: tuple | None = None

    @staticmethod
    def of(program, costs, steps, step):
        """What a cluster makes of a program, without noise; ``step``, seconds of a step there."""
        program = program.unfold()
        machine = Machine(program, costs, steps, [], [], [], [], step)
        for rank, role in enumerate(program.roles):
            entries = [own_entry(program, costs, rank, int(op)) for op in role.op_class]
            machine.compute.append(np.tile(costs.compute[role.op_class] / costs.rank_speed[rank], (steps, 1)))
            machine.host.append(np.tile(costs.host[role.op_class], (steps, 1)))
            machine.alpha.append(np.tile([one.alpha if one else 0.0 for one in entries], (steps, 1)))
            machine.transfer.append(np.tile([one.transfer if one else 0.0 for one in entries], (steps, 1)))
        return machine

    def run(self):
        """The trace that a measurement would give."""
        n_of = [len(role) for role in self.program.roles]
        roles, classes = [], []
        for role, n in zip(self.program.roles, n_of, strict=True):
            number = np.arange(len(classes), len(classes) + self.steps * n, dtype=np.uint32)
            classes += np.tile(role.op_class, self.steps).tolist()
            needs = [role.need.pairs() + step * n for step in range(self.steps)]
            needs += [role.carry.pairs() + np.array([step * n, (step - 1) * n]) for step in range(1, self.steps)]
            pairs = np.unique(np.concatenate(needs), axis=0)
            roles.append(
                replace(
                    role,
                    op_class=number,
                    need=Csr.of(pairs[:, 0], pairs[:, 1], self.steps * n),
                    carry=Csr.of(pairs[:0, 0], pairs[:0, 1], self.steps * n),
                    **{name: np.tile(getattr(role, name), self.steps) for name in ('micro_batch', 'copy', 'stream')},
                )
            )
        program = self.program.replace(
            roles=tuple(roles), op_classes=tuple(self.program.op_classes[index] for index in classes)
        )
        return self._cut(simulate(program, self._costs(classes), steps=1, unfold=True), n_of)

    def _costs(self, classes):
        alpha, transfer = (np.concatenate([one.ravel() for one in each]) for each in (self.alpha, self.transfer))
        communication = {}
        for row, old in enumerate(classes):
            entries = self.costs.communication.get(old)
            if entries:
                made = Communication(float(alpha[row]), float(transfer[row]), entries[0].links)
                # Only one group or pair has this op, so its links are put in by the position that it has.
                communication[row] = tuple(replace(made, links=one.links) for one in entries)
        return replace(
            self.costs.of_classes(np.array(classes)),
            compute=np.concatenate([one.ravel() for one in self.compute]),
            host=np.concatenate([one.ravel() for one in self.host]),
            communication=communication,
            rank_speed=np.ones(self.program.world),
        )

    def _cut(self, trace, n_of):
        """The long step as the steps that it is made of."""
        lanes = []
        for rank, n in enumerate(n_of):
            times = trace.times_of(rank)
            lanes.append(
                RankTimes(rank, *(t.reshape(self.steps, n) for t in (times.arrive_KS, times.start_KS, times.end_KS)))
            )
        return tuple(lanes)


def own_entry(program, costs, rank, op_class):
    """The cost of an op class in the group, or for the pair, that a rank is the sender or a member of."""
    entries = costs.communication.get(op_class)
    if not entries:
        return None
    partition = program.partitions[program.op_classes[op_class].partition]
    group, position = partition.place(rank)
    each = len(entries) // len(partition.groups_GP)
    return entries[group if each == 1 else group * each + position]


def noisy(machine, rng):
    """Noise like that of real runs: of each span, each rank in each step, each rank; and a few spans that are hit."""
    for rank in range(machine.program.world):
        shape = machine.compute[rank].shape
        always, step = np.exp(rng.normal(0, 0.005)), np.exp(rng.normal(0, 0.01, (shape[0], 1)))
        for times in (machine.compute, machine.transfer, machine.alpha):
            hit = 1 + (rng.random(shape) < 0.003) * rng.exponential(1.0, shape)
            times[rank] = times[rank] * np.exp(rng.normal(0, 0.03, shape)) * always * step * hit
        machine.host[rank] = machine.host[rank] * np.exp(rng.normal(0, 0.1, shape))


def measured(machine, original):
    """The trace of a machine, of the program that was measured."""
    return Trace(
        program=original,
        origin='measured',
        representatives=machine.run(),
        representative_of_rank=np.arange(original.world, dtype=np.int32),
    )


class Setup:
    """A schedule of a transformer on H100 and what it takes there, on which something is made slow.

    Links are slow, so that communication is a third to a half of what computing is, and sabotage of it can be felt.
    """

    def __init__(self, world, plan, layers=4, batch=32):
        model = Transformer(layers=layers, hidden=2048, heads=16, vocab=8192, sequence=1024)
        hardware = cluster(load_profile('h100-sxm-8'), devices=world, links={'nvlink': 0.15})
        self.world, self.plan = world, plan
        self.program = lower(Workload(model=model, batch=batch), plan, world)
        self.costs = price(self.program, hardware)
        self.predicted = followed(self.program, self.costs, 3)
        self.step = self.predicted.step
