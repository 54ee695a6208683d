"""Sums of gradients over replicas, each message as soon as the last op that adds to one of its gradients is issued.

A gradient that stays full is all-reduced. One that is sharded is reduce-scattered over the shard group, and its shard
all-reduced over the groups; where it is also a partial sum over the tensor ranks, that sum comes first.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from simpar.layout import operators, replicated
from simpar.lower.issue import TENSOR, Issue, Issued, Run
from simpar.lower.passes import optimizer_parallel, recompute
from simpar.lower.tape import Tape, Value, layer_of, summed
from simpar.plans import Plan
from simpar.program import COLLECTIVES, OpClass, Phase, Split, Tensor

# Inputs of a full step, gathered once and then split on every rank, as MindSpore's compiler does.
#
# Where the data set is sharded over the ranks, a rank has a slice of the step's batch, and micro-batches and copies are
# taken from the gathered one. Does not model: copies of micro-batches without a pipeline, each of which the compiler
# would gather by itself; here, too, all are gathered at once.


def gathered_input(tape: Tape, name: str, shape: tuple[int, ...], drawn: str, dtype: str) -> Value | None:
    """Register an input that is gathered in full; None where no ranks can shard a step's batch.

    Arguments: ``shape`` of a micro-batch.
    """
    full = (shape[0] * tape.mesh.micro_batches, *shape[1:])
    slices = max(count for count in range(1, tape.world + 1) if tape.world % count == 0 == full[0] % count)
    if slices == 1:
        return None
    counts = (slices, *(1,) * (len(shape) - 1))
    sliced = operators.elementwise(name, full).sharded((counts,), tape.world).output
    own = Value(f'{name}.step', full, sliced, needs_gradient=False)
    every = Value(f'{name}.whole', full, replicated(tape.world, len(shape)), needs_gradient=False)
    # ``like`` has it drawn as the micro-batches would be, so that every plan trains on the same samples.
    tape.register(own, 'input', dtype, batch_dim=None, initial=drawn, like=name)
    tape.register(every, 'gathered', dtype, batch_dim=None)
    tape.emit_collective('all_gather', 'F', sliced.dims[0], own.name, every.name, {'dim': 0})
    tape.once.append(tape.ops.pop())
    x = tape.register(Value(name, shape, replicated(tape.world, len(shape)), needs_gradient=False), dtype=dtype)
    attributes = {'micro_batches': tape.mesh.micro_batches, 'copies': tape.mesh.copies}
    moved = 2.0 * tape.held_bytes(name)
    tape.emit_compute(f'{name}.take', 'take', 'F', [every.name], [name], moved=moved, attributes={**attributes})
    return x


def once_a_step(tape: Tape, order: Issued, place: int, ops: Sequence[OpClass], *, first: bool) -> Issued:
    """The ops of a pipeline rank with those that a step does once; results of these end with their last readers.

    Arguments: ``ops`` of all ranks: ``first`` of all, else each before the first reader of what it makes.
    """
    mine = [op for op in ops if tape.mesh.pipeline_rank(op.stage) == place]
    readers = order.readers({name for op in mine for name in op.writes}) if mine else {}
    at: dict[int, list[Issue]] = {}
    for op in mine:
        begins, ends = zip(*(readers[name] for name in op.writes), strict=True)
        name = f'{op.writes[0] if first else f"{op.reads[0]}.cast"}.reshard.F'
        end = OpClass(name, 'compute', 'reshard', 'F', dtype=op.dtype, frees=op.writes, stage=op.stage)
        # What ends goes before what begins, or both would be in memory.
        at.setdefault(max(ends) + 1, []).insert(0, Issue(end))
        at.setdefault(0 if first else min(begins), []).append(Issue(op))
    return order.inserted(at) if at else order


# Gathers of sharded weights: when each is issued, and when what it gathered is freed.
#
# On use, a bucket of weights is gathered before its first reader and freed behind its last one. That is done once a
# step, or once for every forward and once for every backward of a micro-batch. One gather serves all copies. An op of
# no work, ``reshard`` (torch's word), frees, as the last reader is one of several copies.
#
# With ``second_shards`` neighbours share out what they gathered first in a step, before it is freed; all further
# gathers of the step are among them (hpZ of Wang et al. 2023, "ZeRO++"). Second shards end with the step, as in
# deepspeedai/DeepSpeed edaa7221: partition_parameters.py, ``_partition_param_sec``; stage3.py,
# ``invalidate_secondary_tensor``.


_Key = tuple[str, str]
"""A bucket, and the partition that its members are sharded over."""
Label = tuple[int, int, Phase]
"""Stage, micro-batch, and F or I: forward or backward."""
_Touching = list[tuple[int, Label, list[str]]]
"""By place and label the ops of a run that touch gathered weights or full gradients, with these."""


class _Use(NamedTuple):
    """What a bucket is gathered for: from the first to the last reader's place in the issue order."""

    first: int
    last: int
    bucket: str
    partition: str
    members: frozenset[str]
    label: Label
    until: Label


