"""Samples: small programs of plans' kinds, priced: what their stages' pieces last and hold; each made once."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, TypeVar

import numpy as np

from simpar import errors, hardware, memory, plans
from simpar.cost.costs import Costs, Entries
from simpar.cost.price import Pricer, speeds_beside
from simpar.lower import lower
from simpar.lower.passes.recompute import is_recomputed
from simpar.memory.lifetimes import NONE, Lifetimes, lifetimes
from simpar.memory.memory import Framework, with_framework
from simpar.planner.pieces import MIDDLE, PARTS, Block, Floats, Ops, Speeds, Work, block_of, layer_of, mark_of
from simpar.planner.space import Few, Space, few_of
from simpar.program import OpClass, Program, Role
from simpar.session import Session

T = TypeVar('T')


def outermost(topology: hardware.Topology, world: int) -> str:
    """The name of the outermost link between so many ranks; empty where nobody shares it, or each pair has its own."""
    joined = [
        link
        for link, below, size in zip(topology.links, (1, *topology.sizes), topology.sizes, strict=False)
        if (size > below or not size) and world > below
    ]
    if not joined or joined[-1].sharing != 'shared' or joined[-1].per == 'pair':
        return ''
    return joined[-1].name


def load_of(transfer: float, links: Iterable[tuple[str, float]], outer: str) -> float:
    """Seconds for which a message has a link to itself, whatever goes beside it: all of its channels alike.

    Arguments: ``transfer``, seconds of it alone; ``links``, pairs (channel, demand); ``outer``, the link's name.
    """
    return transfer * next((part for channel, part in links if channel.rpartition('/')[0] == outer), 0.0)


def loads_of(program: Program, costs: Costs, outer: str) -> dict[int, float]:
    """The same of each op class that is a collective, in the group where it is least."""
    loads: dict[int, float] = {}
    for index, entries in costs.communication.items() if outer else ():
        if program.op_classes[index].kind == 'collective':
            # Of equal groups one tells for all.
            rows: Sequence[int] = (
                [int(block.rows[0]) for block in entries.blocks]
                if isinstance(entries, Entries)
                else range(len(entries))
            )
            loads[index] = min(
                load_of(one.transfer, ((costs.links[link], part) for link, part in one.links), outer)
                for one in (entries[row] for row in rows)
            )
    return loads


# Held: least bytes of parts of a stage, from the same small program: weights, states, gradients, activations.
#
# Counted is what is surely there while a compute op runs: compute is in order, so no clock is needed.


STANDING: Final = ('parameter', 'state', 'gradient', 'gathered')
EXPERT: Final = 'expert'
_LAYERS: Final = re.compile(r'layer\d+\.')


@dataclass(frozen=True, slots=True)
class Standing:
    """Bytes of weights by kind; ``gathered``, what is cast of them once a step, for all of its micro-batches."""

    parameter: float = 0.0
    state: float = 0.0
    gradient: float = 0.0
    gathered: float = 0.0

    @property
    def total(self) -> float:
        """What is there all the time, or could be."""
        return self.parameter + self.state + self.gradient

    def plus(self, other: Standing, times: int = 1) -> Standing:
        """Both together, the other so many times."""
        return Standing(*(getattr(self, kind) + times * getattr(other, kind) for kind in STANDING))


@dataclass(frozen=True, slots=True)
class Held:
    """What a stage of the small program holds.

    Arguments:
        layers: standing bytes of each layer, dense and of experts; rest: of all that is in no layer; alone: the same by
            name and kind of each tensor.
        inner, end: bytes of activations that a layer, and the stage's last layer, keep from forward to backward.
        received, others: the same of what is received, and of what is in no layer.
        most: bytes of one micro-batch's activations at the peak of its forward's end and its backward's begin.
        head: the same at the fullest op of no layer there, such as the loss, without what is made again.
        fixed: bytes of what a framework reserves.
        waits: bytes of what is kept for the gradients of weights, where these are done apart: of an inner layer, of the
            last layer that goes back, and of all else.
    """

    layers: dict[int, tuple[Standing, Standing]] = field(default_factory=dict)
    rest: tuple[Standing, Standing] = (Standing(), Standing())
    alone: dict[tuple[str, str], float] = field(default_factory=dict)
    inner: float = 0.0
    end: float = 0.0
    received: float = 0.0
    others: float = 0.0
    most: float = 0.0
    head: float = 0.0
    fixed: float = 0.0
    waits: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def kept(self) -> float:
        """Bytes that a micro-batch keeps between forward and backward."""
        return self.inner + self.end + self.received + self.others


def held_by(program: Program, role: Role, layers: Sequence[int], framework: Framework | None) -> Held:
    """What a role holds, with what its framework holds beside it; ``layers`` of its stage, two of them."""
    own = _Lives(program, role, layers, lifetimes(program, role))
    beside = replace(own, lives=with_framework(own.lives, program, role, framework)) if framework else own
    forward, backward = own.done('F'), own.done('B')
    sums = beside.over(forward[-1], backward[0])
    most, head = beside.peaks(forward, backward)
    return Held(
        **own.standing(),
        **sums,
        most=max(most, sum(sums.values())),
        head=max(head, sum(sums.values())),
        # Its mask grows with the samples of a micro-batch, and is left out.
        fixed=float(framework.reserved) if framework else 0.0,
    )


def waits_of(program: Program, role: Role, layers: Sequence[int]) -> tuple[float, float, float]:
    """Bytes of activations that the middle micro-batch keeps between its gradients of inputs and those of weights."""
    own = _Lives(program, role, layers, lifetimes(program, role))
    inputs, weights = own.done('I'), own.done('W')
    if not inputs or not weights or inputs[-1] > weights[0]:
        return 0.0, 0.0, 0.0
    sums = own.over(inputs[-1], weights[0])
    return sums['inner'], sums['end'], sums['received'] + sums['others']


@dataclass(frozen=True, eq=False)
class _Lives:
    """The lives of what a role of the small program holds; ``layers`` as of ``held_by``."""

    program: Program
    role: Role
    layers: Sequence[int]
    lives: Lifetimes

    def _op(self, slot: int) -> OpClass:
        return self.program.op_classes[self.role.op_class.item(slot)]

    def done(self, kind: str) -> list[int]:
        """The compute slots of an action of the middle micro-batch."""
        mine = np.flatnonzero((self.role.micro_batch == MIDDLE) & self.program.is_sliced[self.role.op_class]).tolist()
        ops = [(slot, self._op(slot)) for slot in mine]
        return [slot for slot, op in ops if op.kind == 'compute' and op.part in PARTS[kind]]

    @cached_property
    def _middle(self) -> list[int]:
        """The lives of the middle micro-batch's activations, and of what a framework holds beside its operators."""
        rows, lives = [], self.lives
        for row in np.flatnonzero(~lives.always & ~lives.before).tolist():
            tensor = int(lives.tensor[row])
            micro_batch = self.role.micro_batch[lives.begin[row]] if tensor == NONE else lives.micro_batch[row]
            if micro_batch == MIDDLE and (tensor == NONE or self.program.tensors[tensor].kind == 'activation'):
                rows.append(row)
        return rows

    def over(self, first: int, last: int) -> dict[str, Any]:
        """Bytes of what the middle micro-batch has from one slot to a later one, by where it is written."""
        sums, lives = {'inner': 0.0, 'end': 0.0, 'received': 0.0, 'others': 0.0}, self.lives
        for row in self._middle:
            writer = int(lives.writer[row])
            if writer != NONE and lives.begin[row] <= first and lives.end[row] >= last:
                op = self._op(writer)
                layer = layer_of(op.name)
                place = 'others' if layer not in self.layers else 'end' if layer == self.layers[-1] else 'inner'
                sums['received' if op.kind == 'recv' else place] += float(lives.bytes[row])
        return sums

    def standing(self) -> dict[str, Any]:
        """Standing bytes of layers, of what is in none, and of that by name and kind."""
        layers, alone = self.layers, dict[tuple[str, str], float]()
        sums = {(layer, expert): dict.fromkeys(STANDING, 0.0) for layer in (*layers, NONE) for expert in (False, True)}
        for row, number in enumerate(self.lives.tensor.tolist()):
            tensor = self.program.tensors[number] if number != NONE else None
            if tensor is not None and tensor.kind in STANDING:
                size = float(self.lives.bytes[row])
                layer = next((one for one in layers if f'layer{one}.' in tensor.name), NONE)
                sums[layer, EXPERT in tensor.name][tensor.kind] += size
                if not _LAYERS.search(tensor.name):
                    alone[tensor.name, tensor.kind] = size
        both = {layer: (Standing(**sums[layer, False]), Standing(**sums[layer, True])) for layer in (*layers, NONE)}
        return {'layers': {layer: both[layer] for layer in layers}, 'rest': both[NONE], 'alone': alone}

    def peaks(self, forward: Sequence[int], backward: Sequence[int]) -> tuple[float, float]:
        """Bytes of the middle micro-batch at the fullest compute op between its last layer's begin and end.

        The second number is that of ops of no layer alone, without what is made again.
        """
        compute, needs, lives = {*forward, *backward}, self.role.need, self.lives
        layer = {slot: layer_of(self._op(slot).name) for slot in compute}
        last = [slot for slot in forward if layer[slot] == self.layers[-1]]
        first = [slot for slot in backward if layer[slot] == self.layers[0]]
        # Behind it layers of the stage are given back already, and a longer stage has more of them.
        seen = [slot for slot in forward if last and slot >= last[0]]
        seen += [slot for slot in backward if not first or slot < first[0]]
        seen = sorted({*seen})
        held, lasting = np.zeros(len(seen)), np.zeros(len(seen))
        of_none = np.array([layer[slot] is None for slot in seen], dtype=bool)
        waited: dict[int, int] = {}
        for slot in sorted(compute, reverse=True):
            waited.update(dict.fromkeys(needs.items(slot), slot))
        for row in self._middle:
            begin, end, size = int(lives.begin[row]), int(lives.end[row]), float(lives.bytes[row])
            writer = int(lives.writer[row])
            if end not in compute:
                before = [need for need in needs.items(end) if need in compute]
                end = max(before, default=NONE)
            if begin not in compute:
                # What a message brings is surely there for the first that waits for it.
                begin = waited.get(begin, int(end) + 1)
            meanwhile = slice(bisect_left(seen, begin), bisect_right(seen, end))
            held[meanwhile] += size
            if writer == NONE or not is_recomputed(self._op(writer)):
                lasting[meanwhile] += size
        return float(held.max(initial=0.0)), float(lasting[of_none].max(initial=0.0))


