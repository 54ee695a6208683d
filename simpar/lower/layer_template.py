"""Templates of layers: what recording a layer added to the tape, with marks for what differs in names of other layers.

Marks stand for numbers of layers, and for the names of what a layer reads of others: ``embed`` of the first layer is
``layer0.add`` of the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from simpar.layout import Axis, TensorLayout
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.program import OpClass, Tensor

LAYER: Final = re.compile(r'\blayer(\d+)(?=\.)')
NEAR: Final = 2
"""A layer names its neighbours up to so many away; names of others are told apart."""


class NotRepeated(Exception):
    """The backward of a layer differs from that of all that were recorded: record every layer for real."""


Numbers = tuple[int, ...]
"""Places in the names of a template."""


class _Op(NamedTuple):
    """An op with its names as numbers; ``site``, that of a mask of dropout, -1: none."""

    like: OpClass
    name: int
    reads: Numbers
    writes: Numbers
    accumulates: Numbers
    site: int


class _Value(NamedTuple):
    """A value with its names as numbers."""

    like: Value
    name: int
    again: _Value | None


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What recording a layer added to the tape.

    Arguments:
        text: all names, one a line, with marks; all else has numbers for names.
        derived: tensors that it made and named after what it reads.
        bound: what is read must have the same name, as names follow from it in ways that marks do not tell.
    """

    text: str
    ops: tuple[_Op, ...]
    tensors: tuple[tuple[Tensor, int, int], ...]
    layouts: tuple[tuple[int, TensorLayout], ...]
    pending: tuple[tuple[int, tuple[Axis, ...]], ...]
    given: tuple[tuple[int, tuple[_Value, ...]], ...]
    saved: Numbers
    results: Numbers
    derived: Numbers
    bound: bool
    values: tuple[tuple[int, _Value], ...] = ()

    def put(self, tape: Tape, results: set[str], number: int, reads: Sequence[str]) -> list[tuple[str, Value]]:
        """Put the same of another layer on the tape; its values by the names of nodes.

        Arguments: ``reads``, names of what the layer reads. Raises ``NotRepeated`` where a name is taken.
        """
        names = of_layer(self.text, number, reads)
        if self.derived and any(names[one] in tape.tensors for one in self.derived):
            raise NotRepeated
        for tensor, name, like in self.tensors:
            # A weight that layers share is there already.
            tape.tensors.setdefault(names[name], _tensor(tensor, names[name], names[like]))
        tape.layouts.update((names[name], layout) for name, layout in self.layouts)
        tape.pending.update((names[name], axes) for name, axes in self.pending)
        for name, values in self.given:
            parts = [value_of(value, names) for value in values]
            tape.contributions.setdefault(names[name], []).extend(parts)
            tape.handed_on.update(part.name for part in parts)
        tape.ops += [_op(op, names, tape.stage) for op in self.ops]
        tape.saved.update(names[name] for name in self.saved)
        results.update(names[name] for name in self.results)
        return [(names[name], value_of(value, names)) for name, value in self.values]


def of_layer(text: str, number: int, reads: Sequence[str] = ()) -> list[str]:
    """The names of a text with marks, of a layer that reads these values."""
    for place, name in enumerate(reads):
        text = text.replace(f'\1{place}\1', name)
    # Marks are replaced in all names at once, which is faster than name by name.
    for offset in range(-NEAR, NEAR + 1):
        text = text.replace(f'\0{offset + NEAR}\0', f'layer{number + offset}')
    return text.split('\n')


def _tensor(like: Tensor, name: str, of: str) -> Tensor:
    return Tensor(
        name, like.kind, like.shape, like.dtype, like.splits, like.partial, like.batch_dim, like.initial, of,
        like.members, like.fill,
    )  # fmt: skip


def value_of(value: _Value, names: Sequence[str]) -> Value:
    like, again = value.like, value_of(value.again, names) if value.again else None
    return Value(names[value.name], like.shape, like.layout, like.needs_gradient, again, like.load)