class Gathers:
    """The gathers of one pipeline rank's weights."""

    def __init__(self, tape: Tape, plan: Plan, shards: optimizer_parallel.Shards, ids: Mapping[str, int]) -> None:
        self._tape = tape
        self._plan = plan
        self._shards = shards
        self._ids = ids
        # By gathered weight its parameter.
        self._gathered = {
            gathered: name
            for shard in shards.all
            for gathered, name in zip(shard.gathered, shard.parameters, strict=True)
        }
        self._number = {name: number for number, name in enumerate(shards.of)}
        # What gathers may be for: weights and full gradients.
        self._wanted = self._gathered.keys() | {full.name for shard in shards.all for full in shard.fulls}
        self._named: dict[str, tuple[str, ...]] = {}
        # Ops by what they are for: many micro-batches gather the same.
        self._ops: dict[tuple[object, ...], OpClass] = {}

    # on use

    def on_use(self, order: Issued) -> Issued:
        """The ops of a rank with the gathers before what reads them, and what frees them."""
        if not self._shards.gathers_on_use or not self._shards.of:
            return order
        # In issue order: prefetching counts gathers, whatever bucket they are of.
        uses = sorted((use for spans in self._uses(order).values() for use in _apart(spans.values())), key=_in_order)
        before: dict[int, list[Issue]] = {}
        behind: dict[int, list[Issue]] = {}
        last_of: dict[_Key, int] = {}
        often = Counter((use.bucket, use.partition) for use in uses)
        for index, use in enumerate(uses):
            key = use.bucket, use.partition
            # Not before its bucket's last use has been freed: the buffer is written anew.
            at = max(self._issued(uses, index), last_of.get(key, 0))
            gather = self._gather if key not in last_of or not self._plan.second_shards else self._gather_near
            before.setdefault(at, []).append(Issue(self._once(gather, use, use.label), use.label[1], late=True))
            ends = behind.setdefault(use.last + 1, [])
            if self._plan.second_shards and key not in last_of and often[key] > 1:
                ends.append(Issue(self._once(self._share_out, use, use.label), use.until[1]))
            ends.append(Issue(self._once(self._reshard, use, use.until), use.until[1]))
            last_of[key] = use.last + 1
        both = before.keys() | behind.keys()
        # At one place frees go before gathers, or both would be in memory.
        return order.inserted({index: behind.get(index, []) + before.get(index, []) for index in both})

    def _issued(self, uses: Sequence[_Use], index: int) -> int:
        """Before which op a gather is issued: its first reader, or earlier by as many gathers as are prefetched.

        Then it stands behind the last reader of the weights before those, whose memory is free by then. Where these are
        still in use at its own first reader, it stands before the first reader of the earliest prefetched weights.
        """
        ahead = self._plan.prefetch
        if not ahead:
            return uses[index].first
        if index <= ahead:
            return 0
        free = uses[index - ahead - 1].last + 1
        return free if free <= uses[index].first else uses[index - ahead].first

    def _buckets(self, order: Issued, touching: Mapping[Run, _Touching]) -> dict[_Key, list[str]]:
        """Parameters that are gathered together, by bucket.

        They are first used in the same stage, sharded over the same groups, and fused by the plan.
        """
        stages: dict[int, dict[str, None]] = {}
        seen: set[str] = set()
        for run in order.runs:
            for _, label, touched in touching[run]:
                for name in touched:
                    if name in self._gathered and name not in seen:
                        seen.add(name)
                        stages.setdefault(label[0], {})[self._gathered[name]] = None
        # A bucket is fused within its stage: weights of others are not wanted at the same time.
        several = self._tape.mesh.stages > 1
        buckets: dict[_Key, list[str]] = {}
        for stage, names in stages.items():
            buckets |= self._fused(list(names), f'stage{stage}.' if several else '')
        return buckets

    def _fused(self, parameters: Sequence[str], scope: str) -> dict[_Key, list[str]]:
        size = optimizer_parallel.message_sizes(self._tape, self._plan, self._shards, parameters)
        return {
            (bucket, partition): members
            for partition, mine in self._shards.by_partition(parameters).items()
            for bucket, members in self._shards.with_flat(
                optimizer_parallel.fuse(mine, size, self._plan, self._ids, scope)
            ).items()
        }

    def _uses(self, order: Issued) -> dict[_Key, dict[Label | None, _Use]]:
        """The uses of every bucket by what they are for: a label, or all that a step does."""
        keys, packed = dict[str, _Key](), dict[_Key, frozenset[str]]()
        touching = {run: self._touching(run) for run in order.runs}
        for key, members in self._buckets(order, touching).items():
            shards = self._shards.each(members)
            keys.update((name, key) for shard in shards for name in shard.gathered)
            # Systems whose shards are packed gather a layer for its backward, whatever that reads of it; so does FSDP2.
            whole = self._plan.fusion == 'fsdp' or self._plan.second_shards
            if whole or any(shard.packed for shard in shards):
                packed[key] = frozenset(members)
                keys.update((one.name, key) for shard in shards for one in shard.fulls)
        within = {run: self._within(touching[run], keys, packed) for run in order.runs}
        uses: dict[_Key, dict[Label | None, _Use]] = {}
        for block, start in zip(order.blocks, order.start[:-1], strict=True):
            for use in within[block.run]:
                mine = _moved(use, start, block.micro_batches)
                spans = uses.setdefault((use.bucket, use.partition), {})
                # on-use-twice has one use a label, on-use one for all that a step does.
                # The weights of FSDP2's root stay gathered from the forward to the backward.
                is_root = self._plan.fusion == 'fsdp' and use.bucket.endswith(f'bucket{optimizer_parallel.ROOT}')
                again = self._shards.choice.gather == 'on-use-twice' and not is_root
                span = mine.label if again else None
                spans[span] = _joined(spans[span], mine) if span in spans else mine
        return uses

    def _within(
        self, touching: _Touching, keys: Mapping[str, _Key], packed: Mapping[_Key, frozenset[str]]
    ) -> list[_Use]:
        """The uses of buckets in a run, by its own offsets and parts; one for each label.

        Arguments: ``keys``, the bucket of each gathered weight, and of full gradients where it is ``packed``: all of
        its members are gathered then, whatever is read of them.
        """
        first: dict[tuple[_Key, Label], int] = {}
        last: dict[tuple[_Key, Label], int] = {}
        members: dict[tuple[_Key, Label], set[str]] = {}
        for offset, label, names in touching:
            for name in names:
                key = keys.get(name)
                if key is not None:
                    use = key, label
                    first.setdefault(use, offset)
                    last[use] = offset
                    members.setdefault(use, set()).update(packed.get(key) or (self._gathered[name],))
        return [
            _Use(begin, last[use], *use[0], frozenset(members[use]), use[1], use[1]) for use, begin in first.items()
        ]

    def _touching(self, run: Run) -> _Touching:
        """The ops of a run that read gathered weights or add to full gradients, with these."""
        each = [[name for name in (*op.reads, *op.accumulates) if name in self._wanted] for op, *_ in run.issues]
        rows = zip(run.issues, each, strict=True)
        return [(place, _label(issue), names) for place, (issue, names) in enumerate(rows) if names]

    def _once(self, make: Callable[[_Use], OpClass], use: _Use, label: Label) -> OpClass:
        stage, _, phase = label
        key = make, use.bucket, use.partition, use.members, stage, phase
        if key not in self._ops:
            self._ops[key] = make(use)
        return self._ops[key]

    def _gather(self, use: _Use) -> OpClass:
        return self._message(use.bucket, use.label[2], self._of(use), stage=use.label[0])

    def _gather_near(self, use: _Use) -> OpClass:
        """The same of second shards."""
        return self._message(use.bucket, use.label[2], self._seconds(self._of(use)), stage=use.label[0])

    def _share_out(self, use: _Use) -> OpClass:
        """Neighbours keep their second shards of what is gathered, a copy of their own."""
        shards = self._seconds(self._of(use))
        reads, names = (tuple(name for shard in shards for name in shard.gathered), _weights(shards))
        name, kept = self._unique(f'{use.bucket}.weights.second.F', names), _sharded(self._tape, 'keep', reads, shards)
        size = 2 * optimizer_parallel.size_of(self._tape, [shard.weight for shard in shards])
        return replace(kept, name=name, phase='F', bytes=size, stage=use.label[0])

    def _seconds(self, shards: Sequence[optimizer_parallel.Shard]) -> list[optimizer_parallel.Shard]:
        """The second shards of some, with what they are put on the tape."""
        second_shards = []
        for shard in shards:
            near = optimizer_parallel.neighbours(self._tape, shard.partition, self._plan.second_shards)
            *before, last = shard.weight.splits
            splits = (*before, Split(last.dim, near))
            like = '' if shard.packed else shard.parameters[0]
            weight = replace(
                shard.weight, name=f'{shard.weight.name}.second', kind='gathered', splits=splits, initial='', like=like
            )
            self._tape.tensors.setdefault(weight.name, weight)
            second_shards.append(replace(shard, weight=weight, partition=near))
        return second_shards

    def ends(self, order: Issued, scope: str) -> tuple[Issue, ...]:
        """What frees second shards behind the updates, which make them old."""
        held = {name: op.stage for op in order.ops() if op.operator == 'keep' for name in op.writes}
        if not held:
            return ()
        name, stage = f'{scope}weights.second.reshard.U', min(held.values())
        end = OpClass(name, 'compute', 'reshard', 'U', dtype=self._tape.dtype, frees=tuple(held), stage=stage)
        return (Issue(end),)

    def _of(self, use: _Use) -> tuple[optimizer_parallel.Shard, ...]:
        return self._shards.each(sorted(use.members & self._number.keys(), key=self._number.__getitem__))

    def _message(self, bucket: str, phase: Phase, shards: Sequence[optimizer_parallel.Shard], stage: int) -> OpClass:
        names = _weights(shards)
        return replace(
            _message(self._tape, f'{bucket}.weights', 'all_gather', phase, shards, [one.weight for one in shards]),
            name=self._unique(f'{bucket}.weights.{shards[0].partition}.all_gather.{phase}', names),
            reads=names,
            writes=tuple(name for shard in shards for name in shard.gathered),
            # After the update the view ends; a shard that is gathered on use stays.
            frees=names if phase == 'U' else (),
            stage=stage,
        )

    def _reshard(self, use: _Use) -> OpClass:
        stage, _, phase = use.until
        names = tuple(name for shard in self._of(use) for name in shard.gathered)
        name = self._unique(f'{use.bucket}.weights.reshard.{phase}', names)
        return OpClass(name, 'compute', 'reshard', phase, dtype=self._tape.dtype, frees=names, stage=stage)

    def _unique(self, name: str, members: tuple[str, ...]) -> str:
        """The name, or another where it is taken for other members of the bucket."""
        candidate, count = name, 0
        # Op classes are found by name, and a bucket may be gathered for some of its members.
        while self._named.setdefault(candidate, members) != members:
            count += 1
            candidate = f'{name}.{count}'
        return candidate

    # after the update

    def after_update(self, ops: tuple[OpClass, ...], scope: str) -> tuple[Issue, ...]:
        """Updates of shards between the views that take them out of full weights and the gathers behind.

        Gathers are issued in the order of the next forward, so that it need not wait for all of them.
        """
        if self._shards.gathers_on_use or not self._shards.of:
            return tuple(map(Issue, ops))
        views = {shard.weight.name: shard.parameters for shard in self._shards.all}
        issues: list[Issue] = []
        updated: dict[str, int] = {}
        for op in ops:
            mine = [name for view in op.writes if view in views for name in views[view]]
            if mine:
                apart = self._shards.by_partition(mine).values()
                issues += [Issue(self._view(names, op.stage)) for names in apart]
                updated |= dict.fromkeys(mine, op.stage)
            issues.append(Issue(op))
        parameters = [name for name in self._shards.of if name in updated]
        for (bucket, _), members in self._fused_by_stage(parameters, updated, scope).items():
            issues.append(Issue(self._message(bucket, 'U', self._shards.each(members), updated[members[0]])))
        return tuple(issues)

    def _fused_by_stage(
        self, parameters: Sequence[str], stage: Mapping[str, int], scope: str
    ) -> dict[_Key, list[str]]:  # fmt: skip
        """The buckets of a rank's weights, each of one stage where the plan fuses by stages."""
        if self._plan.fusion != 'stage' or self._tape.mesh.stages == 1:
            return self._fused(parameters, scope)
        each = [[name for name in parameters if stage[name] == one] for one in sorted(set(stage.values()))]
        return {
            key: members for names in each for key, members in self._fused(names, f'stage{stage[names[0]]}.').items()
        }

    def _view(self, parameters: Sequence[str], stage: int) -> OpClass:
        """This rank's shards of full weights: views, which cost nothing."""
        name, reads = self._unique(f'{layer_of(parameters[0])}.piece.U', tuple(parameters)), tuple(parameters)
        return replace(_sharded(self._tape, 'piece', reads, self._shards.each(parameters)), name=name, stage=stage)


