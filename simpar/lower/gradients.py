"""Sums of gradients over replicas, each message as soon as the last op that adds to one of its gradients is issued.

A gradient that stays full is all-reduced. One that is sharded is reduce-scattered over the shard group, and its shard
all-reduced over the groups; where it is also a partial sum over the tensor ranks, that sum comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from simpar.lower.fusion import fuse
from simpar.lower.issue import Issue, Issued, Run
from simpar.lower.mesh import TENSOR
from simpar.lower.optimizer_parallel import Shard, Shards, message_bytes, message_sizes, size_of, split_dims
from simpar.lower.shard_groups import partial_gradients
from simpar.lower.tape import Tape
from simpar.plan import Plan
from simpar.program import OpClass, Tensor

_NEVER: Final = -(2**62)
"""So far before the first op that it is so from any place."""
_Places = tuple[int, int]
"""Of the last op of a backward, and of the last writer of gradients."""


class _Written(NamedTuple):
    """What a run ends and writes.

    Arguments: ``backward``, (stage, part) → the last op of the backward; ``last``, (tensor, stage, part) → the last
    writer, of tensors that are asked for.
    """

    backward: dict[tuple[int, int], int]
    last: dict[tuple[str, int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Messages of one bucket.

    Arguments: ``gradients``, behind whose last writer they stand; ``stage``, where they are done for every micro-batch
    of a stage, else -1.
    """

    gradients: tuple[str, ...]
    ops: tuple[OpClass, ...]
    stage: int = -1


