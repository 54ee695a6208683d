"""Sample: a small program of a plan's kind, priced, and what its stages' pieces last and hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from simpar.cost.costs import Costs, Entries
from simpar.cost.price import Pricer, speeds_beside
from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.memory import framework_of
from simpar.plan import Plan
from simpar.planner.held import Held, held_by, waits_of
from simpar.planner.hiding import Speeds, Work
from simpar.planner.layers import Few
from simpar.planner.ops import MIDDLE, Ops, layer_of, mark_of
from simpar.planner.outermost import loads_of, outermost
from simpar.planner.pieces import Block, Floats, block_of
from simpar.program import OpClass, Program, Role

MICRO_BATCHES: Final = 3
"""A first, a middle and a last one."""
Known = Callable[[Plan, bool], 'Sample']
"""Makes a sample, or finds it made, of a plan and of whether its backwards are done in two parts."""
JOINT: Final = ('F', 'B')
APART: Final = ('F', 'I', 'W')


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What the stages of a small program last and hold.

    Arguments:
        blocks: by (stage, kind of action, whether its computation is slowed by a message that is awaited).
        held: by stage.
        send: an op class that sends an activation to the next stage.
        speeds: of computation and messages beside each other.
        copies: of a micro-batch; tiles, of a product; in_step, whether they go through a stage's layers together.
        pace: seconds of computation for each second that the host issues, of the stage where the host is least ahead.
        in_turn: kinds of action whose copies are taken to be done one after the other.
        whole: of the blocks, those of copies that go together.
        mixed: blocks as above, of stages with any of the first layers that are unlike the others, where it is so there
            alone.
        again: whether any op is done again in the backward.
        known: what was worked out of it.
    """

    blocks: dict[tuple[int, str, bool], Block]
    held: tuple[Held, ...]
    send: OpClass | None
    few: Few
    speeds: Speeds
    copies: int
    tiles: int = 1
    in_step: bool = True
    pace: float = float('inf')
    in_turn: frozenset[str] = frozenset()
    again: bool = False
    whole: dict[tuple[int, str, bool], Block] = field(default_factory=dict)
    mixed: dict[tuple[int, str, bool], Block] = field(default_factory=dict)
    known: dict[Any, Any] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        """Of the small program."""
        return len(self.held)


def sample_of(few: Few, plan: Plan, cluster: Cluster, size: int, *, split: bool, known: Known) -> Sample:
    """The sample of a plan's degrees, recomputation, copies and tiles.

    Arguments: ``size``, samples of one copy of a micro-batch; ``split``, whether backwards are done in two parts;
    ``known``, others of so many samples.
    Raises what ``lower`` raises where degrees do not fit the model.
    """
    if split:
        return _parted(few, plan, cluster, size, known)
    program = _lowered(few, plan, size, split=False)
    costs = Pricer(program, _roomy(program, cluster)).costs()
    blocks = _blocks(few, plan, program, cluster, costs, JOINT)
    sends = [op for op in program.op_classes if op.kind == 'send' and op.phase == 'F']
    sample = Sample(
        blocks,
        tuple(held_by(program, role, layers, framework_of(cluster)) for role, layers in _stages(few, plan, program)),
        sends[0] if sends else None,
        few,
        Speeds(*speeds_beside(cluster, program)),
        plan.copies,
        plan.tiles,
        _in_step(few, plan, program),
        _pace(few, plan, program, costs),
        again=plan.recompute != 'none',
    )
    return _in_turn(sample, blocks, plan, known, split=False)


def _parted(few: Few, plan: Plan, cluster: Cluster, size: int, known: Known) -> Sample:
    """The same where backwards are done in two parts, as well."""
    joint = known(plan, False)
    apart = _lowered(few, plan, size, split=True)
    blocks = joint.whole | _blocks(few, plan, apart, cluster, Pricer(apart, _roomy(apart, cluster)).costs(), APART)
    waits = [waits_of(apart, role, layers) for role, layers in _stages(few, plan, apart)]
    held = tuple(replace(one, waits=later) for one, later in zip(joint.held, waits, strict=True))
    return _in_turn(replace(joint, held=held, known={}), blocks, plan, known, split=True)


def _in_turn(
    sample: Sample,
    blocks: dict[tuple[int, str, bool], Block],
    plan: Plan,
    known: Known,
    *,
    split: bool,
) -> Sample:
    """A sample with the blocks of its stages, and of copies that go apart: taken to be done one after the other."""
    kinds = {*JOINT, *(APART if split else ())}
    in_turn = frozenset(kinds - {kind for _, kind, _ in blocks})
    apart_at_first = kinds - {kind for stage, kind, _ in blocks if stage == 0}
    mixed: dict[tuple[int, str, bool], Block] = {}
    every = blocks
    if apart_at_first and plan.copies > 1:
        # Whole stages of each.
        alone = known(replace(plan, copies=1), split)
        turned = {key: block.in_turn(plan.copies) for key, block in alone.blocks.items() if key[1] in apart_at_first}
        mixed = {key: block for key, block in turned.items() if key[1] not in in_turn}
        every = turned | blocks
    return replace(sample, blocks=every, whole=blocks, in_turn=in_turn, mixed=mixed)


def _in_step(few: Few, plan: Plan, program: Program) -> bool:
    """Whether copies go through layers together: where computation waits for a collective, the next copy goes on."""
    role, layers = list(_stages(few, plan, program))[-1]
    ops = [program.op_classes[index] for index in sorted(set(role.op_class.tolist()))]
    return any(op.kind == 'collective' and program.sliced(op) and layer_of(op.name) == layers[-1] for op in ops)