def _weights(shards: Sequence[optimizer_parallel.Shard]) -> tuple[str, ...]:
    return tuple(shard.weight.name for shard in shards)


def _message(
    tape: Tape, name: str, operator: str, phase: Phase, shards: Sequence[optimizer_parallel.Shard],
    tensors: Sequence[Tensor],
) -> OpClass:  # fmt: skip
    """A collective of a shard group, with all but what it reads and writes. Arguments: ``tensors``, those sharded."""
    partition, attributes = shards[0].partition, optimizer_parallel.split_dims(shards)
    size, reduce = optimizer_parallel.message_bytes(tape, tensors), 'sum' if COLLECTIVES[operator].adds else ''
    return OpClass(f'{name}.{partition}.{operator}.{phase}', 'collective', operator, phase, bytes=size, reduce=reduce,
                   dtype=tensors[0].dtype, partition=partition, attributes=attributes)  # fmt: skip


def _sharded(tape: Tape, operator: str, reads: tuple[str, ...], shards: Sequence[optimizer_parallel.Shard]) -> OpClass:
    """This rank's shards of full weights, without a name."""
    attributes = {**optimizer_parallel.split_dims(shards), 'partition': shards[0].partition}
    return OpClass('', 'compute', operator, 'U', dtype=tape.dtype, reads=reads, writes=_weights(shards),
                   attributes=attributes)  # fmt: skip