MICRO_BATCHES: Final = 3
"""A first, a middle and a last one."""
Known = Callable[[plans.Plan, bool], 'Sample']
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

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What is worked out of it by a key, the first time that it is asked for."""
        if key not in self.known:
            self.known[key] = make()
        result: T = self.known[key]
        return result

    @property
    def stages(self) -> int:
        """Of the small program."""
        return len(self.held)


@dataclass(frozen=True, eq=False)
class _Small:
    """The small program of a plan of one space, priced."""

    few: Few
    plan: plans.Plan
    cluster: hardware.Cluster
    program: Program
    costs: Costs

    @cached_property
    def stages(self) -> list[tuple[Role, list[int]]]:
        """The role of each stage, and its layers."""
        ends = accumulate(self.few.stages, initial=0)
        ranks = _ranks(self.plan)
        return [(self.program.role(stage * ranks), [*range(*both)]) for stage, both in enumerate(pairwise(ends))]

    @cached_property
    def speeds(self) -> Speeds:
        """Of computation and messages beside each other."""
        return Speeds(*speeds_beside(self.cluster, self.program))


def sample_of(
    few: Few, plan: plans.Plan, cluster: hardware.Cluster, size: int, *, split: bool, lookup: Known, session: Session
) -> Sample:
    """The sample of a plan's degrees, recomputation, copies and tiles.

    Arguments: ``size``, samples of one copy of a micro-batch; ``split``, whether backwards are done in two parts, as
    well; ``lookup``, others of so many samples; ``session``, of what is lowered alike, and of models of devices and
    links.
    Raises what ``lower`` raises where degrees do not fit the model.
    """
    joint = lookup(plan, False) if split else None
    small = _small(few, plan, cluster, size, session, split=split)
    if joint:
        waits = [waits_of(small.program, role, layers) for role, layers in small.stages]
        held = tuple(replace(one, waits=later) for one, later in zip(joint.held, waits, strict=True))
        return _in_turn(
            replace(joint, held=held, known={}), joint.whole | _blocks(small, APART), plan, lookup, split=True
        )
    blocks, framework = _blocks(small, JOINT), memory.framework_of(cluster)
    sends = [op for op in small.program.op_classes if op.kind == 'send' and op.phase == 'F']
    sample = Sample(
        blocks,
        tuple(held_by(small.program, role, layers, framework) for role, layers in small.stages),
        sends[0] if sends else None,
        few,
        small.speeds,
        plan.copies,
        plan.tiles,
        _in_step(small),
        _pace(small),
        again=plan.recompute != 'none',
    )
    return _in_turn(sample, blocks, plan, lookup, split=False)


def _in_turn(
    sample: Sample, blocks: dict[tuple[int, str, bool], Block], plan: plans.Plan, lookup: Known, *, split: bool
) -> Sample:
    """A sample with the blocks of its stages, and of copies that go apart: taken to be done one after the other."""
    kinds = {*JOINT, *(APART if split else ())}
    in_turn = frozenset(kinds - {kind for _, kind, _ in blocks})
    apart_at_first = kinds - {kind for stage, kind, _ in blocks if stage == 0}
    mixed: dict[tuple[int, str, bool], Block] = {}
    every = blocks
    if apart_at_first and plan.copies > 1:
        # Whole stages of each.
        alone = lookup(replace(plan, copies=1), split)
        turned = {key: block.in_turn(plan.copies) for key, block in alone.blocks.items() if key[1] in apart_at_first}
        mixed = {key: block for key, block in turned.items() if key[1] not in in_turn}
        every = turned | blocks
    return replace(sample, blocks=every, whole=blocks, in_turn=in_turn, mixed=mixed)


def _in_step(small: _Small) -> bool:
    """Whether copies go through layers together: where computation waits for a collective, the next copy goes on."""
    role, layers = small.stages[-1]
    ops = [small.program.op_classes[index] for index in sorted(set(role.op_class.tolist()))]
    return any(op.kind == 'collective' and small.program.sliced(op) and layer_of(op.name) == layers[-1] for op in ops)


def _pace(small: _Small) -> float:
    program, least = small.program, float('inf')
    seconds, host = (np.array(each, dtype=np.float64) for each in (small.costs.compute, small.costs.host))
    for role, _ in small.stages:
        mine = role.op_class[(role.micro_batch == MIDDLE) & program.is_sliced[role.op_class]]
        issued = float(host[mine].sum())
        computed = float(sum(seconds[row] for row in mine.tolist() if program.op_classes[row].kind == 'compute'))
        least = min(least, computed / issued) if issued else least
    return least


def _small(
    few: Few, plan: plans.Plan, cluster: hardware.Cluster, size: int, session: Session, *, split: bool
) -> _Small:
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
    program = lower(workload, small, stages * _ranks(plan), session=session)
    # On a cluster for all stages, which may have more ranks than a pipeline leaves to one; groups lie alike on it.
    roomy = replace(cluster, nodes=cluster.nodes * -(-program.world // cluster.world), slow={})
    return _Small(few, plan, cluster, program, Pricer(program, roomy, models=session).costs())


def _ranks(plan: plans.Plan) -> int:
    """Ranks of a stage of the small program: no more than share its layers."""
    return plan.tensor * plan.context * plan.expert


def _blocks(small: _Small, kinds: Sequence[str]) -> dict[tuple[int, str, bool], Block]:
    few, program, costs, speeds = small.few, small.program, small.costs, small.speeds
    isolated, slowed, wires = _seconds(program, costs)
    loads = loads_of(program, costs, outermost(small.cluster.topology, small.cluster.world))
    wire = _busiest(program, isolated)
    # What is slowed all the time is not slowed again.
    unslowed, host = Speeds(1.0, 1.0, speeds.collective), np.array(costs.host, dtype=np.float64).tolist()
    both = (
        (False, Work(isolated.tolist(), slowed.tolist(), wires, speeds, loads, host)),
        (True, Work(slowed.tolist(), slowed.tolist(), wires, unslowed, loads, host)),
    )
    blocks: dict[tuple[int, str, bool], Block] = {}
    for kind in kinds:
        actions = [Ops(program, role, kind, layers if kind == 'F' else layers[::-1]) for role, layers in small.stages]
        first = 0
        mark = mark_of(actions, alike=not few.edge)
        if mark is None and few.edge:
            # The first layers are unlike the others; among these copies may go together all the same.
            first, mark = 1, mark_of(actions[1:], alike=True)
        if mark is None:
            continue
        for stage, ops in list(enumerate(actions))[first:]:
            for slow, work in both:
                block = block_of(ops, wire, work, mark)
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
    slowed = isolated / costs.speeds.max(axis=0)
    wires = {}
    for index, entries in costs.communication.items():
        # Of its groups the quickest: any stage may be the one.
        parts = entries.blocks if isinstance(entries, Entries) else entries
        seconds = min(one.alpha + one.transfer for one in parts)
        isolated[index] = slowed[index] = seconds
        if program.op_classes[index].kind == 'collective':
            beside = min(float(costs.beside_compute[index]), 1.0)
            wires[index] = min(one.alpha * beside + one.transfer for one in parts)
    return isolated, slowed, wires


_KNOWN: Final = frozenset(
    {
        'pipeline', 'order', 'chunks', 'tensor', 'sequence_parallel', 'context', 'expert', 'micro_batches', 'copies',
        'tiles', 'recompute', 'zero', 'shard_group', 'fusion', 'data',
    }
)  # fmt: skip
"""Keys that a sample is told by, or does not depend on."""


class Samples:
    """Finds or makes the samples of plans of one space."""

    def __init__(self, space: Space, cluster: hardware.Cluster) -> None:
        self._space = space
        self._cluster = cluster
        self._few = few_of(space.base.workload)
        self._session = Session(16)
        self._known: dict[tuple[Any, ...], Sample] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._few is not None

    def widest(self, plan: plans.Plan) -> Sample:
        """A sample of the whole batch at once: nothing takes less time for each of its samples."""
        return self.sample(self.base(plan), self._space.base.workload.batch, split=False)

    def base(self, plan: plans.Plan) -> plans.Plan:
        """The plan with the values of what is still open that take the least time."""
        return replace(self.plain(plan), recompute='none')

    def plain(self, plan: plans.Plan) -> plans.Plan:
        """The plan with one copy and no tiles where these are still open."""
        copies, tiles = (one[0] if len(one := self._space.values_of(key)) == 1 else 1 for key in ('copies', 'tiles'))
        return replace(plan, copies=copies, tiles=tiles)

    def sample(self, plan: plans.Plan, size: int, *, split: bool) -> Sample:
        """The sample of a plan, whose model has a small one.

        Arguments: ``size``, samples of a micro-batch, of all its copies; ``split`` as of ``sample_of``.
        """
        assert self._few is not None
        # No more than there are, where they cannot be shared out evenly.
        each = size // plan.copies
        if not each:
            raise errors.Infeasible(f'the batch has fewer samples than {plan.copies} copies of so many micro-batches')
        key = (
            plan.tensor, plan.sequence_parallel, plan.context, plan.expert, plan.recompute, plan.copies, plan.tiles,
            each, split, *(repr(getattr(plan, key)) for key in self._space.keys if key not in _KNOWN),
        )  # fmt: skip
        if key not in self._known:
            self._known[key] = sample_of(
                self._few,
                plan,
                self._cluster,
                each,
                split=split,
                lookup=lambda other, parted: self.sample(other, each * other.copies, split=parted),
                session=self._session,
            )
        return self._known[key]
