"""Sums of gradients over replicas, each message as soon as the last op that adds to one of its gradients is issued.

A gradient that stays whole is all-reduced. One that is cut is reduce-scattered over the shard group, and its piece
all-reduced over the groups; where it is also a partial sum over the tensor ranks, that sum comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simpar.lower.fusion import fuse
from simpar.lower.issue import Issue
from simpar.lower.mesh import TENSOR
from simpar.lower.optimizer_parallel import Shard, Shards, cut_dims, message_bytes, message_size, size_of
from simpar.lower.tape import Tape
from simpar.plan import Plan
from simpar.program import OpClass, Tensor


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
    """The sums of one pipeline rank's gradients."""

    def __init__(self, tape: Tape, plan: Plan, shards: Shards, ids: Mapping[str, int], place: int) -> None:
        self._tape = tape
        self._plan = plan
        self._shards = shards
        self._ids = ids
        self._mine = [op for op in tape.ops if tape.mesh.pipeline_rank(op.stage) == place]
        self._scope = f'pipeline{place}.' if tape.mesh.pipeline > 1 else ''
        self._adds = {tape.tensors[name].like: op.stage for op in tape.ops for name in op.accumulates}

    def place(self, order: Sequence[Issue]) -> list[Issue]:
        """The ops of the rank with the reductions among them."""
        end = self._plan.reduce_gradients == 'end'
        placed = _place(order, [*self._wholes(), *self._scatters()], end=end)
        return _place(placed, list(self._repeats()), end=end)

    def _wholes(self) -> Iterator[Reduction]:
        """All-reduces of what stays whole."""
        over: dict[str, list[str]] = {}
        for parameter in self._parameters(lambda name: name not in self._shards.of):
            partition = self._tape.summing(parameter)
            if partition:
                over.setdefault(partition, []).append(parameter)
        for partition, parameters in over.items():
            for bucket, members in self._buckets(parameters).items():
                gradients = [self._tape.tensors[f'd:{name}'] for name in members]
                op = self._all_reduce(bucket, partition, gradients, members[0])
                yield Reduction(gradients=op.reads, ops=(op,))

    def _scatters(self) -> Iterator[Reduction]:
        """Reduce-scatters of what is cut, each behind the sum over tensor ranks that it needs."""
        sliced = self._shards.choice.sharded
        stages = sorted({op.stage for op in self._mine}) if sliced else [-1]
        for stage in stages:
            parameters = self._parameters(lambda name: name in self._shards.of, stage)
            apart = self._shards.by_partition(parameters).values()
            for bucket, members in (pair for mine in apart for pair in self._buckets(mine, stage).items()):
                shards = self._shards.each(members)
                partial = {
                    name: full
                    for shard in shards
                    for name, full in zip(shard.parameters, shard.wholes, strict=True)
                    if name in self._tape.partial_gradients
                }
                sums = partial and self._tape.mesh.tensor > 1
                ops = (self._all_reduce(bucket, TENSOR, list(partial.values()), next(iter(partial))),) if sums else ()
                scatter = self._reduce_scatter(bucket, shards, sliced=sliced)
                yield Reduction(gradients=scatter.reads, ops=(*ops, scatter), stage=stage)

    def _repeats(self) -> Iterator[Reduction]:
        """All-reduces of pieces over the shard groups."""
        parameters = self._parameters(lambda name: name in self._shards.of and bool(self._shards.of[name].replica))
        for mine in self._shards.by_partition(parameters).values():
            for bucket, members in self._buckets(mine).items():
                pieces = [shard.gradient for shard in self._shards.each(members)]
                op = self._all_reduce(bucket, self._shards.of[members[0]].replica, pieces, members[0])
                yield Reduction(gradients=op.reads, ops=(op,))

    def _parameters(self, wanted: Callable[[str], bool], stage: int = -1) -> list[str]:
        """Those whose gradients this rank adds to, in the order of the forward."""
        mine = {
            self._tape.tensors[name].like for op in self._mine if stage in (-1, op.stage) for name in op.accumulates
        }
        return [name for name in self._tape.tensors if name in mine and wanted(name)]

    def _buckets(self, parameters: Sequence[str], stage: int = -1) -> dict[str, list[str]]:
        size = {name: message_size(self._tape, self._plan, self._shards, name) for name in parameters}
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
        """Arguments: ``sliced``: added to the pieces of the micro-batches before; that addition is not priced."""
        wholes = [full for shard in shards for full in shard.wholes]
        names = tuple(tensor.name for tensor in wholes)
        pieces = tuple(shard.gradient.name for shard in shards)
        return OpClass(
            name=f'{bucket}.gradients.{shards[0].partition}.reduce_scatter.W',
            kind='collective',
            operator='reduce_scatter',
            phase='W',
            bytes=message_bytes(self._tape, [shard.gradient for shard in shards]),
            dtype=wholes[0].dtype,
            partition=shards[0].partition,
            reduce='sum',
            reads=names,
            writes=() if sliced else pieces,
            accumulates=pieces if sliced else (),
            frees=names,
            attributes=cut_dims(shards),
            stage=self._adds[shards[0].parameters[0]],
        )


def _place(order: Sequence[Issue], reductions: Sequence[Reduction], *, end: bool) -> list[Issue]:
    """Issue every reduction behind the last writer of its gradients; with ``end`` behind the backward."""
    last: dict[tuple[str, int, int], int] = {}
    batches: dict[int, dict[int, int]] = {}
    for index, issue in enumerate(order):
        for name in (*issue.op.accumulates, *issue.op.writes):
            last[name, -1, 0] = last[name, issue.op.stage, issue.micro_batch] = index
        if issue.op.kind == 'compute' and issue.op.phase != 'F':
            batches.setdefault(issue.op.stage, {})[issue.micro_batch] = index
    final = max((index for ends in batches.values() for index in ends.values()), default=0)
    behind: dict[int, list[Issue]] = {}
    for reduction in reductions:
        ends = batches[reduction.stage] if reduction.stage >= 0 else {0: final}
        for micro_batch, at in ends.items():
            ready = max(last[name, reduction.stage, micro_batch] for name in reduction.gradients)
            index = max(at, ready) if end else ready
            behind.setdefault(index, []).extend(Issue(op, micro_batch, late=end) for op in reduction.ops)
    placed = list(order)
    for index, found in sorted(behind.items(), reverse=True):
        placed[index + 1 : index + 1] = found
    return placed