def _label(issue: Issue) -> Label:
    # What is recomputed reads weights in the backward.
    forward = issue.op.phase == 'F' and not recompute.is_recomputed(issue.op)
    return issue.op.stage, issue.micro_batch, 'F' if forward else 'I'


def _apart(uses: Iterable[_Use]) -> list[_Use]:
    """Uses of a bucket in order; those that run into one another are one."""
    disjoint: list[_Use] = []
    for use in sorted(uses):
        if disjoint and use.first <= disjoint[-1].last:
            disjoint[-1] = _joined(disjoint[-1], use)
        else:
            disjoint.append(use)
    return disjoint


def _moved(use: _Use, start: int, micro_batches: Sequence[int]) -> _Use:
    """A use in a run as one in its block, which starts at a place."""
    (stage, part, phase), (until, last, ends) = use.label, use.until
    # Every use of every block is moved: to make it anew takes half as long as to replace.
    return _Use(
        start + use.first, start + use.last, use.bucket, use.partition, use.members,
        (stage, micro_batches[part], phase), (until, micro_batches[last], ends),
    )  # fmt: skip


def _in_order(use: _Use) -> tuple[object, ...]:
    """Places in the issue order, then names with their numbers as numbers: bucket 99 stands before bucket 100."""
    # A name is split by its numbers, so that every second part is one.
    parts = tuple(int(part) if at % 2 else part for at, part in enumerate(re.split(r'(\d+)', use.bucket)))
    return use.first, use.last, parts, use.partition


