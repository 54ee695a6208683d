"""A recorded job as a Program: an op class for each recorded op, a rank for each recorded worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simpar.cost.costs import Communication, Costs
from simpar.program import OpClass, Partition, Program, ProgramBuilder, grid
from simpar.program.op import OpKind, Phase
from simpar.recording.job import Array, Ints, RecordedJob, RecordedOp
from simpar.recording.order import issue_order
from simpar.units import GRID

NONE: Final = -1
TOLD: Final = -2


@dataclass(frozen=True, eq=False)
class Replayed:
    """A recorded job as what an engine takes.

    Arguments: ``op_class``, shape [ops], the class of each recorded op; ``entry``, shape [ops], which of a collective's
    entries is its group's, ``NONE`` of compute, ``TOLD`` of a send, whose receiver tells; ``entries``,
    how many entries each class has.
    """

    job: RecordedJob
    program: Program
    op_class: Ints
    entry: Ints
    entries: dict[int, int]

    def costs(self, seconds_N: Array) -> Costs:
        """Costs under which each recorded op lasts so long.

        Arguments: ``seconds_N``, shape [ops]; of what several take part in, the longest counts, of a message the
            receiver's, since that is what work waits for.
        """
        classes = len(self.program.op_classes)
        on_grid = np.rint(seconds_N * GRID) / GRID
        alone = self.entry == NONE
        compute = np.zeros(classes)
        compute[self.op_class[alone]] = on_grid[alone]
        return Costs(
            compute=compute,
            host=np.zeros(classes),
            beside_communication=np.ones(classes),
            beside_compute=np.ones(classes),
            communication=self._communication(on_grid),
            links=(),
            rank_speed=np.ones(self.program.world),
        )

    def _communication(self, seconds_N: Array) -> dict[int, list[Communication]]:
        longest = {index: [0.0] * entries for index, entries in self.entries.items()}
        for at in np.flatnonzero(self.entry >= 0).tolist():
            index, entry = int(self.op_class[at]), int(self.entry[at])
            longest[index][entry] = max(longest[index][entry], float(seconds_N[at]))
        return {index: [Communication(each, 0.0) for each in found] for index, found in longest.items()}


def to_program(job: RecordedJob) -> Replayed:
    """The Program of a recorded job; a worker of data rank d and stage s is rank d · stages + s."""
    world = job.data * job.stages
    partitions = grid(world, {'data': job.data, 'pipeline': job.stages})
    if world > 1:
        partitions['world'] = Partition('world', np.arange(world, dtype=np.int32)[None])
    build = ProgramBuilder(world, partitions.values())
    classes = {op: _op_class(op, job) for op in job.ops}
    for made in {made.name: made for made in classes.values()}.values():
        build.add_op_class(made)
    orders = [issue_order(job, stage) for stage in range(job.stages)]
    for data in range(job.data):
        for stage, (order, before) in enumerate(orders):
            place = {op: at for at, op in enumerate(order)}
            slots = [
                (classes[op._replace(data=data)].name, _stream(op), 0, 0, tuple(place[one] for one in before[op]))
                for op in order
            ]
            streams = tuple(dict.fromkeys(slot[1] for slot in slots))
            build.add_role(f'data{data}.stage{stage}', [data * job.stages + stage], slots, streams)
    op_class = np.array([build.index[_priced(op, classes[op], job)] for op in job.ops])
    entry = np.array([_entry(op, classes[op]) for op in job.ops])
    program = build.build()
    groups = {
        index: len(program.partitions[made.partition].groups_GP)
        for index, made in enumerate(program.op_classes)
        if made.kind in {'collective', 'send'}
    }
    return Replayed(job, program, op_class, entry, groups)


def _op_class(op: RecordedOp, job: RecordedJob) -> OpClass:
    """The op class of a recorded op: its worker's own, or one for all that take part in it."""
    phase: Phase = 'F' if op.kind.startswith('forward') else 'I' if op.kind.startswith('backward') else 'U'
    takes = op.of.takes
    named = f'{op.kind}.{op.number}'
    if takes in {'data', 'world'} and (job.data if takes == 'data' else job.data * job.stages) > 1:
        return OpClass(named, 'collective', 'all_reduce', phase, partition=takes, reduce='sum')
    if takes in {'send', 'recv'}:
        peer = 1 if op.kind in {'forward-send', 'backward-recv'} else -1
        kind: OpKind = 'send' if takes == 'send' else 'recv'
        return OpClass(f'{named}.stage{op.stage}', kind, kind, phase, partition='pipeline', peer=peer, stage=op.stage)
    if takes == 'ends' and job.stages > 1:
        # Stages between have no part in it, so it is a message from the last one to the first.
        kind, peer = ('recv', -1) if op.stage == 0 else ('send', 1)
        return OpClass(f'{named}.stage{op.stage}', kind, kind, phase, partition='pipeline', peer=peer, stage=op.stage)
    return OpClass(op.text, 'compute', op.kind, phase, stage=op.stage)


def _priced(op: RecordedOp, made: OpClass, job: RecordedJob) -> str:
    """The name of the class that has the price of an op: a message's is its send's."""
    if made.kind != 'recv':
        return made.name
    if op.of.takes == 'ends':
        return _op_class(op._replace(stage=job.stages - 1), job).name
    sender = op._replace(kind=op.kind.replace('recv', 'send'), stage=op.stage + made.peer)
    return _op_class(sender, job).name


def _entry(op: RecordedOp, made: OpClass) -> int:
    """Which group's entry an op tells the price of; a send tells none."""
    if made.kind == 'collective':
        return op.stage if made.partition == 'data' else 0
    return op.data if made.kind == 'recv' else NONE if made.kind == 'compute' else TOLD


def _stream(op: RecordedOp) -> str:
    """The stream of an op; a boundary between stages has one for each direction, at both ends."""
    if op.of.takes in {'send', 'recv'}:
        forward = op.kind.startswith('forward')
        other = op.stage + (1 if forward == (op.of.takes == 'send') else -1)
        low = min(op.stage, other)
        return f'forward {low}→{low + 1}' if forward else f'backward {low + 1}→{low}'
    return 'data' if op.kind == 'params-all-gather' else 'compute'