class Reductions:
    """The sums of gradients, of one pipeline rank after the other."""

    def __init__(self, tape: Tape, plan: Plan, shards: Shards, ids: Mapping[str, int]) -> None:
        self._tape = tape
        self._plan = plan
        self._shards = shards
        self._ids = ids
        self._stages: list[int] = []
        self._scope = ''

    def place(self, order: Issued, place: int) -> Issued:
        """The ops of a pipeline rank with the reductions among them."""
        mesh, end = self._tape.mesh, self._plan.reduce_gradients == 'end'
        self._stages = [stage for stage in sorted(self._added) if mesh.pipeline_rank(stage) == place]
        self._scope = f'pipeline{place}.' if mesh.pipeline > 1 else ''
        order = _place(order, [*self._fulls(), *self._scatters()], end=end)
        # Replicas are summed behind the scatters that make the shards, so these must have been placed.
        return _place(order, list(self._repeats()), end=end)

    @cached_property
    def _adds(self) -> dict[str, int]:
        """By parameter, the stage that adds to its gradient; the first of several, as the backward comes to it last."""
        tape = self._tape
        return {tape.tensors[name].like: op.stage for op in tape.ops for name in op.accumulates}

    @cached_property
    def _added(self) -> dict[int, set[str]]:
        """By stage, the parameters whose gradients it adds to."""
        found: dict[int, set[str]] = {op.stage: set() for op in self._tape.ops}
        for op in self._tape.ops:
            found[op.stage].update(self._tape.tensors[name].like for name in op.accumulates)
        return found

    @cached_property
    def _number(self) -> dict[str, int]:
        """By name, which tensor it is, in the order of registration."""
        return {name: number for number, name in enumerate(self._tape.tensors)}

    def _fulls(self) -> Iterator[Reduction]:
        """All-reduces of what stays full."""
        over: dict[str, list[str]] = {}
        for parameter in self._parameters(lambda name: name not in self._shards.of):
            partition = self._tape.summing(parameter)
            if partition:
                over.setdefault(partition, []).append(parameter)
        for partition, parameters in over.items():
            for bucket, members in self._buckets(parameters).items():
                gradients = [self._tape.tensors[f'd:{name}'] for name in members]
                # The sum over tensor ranks before a scatter has the bucket's name already.
                own = f'{bucket}.full' if partition == TENSOR and self._shards.of else bucket
                op = self._all_reduce(own, partition, gradients, members[0])
                yield Reduction(gradients=op.reads, ops=(op,))

    def _scatters(self) -> Iterator[Reduction]:
        """Reduce-scatters of what is sharded, each behind the sum over tensor ranks that it needs."""
        if not self._shards.of:
            return
        sliced, summed = self._shards.choice.sharded, partial_gradients(self._tape)
        # Sharded gradients are scattered stage by stage, behind each micro-batch's backward; else once, at the end.
        stages = self._stages if sliced else [-1]
        for stage in stages:
            parameters = self._parameters(lambda name: name in self._shards.of, stage)
            apart = self._shards.by_partition(parameters).values()
            for bucket, members in (pair for mine in apart for pair in self._buckets(mine, stage).items()):
                shards = self._shards.each(members)
                partial = {
                    name: full
                    for shard in shards
                    for name, full in zip(shard.parameters, shard.fulls, strict=True)
                    if name in summed
                }
                sums = partial and self._tape.mesh.tensor > 1
                ops = (self._all_reduce(bucket, TENSOR, list(partial.values()), next(iter(partial))),) if sums else ()
                scatter = self._reduce_scatter(bucket, shards, sliced=sliced)
                yield Reduction(gradients=scatter.reads, ops=(*ops, scatter), stage=stage)

    def _repeats(self) -> Iterator[Reduction]:
        """All-reduces of shards over the shard groups."""
        parameters = self._parameters(lambda name: name in self._shards.of and bool(self._shards.of[name].replica))
        for mine in self._shards.by_partition(parameters).values():
            for bucket, members in self._buckets(mine).items():
                sharded = [shard.gradient for shard in self._shards.each(members)]
                op = self._all_reduce(bucket, self._shards.of[members[0]].replica, sharded, members[0])
                yield Reduction(gradients=op.reads, ops=(op,))

    def _parameters(self, wanted: Callable[[str], bool], stage: int = -1) -> list[str]:
        """Those whose gradients this rank adds to, in the order of the forward."""
        mine = set().union(*(self._added[one] for one in self._stages if stage in (-1, one)))
        # In the order of registration, that of the forward: fusion counts in it.
        return sorted(filter(wanted, mine), key=self._number.__getitem__)

    def _buckets(self, parameters: Sequence[str], stage: int = -1) -> dict[str, list[str]]:
        if stage < 0 and self._plan.fusion == 'stage':
            of = dict.fromkeys(sorted(self._adds[name] for name in parameters))
            each = [self._buckets([name for name in parameters if self._adds[name] == one], one) for one in of]
            return {bucket: members for found in each for bucket, members in found.items()}
        size = message_sizes(self._tape, self._plan, self._shards, parameters)
        several = stage >= 0 and self._tape.mesh.stages > 1
        scope = f'stage{stage}.' if several else self._scope
        return self._shards.with_flat(fuse(parameters, size, self._plan, self._ids, scope))

    def _all_reduce(self, bucket: str, partition: str, gradients: Sequence[Tensor], first: str) -> OpClass:
        """Arguments: ``first``, the parameter that the first gradient is of."""
        names = tuple(tensor.name for tensor in gradients)
        return OpClass(
            name=f'{bucket}.gradients.{partition}.all_reduce.W',
            kind='collective',
            operator='all_reduce',
            phase='W',
            bytes=size_of(self._tape, gradients),
            dtype=gradients[0].dtype,
            partition=partition,
            reduce='sum',
            reads=names,
            writes=names,
            stage=self._adds[first],
        )

    def _reduce_scatter(self, bucket: str, shards: Sequence[Shard], *, sliced: bool) -> OpClass:
        """Arguments: ``sliced``: added to the shards of the micro-batches before; that addition is not priced."""
        fulls = [full for shard in shards for full in shard.fulls]
        names = tuple(tensor.name for tensor in fulls)
        sharded = tuple(shard.gradient.name for shard in shards)
        return OpClass(
            name=f'{bucket}.gradients.{shards[0].partition}.reduce_scatter.W',
            kind='collective',
            operator='reduce_scatter',
            phase='W',
            bytes=message_bytes(self._tape, [shard.gradient for shard in shards]),
            dtype=fulls[0].dtype,
            partition=shards[0].partition,
            reduce='sum',
            reads=names,
            writes=() if sliced else sharded,
            accumulates=sharded if sliced else (),
            frees=names,
            attributes=split_dims(shards),
            stage=self._adds[shards[0].parameters[0]],
        )