def _op(op: _Op, names: Sequence[str], stage: int) -> OpClass:
    like = op.like
    attributes = like.attributes if op.site < 0 else {**like.attributes, 'site': names[op.site]}
    return OpClass(
        names[op.name], like.kind, like.operator, like.phase, like.dims, like.flops, like.bytes, like.dtype,
        like.partition, like.peer, like.reduce, tuple([names[one] for one in op.reads]),
        tuple([names[one] for one in op.writes]), tuple([names[one] for one in op.accumulates]), (), attributes, stage,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a tape had come."""

    ops: int
    tensors: int
    layouts: int
    pending: int
    given: dict[str, int]
    saved: frozenset[str]
    results: frozenset[str]

    @staticmethod
    def of(tape: Tape, results: set[str]) -> Mark:
        return Mark(
            len(tape.ops),
            len(tape.tensors),
            len(tape.layouts),
            len(tape.pending),
            {name: len(parts) for name, parts in tape.contributions.items()},
            frozenset(tape.saved),
            frozenset(results),
        )

    def added(
        self,
        tape: Tape,
        results: set[str],
        number: int,
        reads: Sequence[str],
        values: Sequence[tuple[str, Value]] = (),
    ) -> Template:
        """What came to the tape since; ``reads``, names that get marks."""
        mark = Names(number, reads)
        given = [(name, parts[self.given.get(name, 0) :]) for name, parts in tape.contributions.items()]
        made = set(_behind(tape.tensors, self.tensors))
        known = made.union(op.name for op in tape.ops[self.ops :])
        return Template(
            ops=tuple(mark.op(op) for op in tape.ops[self.ops :]),
            tensors=tuple(
                (one, mark(one.name), mark(one.like)) for one in _behind(tape.tensors.values(), self.tensors)
            ),
            layouts=tuple((mark(name), layout) for name, layout in _behind(tape.layouts.items(), self.layouts)),
            pending=tuple((mark(name), axes) for name, axes in _behind(tape.pending.items(), self.pending)),
            given=tuple((mark(name), tuple(map(mark.value, parts))) for name, parts in given if parts),
            saved=mark.names(tape.saved - self.saved),
            results=mark.names(results - self.results),
            values=tuple((mark(name), mark.value(value)) for name, value in values),
            text=mark.text,
            derived=tuple(mark.known[name] for name in mark.derived if name in made),
            # What is there already was made for what has this name; and a count tells that a name was taken.
            bound=any(name not in known or _is_counted(name, tape) for name in mark.derived),
        )

    def undo(self, tape: Tape, results: set[str]) -> None:
        """Take off the tape what came to it since, but for contributions."""
        del tape.ops[self.ops :]
        of: tuple[tuple[dict[str, Any], int], ...] = (
            (tape.tensors, self.tensors), (tape.layouts, self.layouts), (tape.pending, self.pending),
        )  # fmt: skip
        for kept, count in of:
            for name in list(_behind(kept, count)):
                del kept[name]
        tape.saved &= self.saved
        results &= self.results


T = TypeVar('T')


def _behind(items: Iterable[T], count: int) -> Iterable[T]:
    return islice(items, count, None)


def _is_counted(name: str, tape: Tape) -> bool:
    base = name.rstrip('0123456789')
    return base != name and base in tape.tensors


class Names:
    """Gives names numbers, and marks the numbers of layers in them, as seen from one layer that reads these values."""

    def __init__(self, number: int, reads: Sequence[str] = ()) -> None:
        self.number = number
        # The longest first, where one begins with another.
        self.reads = sorted(((name, place) for place, name in enumerate(reads)), reverse=True)
        self.known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))

    @property
    def text(self) -> str:
        """All names, one a line."""
        names = [self._of_read(name)[0] for name in self.known] if self.reads else self.known
        return marked('\n'.join(names), self.number)

    @property
    def derived(self) -> list[str]:
        """Names that begin with that of a value that is read, and go on."""
        return [name for name in self.known if self._of_read(name)[1]] if self.reads else []

    def _of_read(self, name: str) -> tuple[str, str]:
        """A name with a mark for that of a value that is read, and how it goes on behind that."""
        bare = name.removeprefix('d:')
        for read, place in self.reads:
            rest = bare[len(read) :]
            if bare.startswith(read) and not (rest[:1].isalnum() or rest[:1] == '_'):
                return f'{name[: len(name) - len(bare)]}\1{place}\1{rest}', rest
        return name, ''

    def names(self, names: Iterable[str]) -> Numbers:
        return tuple(map(self, names))

    def op(self, op: OpClass) -> _Op:
        site = self(str(op.attributes['site'])) if 'site' in op.attributes else -1
        return _Op(op, self(op.name), self.names(op.reads), self.names(op.writes), self.names(op.accumulates), site)

    def value(self, value: Value) -> _Value:
        return _Value(value, self(value.name), self.value(value.again) if value.again else None)


def marked(name: str, number: int) -> str:
    """``layer3.qkv`` as seen from layer 3: the distance, between zeros, stands for the layer."""

    def mark(found: re.Match[str]) -> str:
        offset = int(found.group(1)) - number + NEAR
        return f'\0{offset}\0' if 0 <= offset <= 2 * NEAR else found.group()

    return LAYER.sub(mark, name)