def _pace(few: Few, plan: Plan, program: Program, costs: Costs) -> float:
    seconds, host = np.array(costs.compute, dtype=np.float64), np.array(costs.host, dtype=np.float64)
    least = float('inf')
    for role, _ in _stages(few, plan, program):
        mine = role.op_class[(role.micro_batch == MIDDLE) & program.is_sliced[role.op_class]]
        issued = float(host[mine].sum())
        computed = float(sum(seconds[row] for row in mine.tolist() if program.op_classes[row].kind == 'compute'))
        least = min(least, computed / issued) if issued else least
    return least


def _lowered(few: Few, plan: Plan, size: int, *, split: bool) -> Program:
    stages = len(few.stages)
    small = replace(
        plan,
        data=plan.expert,
        pipeline=stages,
        chunks=0,
        order='1f1b',
        rows=_rows(stages, split=split),
        micro_batches=MICRO_BATCHES,
        stages=few.stages,
        recompute_stages=(),
        zero=0,
        shard_group=0,
        fusion='layer',
    )
    workload = replace(few.workload, batch=size * plan.copies * plan.expert * MICRO_BATCHES)
    return lower(workload, small, stages * _ranks(plan))


def _ranks(plan: Plan) -> int:
    """Ranks of a stage of the small program: no more than share its layers."""
    return plan.tensor * plan.context * plan.expert


def _stages(few: Few, plan: Plan, program: Program) -> Iterator[tuple[Role, list[int]]]:
    """The role of each stage, and its layers."""
    for stage, count in enumerate(few.stages):
        first = sum(few.stages[:stage])
        yield program.role(stage * _ranks(plan)), [*range(first, first + count)]


def _blocks(
    few: Few, plan: Plan, program: Program, cluster: Cluster, costs: Costs, kinds: Sequence[str]
) -> dict[tuple[int, str, bool], Block]:
    isolated, slowed, wires = _seconds(program, costs)
    loads = loads_of(program, costs, outermost(cluster.topology, cluster.world))
    wire = _busiest(program, isolated)
    speeds = Speeds(*speeds_beside(cluster, program))
    # What is slowed all the time is not slowed again.
    unslowed, host = Speeds(1.0, 1.0, speeds.collective), np.array(costs.host, dtype=np.float64).tolist()
    both = (
        (False, isolated, Work(isolated.tolist(), slowed.tolist(), wires, speeds, loads, host)),
        (True, slowed, Work(slowed.tolist(), slowed.tolist(), wires, unslowed, loads, host)),
    )
    blocks: dict[tuple[int, str, bool], Block] = {}
    stages = list(_stages(few, plan, program))
    for kind in kinds:
        actions = [Ops(program, role, kind, layers if kind == 'F' else layers[::-1]) for role, layers in stages]
        first = 0
        mark = mark_of(actions, alike=not few.edge)
        if mark is None and few.edge:
            # The first layers are unlike the others; among these copies may go together all the same.
            first, mark = 1, mark_of(actions[1:], alike=True)
        if mark is None:
            continue
        for stage, ops in list(enumerate(actions))[first:]:
            for slow, seconds, work in both:
                block = block_of(ops, seconds, wire, work, mark)
                if block is not None:
                    blocks[stage, kind, slow] = block
    return blocks


def _busiest(program: Program, seconds: Floats) -> str:
    """The partition whose messages take longest, those between stages and of gradients left out."""
    sums: dict[str, float] = {}
    for op, each in zip(program.op_classes, seconds.tolist(), strict=True):
        if op.kind == 'collective' and program.sliced(op):
            sums[op.partition] = sums.get(op.partition, 0.0) + each
    return max(sums, key=lambda name: (sums[name], name), default='')


def _rows(stages: int, *, split: bool) -> tuple[str, ...]:
    """Actions of each stage: no backward stands right behind its forward, which would be done as one with it."""
    rows = []
    for stage in range(stages):
        back = [[f'{stage}{kind}{{0}}' for kind in (APART if split else JOINT)[1:]]] * MICRO_BATCHES
        behind = [' '.join(kinds).format(number) for number, kinds in enumerate(back)]
        rows.append(' '.join([*(f'{stage}F{number}' for number in range(MICRO_BATCHES)), *behind]))
    return tuple(rows)


def _seconds(program: Program, costs: Costs) -> tuple[Floats, Floats, dict[int, float]]:
    """Seconds of each op class by itself, and with computation slowed by a message that is awaited; see ``Work``."""
    isolated = np.array(costs.compute, dtype=np.float64)
    slowed = isolated / costs.beside_communication
    wires = {}
    for index, entries in costs.communication.items():
        # Of its groups the quickest: any stage may be the one.
        parts = entries.blocks if isinstance(entries, Entries) else entries
        seconds = min(one.alpha + one.transfer for one in parts)
        isolated[index] = slowed[index] = seconds
        if program.op_classes[index].kind == 'collective':
            beside = float(costs.beside_compute[index])
            wires[index] = min(one.alpha * beside + one.transfer for one in parts)
    return isolated, slowed, wires


def _roomy(program: Program, cluster: Cluster) -> Cluster:
    """A cluster for all stages, which may have more ranks than a pipeline leaves to one; groups lie alike on it."""
    return replace(cluster, nodes=cluster.nodes * -(-program.world // cluster.world), slow={})
