"""The mesh of ranks, and the order in which a rank issues its ops."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible
from simpar.pipeline.zero_bubble import TWO_HOMES
from simpar.plans import Plan
from simpar.program import COPY, OP_KINDS, OpClass, OpKind, Partition, Slots, grid

# The mesh of a plan: its degrees, the ranks on them, and the names of their partitions.

PIPELINE = 'pipeline'
DATA = 'data'
TENSOR = 'tensor'
CONTEXT = 'context'
"""Ranks that share the tokens of every sequence."""
CONTEXT_HEADS, CONTEXT_RING = 'context_heads', 'context_ring'
"""Of these, neighbours that exchange heads, and those that keys go round, where both are."""
DATA_CONTEXT = 'data_context'
"""Data and context ranks with the same slices of weights; sums of gradients have a stream of their own."""
CONTEXT_TENSOR = 'context_tensor'
"""Context and tensor ranks, over which sequence parallelism splits the tokens of a sequence."""
STAGE = 'stage'
"""All data and tensor ranks of one pipeline rank."""
SHARD = 'shard'
"""Neighbours among the data ranks, over which optimizer parallelism shards, where these are not all of them."""
REPLICA = 'replica'
"""Data ranks that hold the same shards."""
EXPERT = 'expert'
"""Neighbours among the data ranks that share the experts of a mixture."""
EXPERT_DATA = 'expert_data'
"""Data ranks that hold the same experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism, and how often the batch is split.

    Arguments: ``placement``, stage → pipeline rank; ``shard``, data ranks over which optimizer parallelism shards;
    ``context``, ranks that share a sequence; ``balanced``: they hold chunks from both of its ends; ``by_heads``, how
    many of them, neighbours, exchange heads for tokens; ``expert``, ranks that share experts, ``expert_stride`` apart;
    ``mirrored``: halves of the data ranks are mirrors of each other, see ``two_homes``; ``sequence_chunks`` of a
    micro-batch, each an item of the pipeline's order.
    """

    data: int
    tensor: int
    copies: int
    pipeline: int = 1
    micro_batches: int = 1
    placement: tuple[int, ...] = (0,)
    shard: int = 1
    context: int = 1
    balanced: bool = False
    by_heads: int = 1
    expert: int = 1
    expert_stride: int = 1
    mirrored: bool = False
    sequence_chunks: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.pipeline * self.replicas * self.tensor

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights: data × context."""
        return self.data * self.context

    @property
    def parts(self) -> int:
        """Parts of a sequence with chunks from both ends; neighbours that exchange heads inside of a ring share one."""
        return self.context // self.by_heads if self.by_heads < self.context else self.context

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.placement)

    def partitions(self) -> dict[str, Partition]:
        """Tensor ranks are neighbours, pipeline ranks blocks; ``stage`` joins the data and tensor ranks of a block."""
        degrees = {PIPELINE: self.pipeline, DATA: self.data, CONTEXT: self.context, TENSOR: self.tensor}
        partitions = grid(self.world, degrees)
        if self.context > 1:
            # Context ranks are nearer than data ranks, as in Megatron-LM: they talk in every layer.
            joint = {PIPELINE: self.pipeline, DATA_CONTEXT: self.replicas, TENSOR: self.tensor}
            partitions[DATA_CONTEXT] = grid(self.world, joint)[DATA_CONTEXT]
        if self.replicas > 1 and self.tensor > 1:
            # Some gradients are sums over both axes, and one all-reduce over both is cheaper than two.
            partitions[STAGE] = Partition(STAGE, np.arange(self.world, dtype=np.int32).reshape(self.pipeline, -1))
        if 1 < self.shard < self.replicas:
            # Neighbours shard together, as MindSpore's optimizer_weight_shard_size and FSDP's hybrid sharding do:
            # inside a node, mostly.
            groups = partitions[self.summed].groups_GP.reshape(-1, self.replicas // self.shard, self.shard)
            partitions[SHARD] = Partition(SHARD, groups.reshape(-1, self.shard))
            partitions[REPLICA] = Partition(REPLICA, groups.swapaxes(1, 2).reshape(-1, self.replicas // self.shard))
        if self.expert > 1:
            # Neighbours share experts, as in Megatron-LM: their all-to-alls stay inside of a node, mostly.
            inner = self.expert_stride
            ranks = np.arange(self.world, dtype=np.int32).reshape(self.pipeline, -1, self.expert, inner)
            partitions[EXPERT] = Partition(EXPERT, ranks.transpose(0, 3, 1, 2).reshape(-1, self.expert))
            # Of tensor ranks that split experts each holds other parts; all others have the same experts.
            apart = self.tensor if inner >= self.tensor else 1
            same = ranks.reshape(self.pipeline, -1, self.expert, inner // apart, apart).transpose(0, 4, 2, 1, 3)
            size = self.replicas * self.tensor // apart // self.expert
            if size > 1:
                partitions[EXPERT_DATA] = Partition(EXPERT_DATA, same.reshape(-1, size))
        return partitions

    @property
    def summed(self) -> str:
        """The partition that gradients of weights are summed over."""
        return DATA_CONTEXT if self.context > 1 else DATA

    @property
    def sharding(self) -> tuple[str, str]:
        """The partition over which parameters are sharded, and that over which shards are replicated; empty: none."""
        if self.shard == 1:
            return '', ''
        return (SHARD, REPLICA) if self.shard < self.replicas else (self.summed, '')

    def pipeline_rank(self, stage: int) -> int:
        """The pipeline rank that a stage is on."""
        return self.placement[stage]


def mesh_of(plan: Plan, world: int, batch: int, placement: tuple[int, ...] = (0,)) -> Mesh:
    """The mesh of ``plan`` on ``world`` ranks.

    Arguments: ``placement``, stage → pipeline rank. Raises ``Infeasible`` where degrees and ranks, batch and slices, or
    data ranks and shard groups do not divide.
    """
    # What is left of the ranks; where it does not divide, the product below is told, with all its factors.
    data = plan.data or max(1, world // (plan.context * plan.tensor * plan.pipeline))
    degrees = {PIPELINE: plan.pipeline, DATA: data, CONTEXT: plan.context, TENSOR: plan.tensor}
    if prod(degrees.values()) != world:
        raise Infeasible(
            f'{_factors(degrees)} = {prod(degrees.values())} ranks, but the cluster has {world}; '
            f'choose degrees whose product is {world}'
        )
    slices = {DATA: data, 'micro_batches': plan.micro_batches, 'copies': plan.copies}
    if batch % prod(slices.values()):
        raise Infeasible(
            f'a batch of {batch} cannot be split into {_factors(slices)} equal slices; '
            f'choose a multiple of {prod(slices.values())}'
        )
    return Mesh(
        data=data,
        tensor=plan.tensor,
        copies=plan.copies,
        pipeline=plan.pipeline,
        micro_batches=plan.micro_batches,
        placement=placement,
        shard=_shard(plan, data * plan.context),
        context=plan.context,
        balanced=plan.context > 1 and plan.context_split == 'balanced',
        by_heads=by_heads(plan),
        expert=plan.expert,
        expert_stride=expert_stride(plan, data),
        mirrored=plan.order == TWO_HOMES,
        sequence_chunks=plan.sequence_chunks,
    )


def by_heads(plan: Plan) -> int:
    """How many context ranks exchange heads for tokens; 1: none. Raises ``Infeasible`` where they do not divide."""
    if plan.context == 1 or plan.context_kind == 'all_to_all':
        return plan.context
    if plan.context % plan.context_by_heads or plan.context_by_heads == plan.context:
        what = f'{plan.context_by_heads} of {plan.context} context ranks exchange heads, which leaves no equal parts'
        raise Infeasible(f'plan.context_by_heads: {what}; write a smaller divisor, or context_kind: all_to_all')
    return plan.context_by_heads


def mesh_of_strategies(plan: Plan, world: int, batch: int, placement: tuple[int, ...] = (0,)) -> Mesh:
    """The same where strategies tell what splits samples: data is what tensor leaves of a stage."""
    if world % plan.pipeline:
        raise Infeasible(f'plan.pipeline: {world} ranks cannot be split into {plan.pipeline} equal stages')
    ranks = world // plan.pipeline
    if plan.data > 1 and plan.data * plan.tensor != ranks:
        raise Infeasible(
            f'plan.data: data {plan.data} × tensor {plan.tensor} are not the {ranks} ranks of a stage; leave data out'
        )
    if ranks % plan.tensor:
        raise Infeasible(f'plan.tensor: {plan.tensor} does not divide the {ranks} ranks of a stage')
    slices = plan.micro_batches * plan.copies
    if batch % slices:
        raise Infeasible(
            f'a batch of {batch} cannot be split into micro_batches {plan.micro_batches} × copies '
            f'{plan.copies} equal slices; choose a multiple of {slices}'
        )
    return Mesh(
        data=ranks // plan.tensor,
        tensor=plan.tensor,
        copies=plan.copies,
        pipeline=plan.pipeline,
        micro_batches=plan.micro_batches,
        placement=placement,
    )


def expert_stride(plan: Plan, data: int) -> int:
    """How far ranks that share experts are apart. Raises ``Infeasible`` where they do not divide."""
    inner = {'data': plan.context * plan.tensor, 'context': plan.tensor, 'tensor': 1}[plan.expert_ranks]
    ranks = data * plan.context * plan.tensor // inner
    divided('expert', plan.expert, ranks, f'{plan.expert_ranks} ranks', f'a divisor of {ranks}')
    return inner


def divided(key: str, size: int, count: int, of: str, instead: str) -> None:
    """Raise ``Infeasible`` where groups of a size do not divide so many ranks. Arguments: ``instead``, a divisor."""
    if count % size:
        raise Infeasible(f'plan.{key}: {size} does not divide the {count} {of}; choose {instead}')


def _shard(plan: Plan, data: int) -> int:
    """Ranks of a shard group: the data (and context) ranks, or as many of them as the plan says, if there are more."""
    # A group that is larger than there are ranks is all of them: one plan serves several worlds.
    size = min(plan.shard_group or data, data)
    ranks = f'{"data × context" if plan.context > 1 else "data"} ranks'
    divided('shard_group', size, data, ranks, f'a divisor of {data}, or 0 for all')
    return size


def _factors(counts: dict[str, int]) -> str:
    """``data 2 × tensor 4``: the pipeline and micro-batches only where there are several."""
    factors = {
        name: count for name, count in counts.items() if count > 1 or name not in (PIPELINE, CONTEXT, 'micro_batches')
    }
    return ' × '.join(f'{name} {count}' for name, count in factors.items())


# The issue order of a pipeline rank: runs of ops, each issued for many micro-batches.
#
# What an action does is the same for every micro-batch, so it is one run, and the order is a list of blocks (run, its
# micro-batches). Ops that are added inside of a run make another run. All blocks that get the same ops at the same
# places share it.


class Issue(NamedTuple):
    """An op class for one micro-batch and copy.

    Arguments: ``late``: not before the computation that is issued before it has finished, e.g. a receive that is
    posted only when it is wanted.
    """

    op: OpClass
    micro_batch: int = 0
    copy: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Ops in issue order; the micro-batch of each is which of those that its block has."""

    issues: tuple[Issue, ...]


class Block(NamedTuple):
    """A run for some micro-batches, no two of them the same."""

    run: Run
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Issued:
    """All that a pipeline rank issues in a step, as blocks; a place is the number of an op in it."""

    blocks: tuple[Block, ...]

    @cached_property
    def start(self) -> list[int]:
        """The place of each block's first op, and at last the number of ops."""
        return [0, *accumulate(len(block.run.issues) for block in self.blocks)]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs, in the order in which they are first issued."""
        return tuple(dict.fromkeys(block.run for block in self.blocks))

    def ops(self) -> Iterator[OpClass]:
        """The ops of all runs, in the order in which they are first issued, some more than once."""
        # Runs, not blocks: there are a few runs and thousands of blocks.
        return (issue.op for run in self.runs for issue in run.issues)

    @property
    def last_start(self) -> dict[Run, int]:
        """Of each run the place of the first op of its last block."""
        return {block.run: begin for block, begin in zip(self.blocks, self.start[:-1], strict=True)}

    def readers(self, wanted: set[str]) -> dict[str, tuple[int, int]]:
        """The places of the first and of the last op that reads each of some tensors."""
        # A run may stand in many blocks; the first and the last of them count.
        last, backwards = self.last_start, reversed([*zip(self.blocks, self.start[:-1], strict=True)])
        first = {block.run: begin for block, begin in backwards}
        places: dict[str, tuple[int, int]] = {}
        for run in self.runs:
            for offset, issue in enumerate(run.issues):
                for name in wanted.intersection(issue.op.reads):
                    begin, end = places.get(name, (self.start[-1], 0))
                    places[name] = min(begin, first[run] + offset), max(end, last[run] + offset)
        return places

    def behind(self, issues: Sequence[Issue]) -> Issued:
        """The order with more behind it."""
        return Issued((*self.blocks, block_of(issues))) if issues else self

    def inserted(self, before: Mapping[int, Sequence[Issue]]) -> Issued:
        """The order with issues before the ops of some places; the number of ops as a place is the end."""
        at: dict[int, list[tuple[int, Sequence[Issue]]]] = {}
        for place, issues in sorted(before.items()):
            # A place between two blocks belongs to the later one, at its offset 0.
            block = min(bisect_right(self.start, place) - 1, len(self.blocks))
            at.setdefault(block, []).append((place - self.start[block], issues))
        made: dict[tuple[object, ...], Run] = {}
        blocks: list[Block] = []
        done = 0
        for number, added in at.items():
            blocks += self.blocks[done:number]
            done = number
            # What stands before a block's first op is a block of its own: the run behind it stays shared.
            if not added[0][0]:
                blocks.append(_shared(made, Block(Run(()), ()), added[:1]))
                del added[0]
            if added:
                blocks.append(_shared(made, self.blocks[number], added))
                done = number + 1
        return Issued((*blocks, *self.blocks[done:]))


def block_of(issues: Iterable[Issue]) -> Block:
    """A block of its own."""
    return _shared({}, Block(Run(()), ()), [(0, tuple(issues))])


def _shared(made: dict[tuple[object, ...], Run], block: Block, added: Sequence[tuple[int, Sequence[Issue]]]) -> Block:
    """A block with issues before the ops at some offsets, its run shared with blocks that get the same ones.

    Arguments: ``made``, such runs; grows.
    """
    parts = {micro_batch: part for part, micro_batch in enumerate(block.micro_batches)}
    into = [
        (
            offset,
            tuple(
                [
                    Issue(op, parts.setdefault(micro_batch, len(parts)), copy, late)
                    for op, micro_batch, copy, late in issues
                ]
            ),
        )
        for offset, issues in added
    ]
    # Ops of one name are equal, though they need not be the same.
    names = tuple((offset, issue.op.name, issue[1:]) for offset, issues in into for issue in issues)
    key = (block.run if block.run.issues else None, names)
    if key not in made:
        all_issues: list[Issue] = []
        done = 0
        for offset, issues in into:
            all_issues += [*block.run.issues[done:offset], *issues]
            done = offset
        made[key] = Run((*all_issues, *block.run.issues[done:]))
    return Block(made[key], tuple(parts))


# Streams: the in-order queues of a pipeline rank, one for each partition and way between two ranks.


COMPUTE: Final = 'compute'
_BLOCKING: Final[dict[str, frozenset[OpKind]]] = {
    'group': frozenset({'compute'}),
    'messages': frozenset({'compute', 'collective'}),
    'single': frozenset({'compute', 'collective', 'send', 'recv'}),
}
"""By ``plan.streams``, what takes its turn on the stream of computation."""


class Streams:
    """Numbers the streams of a pipeline rank, as they are first used; the first is that of computation.

    Arguments: ``place``, the pipeline rank.
    """

    def __init__(self, mesh: Mesh, plan: Plan, place: int) -> None:
        self._mesh = mesh
        self._blocking = _BLOCKING[plan.streams]
        self._place = place
        self._number = {COMPUTE: 0}

    @property
    def names(self) -> tuple[str, ...]:
        """By number."""
        return tuple(self._number)

    def number(self, issue: Issue) -> int:
        """The number of the stream that an op is issued on."""
        # Whatever blocks, computation does.
        if issue.op.kind == COMPUTE:
            return 0
        return self._number.setdefault(self._name(issue), len(self._number))

    def _name(self, issue: Issue) -> str:
        """One for each partition; sends and receives, one for each direction, phase and copy."""
        op = issue.op
        # Engines copy whatever waits its turn on the compute stream.
        if op.kind in self._blocking and op.operator != COPY:
            return COMPUTE
        if op.partition != PIPELINE:
            return op.partition
        peer = (self._place + op.peer) % self._mesh.pipeline
        ends = (self._place, peer) if op.kind == 'send' else (peer, self._place)
        # A stream a direction: a send that waits for its receiver must not hold up what comes the other way.
        name = f'{PIPELINE}.{"B" if op.phase == "I" else op.phase}.{ends[0]}-{ends[1]}'
        # And a stream a copy, whose messages may overtake each other.
        return f'{name}.c{issue.copy}' if self._mesh.copies > 1 else name


# Slots: the issue order of a pipeline rank as arrays.


Ints = NDArray[np.int64]
_COMPUTES, _TRANSFERS = OP_KINDS.index(COMPUTE), tuple(OP_KINDS.index(kind) for kind in ('send', 'recv'))


def slots_of(order: Issued, index: Mapping[str, int], streams: Streams, *, batched: bool) -> Slots:
    """The slots of an issue order.

    Arguments:
        index: by name, the number of each op class.
        streams: they are numbered as they are met.
        batched: a batched send/recv (``exchange: fused``): computation waits for all that is sent and received behind
            the computation before it.
    """
    rows = {run: _rows(run, index, streams) for run in order.runs}
    op_class, stream, part, copy, kind, late = np.concatenate([_NO_ROWS, *(rows[run] for run, _ in order.blocks)]).T
    # What a block does for its parts stands behind what the blocks before it do for theirs.
    counts = np.array([len(micro_batches) for _, micro_batches in order.blocks], dtype=np.int64)
    first = np.repeat(np.cumsum(counts) - counts, np.diff(order.start))
    micro_batch = np.array([one for _, many in order.blocks for one in many], dtype=np.int64)[first + part]
    return Slots.of(op_class, micro_batch, copy, stream, _after(kind, late > 0, batched=batched))


_NO_ROWS: Final[Ints] = np.zeros((0, 6), dtype=np.int64)


def _rows(run: Run, index: Mapping[str, int], streams: Streams) -> Ints:
    """For each op its class, stream, which of its block's micro-batches, copy, kind, and whether it is late."""
    rows = [
        (index[one.op.name], streams.number(one), one.micro_batch, one.copy, OP_KINDS.index(one.op.kind), one.late)
        for one in run.issues
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 6)


def _after(kind: Ints, late: NDArray[np.bool_], *, batched: bool) -> Ints:
    """Pairs (slot, an earlier one that it waits for), whatever the tensors say."""
    waits, computed = np.flatnonzero(late), np.flatnonzero(kind == _COMPUTES)
    # The last computation before each late op; −1 where none is.
    at = np.searchsorted(computed, waits) - 1
    pairs = np.column_stack((waits[at >= 0], computed[at[at >= 0]]))
    if batched:
        sent = np.flatnonzero(np.isin(kind, _TRANSFERS))
        into = np.searchsorted(computed, sent)
        meets = into < len(computed)
        exchanged = np.column_stack((computed[into[meets]], sent[meets]))
        pairs = np.append(pairs, exchanged[~np.isin(exchanged[:, 0], waits)], axis=0)
    return pairs
