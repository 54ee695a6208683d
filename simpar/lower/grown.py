"""A program of few equal layers becomes one of many: what its middle layers do is done by more layers.

Rows of all tables are told by a key and a layer. What a row of a layer names stands at a distance from it: ``layer3``
reads what ``layer2`` wrote. The layers in the middle must be equal so, or ``NotPeriodic`` is raised. What is of no
layer names the first layers as they are, and the last ones as they are from the end.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Final

import numpy as np

from simpar.kept import Kept, Same
from simpar.lower.layered import NEAR, Table, rows_of, seen, seen_from
from simpar.lower.period import NONE, Flags, Ints, Layers, NotPeriodic, Rows
from simpar.lower.references import References
from simpar.lower.unlike import unlike_work
from simpar.program import Csr, OpClass, Program, Role, Tensor
from simpar.program.op import Attribute
from simpar.program.rows import LazyRows

_BUCKET: Final = re.compile(r'\bbucket(\d+)\b')
_COUNTED: Final = re.compile(r'^(layer\*\S* )\((\d+) of them\)')


def grown_program(small: Program, layers: Layers, *, by_size: bool) -> Program:
    """The program with more layers.

    Arguments: ``by_size``: messages are fused by their size, so that what is one message of all layers here may be
    several there.
    Raises ``NotPeriodic`` where it cannot be told.
    """
    told = tuple(small.tensors)
    # Programs of a sweep often have the same tensors, whatever they do with them.
    tensors, rows = _tensors.get((told, layers), lambda: _Tensors(told, layers).with_rows())
    names = _Names.of(small, tensors.table, by_size=by_size)
    ops = _Ops(small, tensors, names)
    ops.check()
    return small.replace(
        roles=tuple([_role(role, ops.table, layers) for role in small.roles]),
        tensors=rows,
        op_classes=LazyRows(ops.made, ops.stand, ops.table.like(ops.unlike), (rows, names.lists)),
        notes=tuple([_note(note, layers) for note in small.notes]),
    )


def _note(note: str, layers: Layers) -> str:
    """A note, which may count the parameters of all layers, as many in each."""

    def counted(found: re.Match[str]) -> str:
        each, rest = divmod(int(found.group(2)), layers.count)
        if rest:
            raise NotPeriodic('a note counts what not all layers have')
        return f'{found.group(1)}({each * layers.total} of them)'

    return _COUNTED.sub(counted, note)


@dataclass(frozen=True, eq=False)
class _Tensors:
    """The tensors as they are, and as they will be."""

    few: tuple[Tensor, ...]
    layers: Layers

    def with_rows(self) -> tuple[_Tensors, LazyRows[Tensor]]:
        """And the tensors to be, which are made by it; it does not hold them, or both would stay as garbage."""
        return self, LazyRows(self.made, self.stand, self.table.like(self.unlike))

    @cached_property
    def table(self) -> Table:
        """Their rows; raises ``NotPeriodic`` where a buffer is that of a numbered bucket."""
        names = tuple([tensor.name for tensor in self.few])
        return _tables.get((names, self.layers), lambda: _table(names, self.layers))

    @cached_property
    def unlike(self) -> Ints:
        """Those that are unlike the tensors of other layers."""
        layers = self.table.rows.layer.tolist()
        return self.table.unlike([_facts(*pair) for pair in zip(self.few, layers, strict=True)])

    def name(self, row: int) -> str:
        """The name of a tensor to be."""
        return self.table.renamed(self.stand(row).name, row)

    def stand(self, row: int) -> Tensor:
        """A tensor to be but for names."""
        return self.few[self.table.source.item(row)]

    def made(self, row: int) -> Tensor:
        """A tensor to be."""
        like, renamed = self.stand(row), self.table.renamed
        if not self.table.shift[row]:
            return like
        members = tuple([renamed(name, row) for name in like.members])
        return replace(like, name=renamed(like.name, row), like=renamed(like.like, row), members=members)


def _table(names: tuple[str, ...], layers: Layers) -> Table:
    """Arguments: ``names`` of tensors."""
    if any(map(_bucket, names)):
        raise NotPeriodic('the numbers of buckets are followed in ops alone')
    return Table.of(rows_of(map(seen, names)), layers)


_tensors: Final[Kept[tuple[tuple[Tensor, ...], Layers], tuple[_Tensors, LazyRows[Tensor]]]] = Kept(4)
_tables: Final[Kept[tuple[tuple[str, ...], Layers], Table]] = Kept(4)
"""Of tensors that differ in their shapes alone, as those of other copies of a micro-batch do."""


def _facts(tensor: Tensor, layer: int) -> tuple[object, ...]:
    """All of a tensor but its name, as seen from its layer."""
    belongs = seen_from(tensor.like, layer) if tensor.like else '', [seen_from(name, layer) for name in tensor.members]
    shape = tensor.shape, tensor.splits, tensor.partial, tensor.batch_dim
    return tensor.kind, tensor.dtype, tensor.initial, shape, belongs


# Rows of a sweep have the same names over and over.
@lru_cache(maxsize=2**12)
def _bucket(name: str) -> int | None:
    """The number of the bucket that a name tells; None: it tells none."""
    found = _BUCKET.search(name) if 'bucket' in name else None
    return int(found.group(1)) if found else None


@dataclass(frozen=True, eq=False)
class _Names:
    """The names of the op classes and of the tensors that these list, as they are, and as they will be.

    Nothing in it depends on the work of ops: programs that differ in the copies of a micro-batch share it.
    """

    ops: tuple[str, ...]
    named: Csr
    tensors: Table
    by_size: bool

    @staticmethod
    def of(small: Program, tensors: Table, *, by_size: bool) -> _Names:
        """Those of a program; what an equal one has found out is kept."""
        ops, named = tuple([op.name for op in small.op_classes]), small.named
        key = tensors, by_size, ops, named.start.tobytes(), named.item.tobytes()
        return _names.get(key, lambda: _Names(ops, named, tensors, by_size))

    @cached_property
    def table(self) -> Table:
        """The rows of the op classes."""
        told: list[tuple[object, int]] = list(map(seen, self.ops))
        for number in np.flatnonzero(self._number != NONE).tolist():
            if told[number][1] == NONE:
                told[number] = self._seen(number, self.ops[number])
        return Table.of(rows_of(told), self.tensors.layers)

    def _seen(self, number: int, name: str) -> tuple[object, int]:
        """The key of a bucket, and its layer: of several the first that it has something of."""
        begin, end = self._starts[4 * number], self._starts[4 * number + 4]
        touched = [self._touchable[one] for one in self.named.item[begin:end].tolist()]
        own = next((one for _, one in touched if one != NONE), NONE)
        if own == NONE:
            return name, NONE
        if len(set(touched)) != len({one for one, _ in touched}):
            if self.by_size:
                raise NotPeriodic(f'{name} has several layers, and with more of them might be several messages')
            return name, NONE
        # Buckets are alike where their members are, whatever their numbers.
        members = tuple([(one, layer - own if layer != NONE else None) for one, layer in touched])
        return (_BUCKET.sub('', name), members), own

    @cached_property
    def _starts(self) -> list[int]:
        start: list[int] = self.named.start.tolist()
        return start

    @cached_property
    def _touchable(self) -> list[tuple[int, int]]:
        """Of each tensor its key and layer."""
        rows = self.tensors.rows
        return list(zip(rows.key.tolist(), rows.layer.tolist(), strict=True))

    @cached_property
    def unlike(self) -> Ints:
        """Those that list other tensors than the ops of other layers."""
        return self._references.unlike

    @cached_property
    def _references(self) -> References:
        return References(self.table, self.tensors, self.named, NEAR)

    @cached_property
    def lists(self) -> Csr:
        """For each op to be four lists: the tensors to be that it reads, writes, accumulates to and frees."""
        return self._references.grown()

    @cached_property
    def of_all(self) -> list[int]:
        """The ops to be that list more tensors than those that they are like: ops of all layers."""
        before, now = (lists.count.reshape(-1, 4) for lists in (self.named, self.lists))
        found: list[int] = np.flatnonzero((now != before[self.table.source]).any(axis=1)).tolist()
        return found

    @cached_property
    def _number(self) -> Ints:
        """For each op as it is the number of its bucket; -1 for none."""
        found = np.full(len(self.ops), NONE, dtype=np.int64)
        for row, name in enumerate(self.ops):
            if 'bucket' in name and (number := _bucket(name)) is not None:
                found[row] = number
        return found

    @cached_property
    def numbers(self) -> Ints:
        """For each op to be the number of its bucket; -1 for none."""
        table, layers = self.table, self.tensors.layers
        number = self._number
        through = (number != NONE) & (table.rows.layer != NONE) & (table.place[table.rows.key, layers.cut] != NONE)
        if not through.any():
            return number[table.source]
        steps, away = (number - number[table.model])[through], (table.rows.layer - layers.cut)[through]
        step = int(steps[away == 1][0])
        alone = number[~through & (number != NONE)]
        low, high = number[through].min(), number[through].max()
        if (steps != step * away).any() or ((alone > low) & (alone < high)).any():
            raise NotPeriodic('the numbers of buckets do not rise evenly')
        moves = np.where(through[table.source], table.shift, layers.more * (number > low)[table.source])
        return np.where(number[table.source] == NONE, NONE, number[table.source] + step * moves)

    @cached_property
    def changed(self) -> Flags:
        """Shape [ops to be], whether each differs from what it is like."""
        names = self.lists.row[self.tensors.shift[self.lists.item] != 0]
        changed = np.bincount(names // 4, minlength=len(self.table.source)) > 0
        changed |= (self.table.shift != 0) | (self.numbers != self._number[self.table.source])
        changed[self.of_all] = True
        return changed


_names: Final[Kept[tuple[object, ...], _Names]] = Kept(4)


@dataclass(frozen=True, eq=False)
class _Ops:
    """The op classes as they are, and as they will be."""

    small: Program
    tensors: _Tensors
    names: _Names

    def check(self) -> None:
        """Find what cannot be told before any row is asked for."""
        _ = self._of_all, self.names.numbers, self.unlike, self.tensors.unlike

    @property
    def table(self) -> Table:
        """Their rows."""
        return self.names.table

    @cached_property
    def unlike(self) -> Ints:
        """Those that are unlike the ops of other layers."""
        found, named = unlike_work(self.small.op_classes, self.table), self.names.unlike
        return np.union1d(found, named) if len(found) else named

    @cached_property
    def _of_all(self) -> dict[int, OpClass]:
        """Ops of all layers, whose work grows with these, by their numbers as ops to be; with names as they are."""
        return {row: self._summed(row, self.table.source.item(row)) for row in self.names.of_all}

    def _summed(self, row: int, source: int) -> OpClass:
        op, small = self.small.op_classes[source], self.small
        field = 1 if op.operator == 'all_gather' else 0
        before = small.named.items(4 * source + field)
        # Tensors to be are as large as those that they are like, which are among those before.
        now = self.names.tensors.source[self.names.lists.own(4 * row + field)]
        often = np.bincount(now, minlength=len(small.tensors))[before].tolist()
        sizes = self._sizes_of(before)
        (held, had), (holds, has) = _total(sizes, [1] * len(before)), _total(sizes, often)
        each = op.flops / had if had else 0.0
        if op.bytes not in (0.0, held) or each != int(each) or sum(often) != len(now):
            raise NotPeriodic(f'{op.name} is of all layers, but its work is not the sum of theirs')
        attributes = {key: self._told(value, before, now) for key, value in op.attributes.items()}
        return replace(op, bytes=float(holds) if op.bytes else 0.0, flops=each * has, attributes=attributes)

    def _sizes_of(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Bytes and elements of the shards of tensors as they are."""
        small, known = self.small, self._sizes
        kinds: dict[tuple[object, ...], tuple[int, int]] = {}
        for one in (one for one in numbers if one not in known):
            tensor = small.tensors[one]
            # Equal layers share the very tuples; what is padded goes by its name.
            alone = one if small.is_padded(tensor) else -1
            kind = id(tensor.shape), id(tensor.splits), tensor.dtype, tensor.batch_dim, tensor.fill, alone
            if kind not in kinds:
                kinds[kind] = small.local_bytes(tensor), prod(small.local_shape(tensor))
            known[one] = kinds[kind]
        return list(map(known.__getitem__, numbers))

    @cached_property
    def _sizes(self) -> dict[int, tuple[int, int]]:
        """By number, of programs with these tensors and as many ranks in their groups."""
        ranks = {name: partition.size for name, partition in self.small.partitions.items()}
        return _sizes.get((Same(self.tensors), self.small.copies, ranks), dict)

    def _told(self, value: Attribute, before: Sequence[int], now: Ints) -> Attribute:
        """An attribute of an op of all layers: where it has several words, one for each tensor."""
        if not isinstance(value, str) or ' ' not in value:
            return value
        words, model = value.split(' '), self.names.tensors.model
        of = dict(zip(before, words, strict=False))
        if len(words) != len(before) or any(of[one] != of.get(model.item(one)) for one in before):
            raise NotPeriodic('an attribute of all layers is not a word for each')
        return ' '.join([of[one] for one in now.tolist()])

    def stand(self, row: int) -> OpClass:
        """An op class to be, but for its name and those that it lists."""
        # The very op, so that facts of it are known to other programs of a sweep.
        return self._of_all.get(row) or self.small.op_classes[self.table.source.item(row)]

    def _name(self, row: int, like: str) -> str:
        number = self.names.numbers.item(row)
        name = self.table.renamed(like, row)
        return _BUCKET.sub(f'bucket{number}', name) if number != NONE else name

    def made(self, row: int) -> OpClass:
        """An op class to be."""
        like = self.stand(row)
        if not self.names.changed[row]:
            return like
        bounds = self.names.lists.start[4 * row : 4 * row + 5].tolist()
        items = [self.names.lists.item[begin:end].tolist() for begin, end in itertools.pairwise(bounds)]
        reads, writes, accumulates, frees = (tuple(map(self.tensors.name, own)) for own in items)
        renamed = self.table.renamed
        attributes = {
            key: renamed(value, row) if isinstance(value, str) else value for key, value in like.attributes.items()
        }
        return OpClass(
            self._name(row, like.name), like.kind, like.operator, like.phase, like.dims, like.flops, like.bytes,
            like.dtype, like.partition, like.peer, like.reduce, reads, writes, accumulates, frees, attributes,
            like.stage,
        )  # fmt: skip