def _place(order: Issued, reductions: Sequence[Reduction], *, end: bool) -> Issued:
    """Issue every reduction behind the last writer of its gradients; with ``end`` behind the backward."""
    if not reductions:
        return order
    # Asked for only where something is reduced once a step.
    final, last = _last(order) if any(one.stage < 0 for one in reductions) else (0, {})
    often = {name for reduction in reductions if reduction.stage >= 0 for name in reduction.gradients}
    written = {run: _written(run, often) for run in order.runs} if often else {}
    behind: dict[int, list[Issue]] = {}
    for reduction in reductions:
        if reduction.stage >= 0:
            places = _for_every_micro_batch(order, reduction, written)
        else:
            places = {0: (final, max(last[name] for name in reduction.gradients))}
        for micro_batch, (at, ready) in places.items():
            index = max(at, ready) if end else ready
            behind.setdefault(index + 1, []).extend(Issue(op, micro_batch, late=end) for op in reduction.ops)
    return order.inserted(behind)


def _last(order: Issued) -> tuple[int, dict[str, int]]:
    """The end of the backward, the last computation that is none of the forward's; and by tensor its last writer."""
    final, last = 0, dict[str, int]()
    for run, begin in order.last_start.items():
        offset, writers = _last_in(run)
        final = max(final, begin + offset)
        for name, at in writers.items():
            # Asked of every tensor that any op writes: `max` would take twice as long.
            if begin + at >= last.get(name, 0):
                last[name] = begin + at
    return final, last


def _last_in(run: Run) -> tuple[int, dict[str, int]]:
    """The same of a run, by its own offsets; ``_NEVER`` where it has no backward."""
    final, last = _NEVER, dict[str, int]()
    for offset, (op, *_) in enumerate(run.issues):
        if op.kind == 'compute' and op.phase != 'F':
            final = offset
        for name in op.accumulates:
            last[name] = offset
        for name in op.writes:
            last[name] = offset
    return final, last


def _for_every_micro_batch(order: Issued, reduction: Reduction, written: Mapping[Run, _Written]) -> dict[int, _Places]:
    """For every micro-batch, in order: the last op of the stage's backward, and the last writer of the gradients."""
    places = {run: _places(written[run], reduction) for run in order.runs}
    found: dict[int, _Places] = {}
    for block, start in zip(order.blocks, order.start[:-1], strict=True):
        for part, (at, ready) in places[block.run].items():
            before = found.get(block.micro_batches[part], (0, 0))
            found[block.micro_batches[part]] = (max(before[0], at + start), max(before[1], ready + start))
    return found


def _places(written: _Written, reduction: Reduction) -> dict[int, _Places]:
    """The same within a run, by part."""
    return {
        part: (at, max(written.last.get((name, stage, part), _NEVER) for name in reduction.gradients))
        for (stage, part), at in written.backward.items()
        if stage == reduction.stage
    }


def _written(run: Run, names: Collection[str]) -> _Written:
    # A run may hold a stage's part without any backward of it, as a forward.
    found = _Written(dict.fromkeys([(op.stage, part) for op, part, _, _ in run.issues], _NEVER), {})
    for offset, (op, part, _, _) in enumerate(run.issues):
        # No forward adds to a gradient.
        if op.phase == 'F':
            continue
        if op.kind == 'compute':
            found.backward[op.stage, part] = offset
        for name in (*op.accumulates, *op.writes) if op.accumulates else op.writes:
            if name in names:
                found.last[name, op.stage, part] = offset
    return found