def _joined(one: _Use, other: _Use) -> _Use:
    """Two uses as one; ``other`` begins later."""
    until = other.until if other.last >= one.last else one.until
    members = one.members | other.members
    return one._replace(last=max(one.last, other.last), members=members, until=until)


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

    def __init__(self, tape: Tape, plan: Plan, shards: optimizer_parallel.Shards, ids: Mapping[str, int]) -> None:
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

    def _stage_of(self, parameter: str) -> int:
        """The stage whose message has its gradient."""
        if self._plan.fusion != 'stage':
            return self._adds[parameter]
        # A tied weight is in a message of its first stage there, and of its last stage here: unlike ones, so that they
        # need names of their own.
        return min(stage for stage in self._stages if parameter in self._added[stage])

    @cached_property
    def _added(self) -> dict[int, set[str]]:
        """By stage, the parameters whose gradients it adds to."""
        by_stage: dict[int, set[str]] = {op.stage: set() for op in self._tape.ops}
        for op in self._tape.ops:
            by_stage[op.stage].update(self._tape.tensors[name].like for name in op.accumulates)
        return by_stage

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
        sliced, summed = self._shards.choice.sharded, optimizer_parallel.partial_gradients(self._tape)
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
            of = dict.fromkeys(sorted(map(self._stage_of, parameters)))
            each = [self._buckets([name for name in parameters if self._stage_of(name) == one], one) for one in of]
            return {bucket: members for buckets in each for bucket, members in buckets.items()}
        size = optimizer_parallel.message_sizes(self._tape, self._plan, self._shards, parameters)
        several = stage >= 0 and self._tape.mesh.stages > 1
        scope = f'stage{stage}.' if several else self._scope
        return self._shards.with_flat(optimizer_parallel.fuse(parameters, size, self._plan, self._ids, scope))

    def _all_reduce(self, bucket: str, partition: str, gradients: Sequence[Tensor], first: str) -> OpClass:
        """Arguments: ``first``, the parameter that the first gradient is of."""
        names = tuple(tensor.name for tensor in gradients)
        size, name = optimizer_parallel.size_of(self._tape, gradients), f'{bucket}.gradients.{partition}.all_reduce.W'
        return summed(name, 'W', partition, names, size, gradients[0].dtype, self._stage_of(first))

    def _reduce_scatter(self, bucket: str, shards: Sequence[optimizer_parallel.Shard], *, sliced: bool) -> OpClass:
        """Arguments: ``sliced``: added to the shards of the micro-batches before; that addition is not priced."""
        names = tuple(full.name for shard in shards for full in shard.fulls)
        sharded = tuple(shard.gradient.name for shard in shards)
        gradients = [shard.gradient for shard in shards]
        return replace(
            _message(self._tape, f'{bucket}.gradients', 'reduce_scatter', 'W', shards, gradients),
            reads=names,
            writes=() if sliced else sharded,
            accumulates=sharded if sliced else (),
            frees=names,
            stage=self._stage_of(shards[0].parameters[0]),
        )