def _total(sizes: Sequence[tuple[int, int]], often: Sequence[int]) -> tuple[int, int]:
    """Bytes and elements of tensors, each of them so often."""
    pairs = list(zip(sizes, often, strict=True))
    return sum([size * count for (size, _), count in pairs]), sum([elements * count for (_, elements), count in pairs])


_sizes: Final[Kept[tuple[Same, int, dict[str, int]], dict[int, tuple[int, int]]]] = Kept(4)
"""Bytes and elements of tensors by their numbers."""


def _role(role: Role, ops: Table, layers: Layers) -> Role:
    """A role with more layers: slots, and what they need."""
    told = ops.rows.key[role.op_class]
    # One number for all columns: numpy sorts numbers sooner than rows of them.
    for column in (role.stream, role.micro_batch, role.copy):
        told = told * (int(column.max(initial=0)) + 1) + column
    first, key = _numbered(told)
    slots = Table.of(Rows(key, ops.rows.layer[role.op_class]), layers)
    # A gather needs what freed its memory, as many layers away as it is issued ahead.
    near = NEAR + layers.edge - 1
    # A slot's latest need stands first; of those of the step before the earliest.
    need = References(slots, slots, role.need, near).grown(-1)
    carry = References(slots, slots, role.carry, near).grown(1)
    like = first[slots.grown.key]
    return replace(
        role,
        op_class=ops.at[ops.rows.key[role.op_class[like]], slots.grown.layer].astype(role.op_class.dtype),
        stream=role.stream[like],
        micro_batch=role.micro_batch[like],
        copy=role.copy[like],
        need=need,
        carry=carry,
    )


def _numbered(told: Ints) -> tuple[Ints, Ints]:
    """Where each number that is told stands first, the numbers in order; and for each place which of them it tells."""
    first = np.full(int(told.max(initial=NONE)) + 1, NONE, dtype=np.int64)
    # Of several assignments to one place numpy keeps the last: reversed, that is the first. Numbers are small, so that
    # this takes less time than to sort them.
    first[told[::-1]] = np.arange(len(told))[::-1]
    is_told = first != NONE
    return first[is_told], (np.cumsum(is_told) - 1)[told]
