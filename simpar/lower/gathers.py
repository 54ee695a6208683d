"""Gathers of sharded weights: when each is issued, and when what it gathered is freed.

On use, a bucket of weights is gathered before its first reader and freed behind its last one. That is done once a step,
or once for every forward and once for every backward of a micro-batch. One gather serves all copies. An op of no work,
``reshard`` (torch's word), frees, as the last reader is one of several copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from simpar.lower.fusion import fuse
from simpar.lower.issue import Issue, Issued, Run
from simpar.lower.optimizer_parallel import Shard, Shards, message_bytes, message_sizes, split_dims
from simpar.lower.recompute import is_recomputed
from simpar.lower.tape import Tape
from simpar.lower.update_shards import layer_of
from simpar.plan import Plan
from simpar.program import OpClass
from simpar.program.op import Phase

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


@dataclass(slots=True, eq=False)
class _Touched:
    """What uses a bucket.

    Arguments: ``read``, by gathered weight its bucket; ``added``, by full gradient, of shards that are packed, whose
    buckets have these ``packed`` members.
    """

    read: dict[str, _Key] = field(default_factory=dict)
    added: dict[str, _Key] = field(default_factory=dict)
    packed: dict[_Key, frozenset[str]] = field(default_factory=dict)


class Gathers:
    """The gathers of one pipeline rank's weights."""

    def __init__(self, tape: Tape, plan: Plan, shards: Shards, ids: Mapping[str, int]) -> None:
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
        for index, use in enumerate(uses):
            # Not before its bucket's last use has been freed: the buffer is written anew.
            at = max(self._issued(uses, index), last_of.get((use.bucket, use.partition), 0))
            before.setdefault(at, []).append(Issue(self._once(self._gather, use, use.label), use.label[1], late=True))
            behind.setdefault(use.last + 1, []).append(Issue(self._once(self._reshard, use, use.until), use.until[1]))
            last_of[use.bucket, use.partition] = use.last + 1
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
        found: dict[_Key, list[str]] = {}
        for stage, names in stages.items():
            found |= self._fused(list(names), f'stage{stage}.' if several else '')
        return found

    def _fused(self, parameters: Sequence[str], scope: str) -> dict[_Key, list[str]]:
        size = message_sizes(self._tape, self._plan, self._shards, parameters)
        return {
            (bucket, partition): members
            for partition, mine in self._shards.by_partition(parameters).items()
            for bucket, members in self._shards.with_flat(fuse(mine, size, self._plan, self._ids, scope)).items()
        }

    def _uses(self, order: Issued) -> dict[_Key, dict[Label | None, _Use]]:
        """The uses of every bucket by what they are for: a label, or all that a step does."""
        touched = _Touched()
        touching = {run: self._touching(run) for run in order.runs}
        for key, members in self._buckets(order, touching).items():
            shards = self._shards.each(members)
            touched.read.update((name, key) for shard in shards for name in shard.gathered)
            # Systems whose shards are packed gather a layer for its backward, whatever that reads of it.
            if any(shard.packed for shard in shards):
                touched.packed[key] = frozenset(members)
                touched.added.update((one.name, key) for shard in shards for one in shard.fulls)
        within = {run: self._within(touching[run], touched) for run in order.runs}
        found: dict[_Key, dict[Label | None, _Use]] = {}
        for block, start in zip(order.blocks, order.start[:-1], strict=True):
            for use in within[block.run]:
                mine = _moved(use, start, block.micro_batches)
                spans = found.setdefault((use.bucket, use.partition), {})
                # on-use-twice has one use a label, on-use one for all that a step does.
                span = mine.label if self._shards.choice.gather == 'on-use-twice' else None
                spans[span] = _joined(spans[span], mine) if span in spans else mine
        return found

    def _within(self, touching: _Touching, touched: _Touched) -> list[_Use]:
        """The uses of buckets in a run, by its own offsets and parts; one for each label."""
        first: dict[tuple[_Key, Label], int] = {}
        last: dict[tuple[_Key, Label], int] = {}
        members: dict[tuple[_Key, Label], set[str]] = {}
        keys = touched.added | touched.read
        for offset, label, names in touching:
            for name in names:
                key = keys.get(name)
                if key is not None:
                    use = key, label
                    first.setdefault(use, offset)
                    last[use] = offset
                    members.setdefault(use, set()).update(touched.packed.get(key) or (self._gathered[name],))
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

    def _of(self, use: _Use) -> tuple[Shard, ...]:
        return self._shards.each(sorted(use.members & self._number.keys(), key=self._number.__getitem__))

    def _message(self, bucket: str, phase: Phase, shards: Sequence[Shard], stage: int) -> OpClass:
        names = tuple(shard.weight.name for shard in shards)
        return OpClass(
            name=self._unique(f'{bucket}.weights.{shards[0].partition}.all_gather.{phase}', names),
            kind='collective',
            operator='all_gather',
            phase=phase,
            bytes=message_bytes(self._tape, [shard.weight for shard in shards]),
            dtype=shards[0].weight.dtype,
            partition=shards[0].partition,
            reads=names,
            writes=tuple(name for shard in shards for name in shard.gathered),
            # After the update the view ends; a shard that is gathered on use stays.
            frees=names if phase == 'U' else (),
            attributes=split_dims(shards),
            stage=stage,
        )

    def _reshard(self, use: _Use) -> OpClass:
        stage, _, phase = use.until
        names = tuple(name for shard in self._of(use) for name in shard.gathered)
        name = self._unique(f'{use.bucket}.weights.reshard.{phase}', names)
        return OpClass(
            name=name, kind='compute', operator='reshard', phase=phase, dtype=self._tape.dtype, frees=names, stage=stage
        )

    def _unique(self, name: str, members: tuple[str, ...]) -> str:
        """The name, or another where it is taken for other members of the bucket."""
        found, count = name, 0
        # Op classes are found by name, and a bucket may be gathered for some of its members.
        while self._named.setdefault(found, members) != members:
            count += 1
            found = f'{name}.{count}'
        return found

    # after the update

    def after_update(self, ops: tuple[OpClass, ...], scope: str) -> tuple[Issue, ...]:
        """Updates of shards between the views that take them out of full weights and the gathers behind.

        Gathers are issued in the order of the next forward, so that it need not wait for all of them.
        """
        if self._shards.gathers_on_use or not self._shards.of:
            return tuple(map(Issue, ops))
        views = {shard.weight.name: shard.parameters for shard in self._shards.all}
        found: list[Issue] = []
        updated: dict[str, int] = {}
        for op in ops:
            mine = [name for view in op.writes if view in views for name in views[view]]
            if mine:
                apart = self._shards.by_partition(mine).values()
                found += [Issue(self._view(names, op.stage)) for names in apart]
                updated |= dict.fromkeys(mine, op.stage)
            found.append(Issue(op))
        parameters = [name for name in self._shards.of if name in updated]
        for (bucket, _), members in self._fused_by_stage(parameters, updated, scope).items():
            found.append(Issue(self._message(bucket, 'U', self._shards.each(members), updated[members[0]])))
        return tuple(found)

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
        shards, reads = self._shards.each(parameters), tuple(parameters)
        return OpClass(
            name=self._unique(f'{layer_of(parameters[0])}.piece.U', reads),
            kind='compute',
            operator='piece',
            phase='U',
            dtype=self._tape.dtype,
            reads=reads,
            writes=tuple(shard.weight.name for shard in shards),
            attributes={**split_dims(shards), 'partition': shards[0].partition},
            stage=stage,
        )


def _label(issue: Issue) -> Label:
    # What is recomputed reads weights in the backward.
    forward = issue.op.phase == 'F' and not is_recomputed(issue.op)
    return issue.op.stage, issue.micro_batch, 'F' if forward else 'I'


def _apart(uses: Iterable[_Use]) -> list[_Use]:
    """Uses of a bucket in order; those that run into one another are one."""
    found: list[_Use] = []
    for use in sorted(uses):
        if found and use.first <= found[-1].last:
            found[-1] = _joined(found[-1], use)
        else:
            found.append(use)
    return found


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
    return use.first, use.last, _by_number(use.bucket), use.partition


# Every use of a bucket asks, in every row of a sweep.
@lru_cache(maxsize=2**12)
def _by_number(bucket: str) -> tuple[int | str, ...]:
    """A name split by its numbers, so that every second part is one."""
    return tuple(int(part) if at % 2 else part for at, part in enumerate(re.split(r'(\d+)', bucket)))


def _joined(one: _Use, other: _Use) -> _Use:
    """Two uses as one; ``other`` begins later."""
    until = other.until if other.last >= one.last else one.until
    members = one.members | other.members
    return one._replace(last=max(one.last, other.last), members=members, until=until)