def _place(order: Issued, reductions: Sequence[Reduction], *, end: bool) -> Issued:
    """Issue every reduction behind the last writer of its gradients; with ``end`` behind the backward."""
    if not reductions:
        return order
    once = {name for one in reductions if one.stage < 0 for name in one.gradients}
    final, last = _last(order, once) if once else (0, {})
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


def _last(order: Issued, names: set[str]) -> tuple[int, dict[str, int]]:
    """The end of the backward, the last that is computed but for forwards; and of some tensors the last writer."""
    final, last = 0, dict[str, int]()
    for run, begin in order.last_start.items():
        for at, (op, *_) in enumerate(run.issues, begin):
            if op.kind == 'compute' and op.phase != 'F':
                final = max(final, at)
            for name in names.intersection((*op.accumulates, *op.writes)):
                last[name] = max(at, last.get(name, 0))
    return final, last


def _for_every_micro_batch(order: Issued, reduction: Reduction, written: Mapping[Run, _Written]) -> dict[int, _Places]:
    """For every micro-batch, in order: the last op of the stage's backward, and the last writer of the gradients."""
    places = {run: _places(written[run], reduction) for run in order.runs}
    by_micro_batch: dict[int, _Places] = {}
    for block, start in zip(order.blocks, order.start[:-1], strict=True):
        for part, (at, ready) in places[block.run].items():
            before = by_micro_batch.get(block.micro_batches[part], (0, 0))
            by_micro_batch[block.micro_batches[part]] = (max(before[0], at + start), max(before[1], ready + start))
    return by_micro_batch


def _places(written: _Written, reduction: Reduction) -> dict[int, _Places]:
    """The same within a run, by part."""
    return {
        part: (at, max(written.last.get((name, stage, part), _NEVER) for name in reduction.gradients))
        for (stage, part), at in written.backward.items()
        if stage == reduction.stage
    }


def _written(run: Run, names: Collection[str]) -> _Written:
    # A run may hold a stage's part without any backward of it, as a forward.
    writers = _Written(dict.fromkeys([(op.stage, part) for op, part, _, _ in run.issues], _NEVER), {})
    for offset, (op, part, _, _) in enumerate(run.issues):
        # No forward adds to a gradient.
        if op.phase == 'F':
            continue
        if op.kind == 'compute':
            writers.backward[op.stage, part] = offset
        for name in (*op.accumulates, *op.writes) if op.accumulates else op.writes:
            if name in names:
                writers.last[name, op.stage, part] = offset
    return writers
