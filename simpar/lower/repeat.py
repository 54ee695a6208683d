"""Equal layers are recorded once: others are their ops and tensors with other numbers in their names.

A layer is recorded for real where it is the first of its kind: kinds are told apart by the place in a stage and in the
model. All others are instances of it: ``layer3.qkv`` becomes ``layer7.qkv``, and what it reads of the layer before, or
gets back from the one behind, moves along. The backward meets the last of a kind first; then it is recorded as that of
the first, with the gradients that came in under other names, and taken off the tape again. Names, layouts and these
gradients must agree; where they do not, a layer is recorded for real, and where only the backward shows it, all are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from simpar.kept import Facts
from simpar.layout import Axis, TensorLayout
from simpar.lower.tape import Rule, Tape
from simpar.lower.value import Value
from simpar.program import OpClass, Tensor

LAYER: Final = re.compile(r'\blayer(\d+)(?=\.)')
NEAR: Final = 2
"""A layer names its neighbours up to so many away; names of others are told apart."""


class NotRepeated(Exception):
    """The backward of a layer differs from that of all that were recorded: record every layer for real."""


def place_kinds(stages: Sequence[int]) -> list[tuple[bool, ...]]:
    """For each layer its kind: first and last of the model, first and last of its stage.

    Arguments: ``stages``, of each layer.
    """
    last = len(stages) - 1
    return [
        (
            layer == 0,
            layer == last,
            layer == 0 or stages[layer - 1] != stage,
            layer == last or stages[layer + 1] != stage,
        )
        for layer, stage in enumerate(stages)
    ]


def recorded_for_real(kinds: Sequence[tuple[object, ...]]) -> frozenset[int]:
    """Layers that are recorded: the first of each kind."""
    # Of equal keys a dict keeps the last: reversed, that is the first layer of a kind.
    return frozenset({kind: layer for layer, kind in reversed(list(enumerate(kinds)))}.values())


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
class _Template:
    """What recording a layer added to the tape.

    Arguments: ``text``, all names, one a line, with marks for numbers of layers; all else has numbers for names.
    """

    text: str
    ops: tuple[_Op, ...]
    tensors: tuple[tuple[Tensor, int, int], ...]
    layouts: tuple[tuple[int, TensorLayout], ...]
    pending: tuple[tuple[int, tuple[Axis, ...]], ...]
    given: tuple[tuple[int, tuple[_Value, ...]], ...]
    saved: Numbers
    results: Numbers
    values: tuple[tuple[int, _Value], ...] = ()


@dataclass(slots=True, eq=False)
class Repeats:
    """The layers of one recording.

    Arguments: ``results`` of the mover; ``forward``, ``backward``, templates by all that they depend on; ``rules`` of
    the layers that gave those of the forward, until they are run.
    """

    tape: Tape
    results: set[str]
    forward: dict[object, tuple[int, _Template]] = field(default_factory=dict)
    backward: dict[object, tuple[int, _Template]] = field(default_factory=dict)
    rules: dict[int, Sequence[Rule]] = field(default_factory=dict)

    def layer(
        self,
        number: int,
        read: Sequence[Value],
        operators: Sequence[Any],
        run: Callable[[], Sequence[tuple[str, Value]]],
        *,
        real: bool,
    ) -> Sequence[tuple[str, Value]]:
        """Record a layer, or make it of an equal one; its values by the names of nodes.

        Arguments:
            number: of the layer.
            read: values of other layers that it reads.
            operators: of the layer, in order.
            run: records the layer and returns its values.
            real: whether it must be recorded, whatever is known.
        """
        key = (tuple(operator_kind(one, number) for one in operators), tuple(_known(value, number) for value in read))
        # Equal keys make equal ops up to numbers: a key holds all that recording a layer looks at.
        if key in self.forward and not real:
            made = self._put(self.forward[key][1], number)
            self.tape.on_backward(lambda: self._back(number, key))
            return made
        before, rules = _Mark.of(self.tape, self.results), len(self.tape.rules)
        values = run()
        # The layer's rules are taken off and run by ``_back``, so that the backward's part can be recorded as a
        # template, too.
        mine = self.tape.rules[rules:]
        del self.tape.rules[rules:]
        if key not in self.forward:
            self.forward[key] = number, before.added(self.tape, self.results, number, values)
        self.rules[number] = mine
        self.tape.on_backward(lambda: self._back(number, key))
        return values

    def _back(self, number: int, forward: object) -> None:
        own = re.compile(rf'(d:)?layer{number}\.')
        # Gradients that other layers gave: they decide what the backward emits.
        coming = {name: parts for name, parts in self.tape.contributions.items() if own.match(name)}
        key = (forward, tuple((_marked(name, number), tuple(_known(part, number) for part in parts))
                              for name, parts in sorted(coming.items())))  # fmt: skip
        if number not in self.rules:
            if key not in self.backward:
                donor = self.forward[forward][0]
                self.backward[key] = donor, self._as_of(donor, number, coming)
            for name in coming:
                del self.tape.contributions[name]
            self._put(self.backward[key][1], number)
            return
        before = _Mark.of(self.tape, self.results)
        self._run(number)
        if key not in self.backward:
            self.backward[key] = number, before.added(self.tape, self.results, number)

    def _run(self, number: int) -> None:
        """Run the rules of a layer, once."""
        for stage, rule in reversed(self.rules.pop(number)):
            self.tape.stage = stage
            rule()

    def _as_of(self, donor: int, number: int, coming: Mapping[str, Sequence[Value]]) -> _Template:
        """The backward of a layer whose rules are there, with what comes to layer ``number``; the tape stays as it is.

        Raises ``NotRepeated`` where the rules have been run, or names of other layers would be taken for near ones.
        """
        tape, mark = self.tape, _Names(number)
        gradients = [(mark(name), [mark.value(part) for part in parts]) for name, parts in coming.items()]
        if donor not in self.rules or LAYER.search(mark.text):
            # The tape is half written by then, so the whole recording is begun again.
            raise NotRepeated
        names = _of_layer(mark.text, donor)
        lent = {name: of for name, of in zip(names, mark.known, strict=True) if name not in tape.tensors}
        for name, of in lent.items():
            tape.tensors[name], tape.layouts[name] = replace(tape.tensors[of], name=name), tape.layouts[of]
        stage, handed_on, others = tape.stage, tape.handed_on, tape.contributions
        tape.contributions = {names[name]: [_value(part, names) for part in parts] for name, parts in gradients}
        tape.handed_on = handed_on.copy()
        before = _Mark.of(tape, self.results)
        self._run(donor)
        made = before.added(tape, self.results, donor)
        before.undo(tape, self.results)
        for name in lent:
            del tape.tensors[name], tape.layouts[name]
        tape.stage, tape.handed_on, tape.contributions = stage, handed_on, others
        return made

    def _put(self, template: _Template, number: int) -> list[tuple[str, Value]]:
        """An instance of a template; its values."""
        tape, names = self.tape, _of_layer(template.text, number)
        for tensor, name, like in template.tensors:
            # A weight that layers share is there already.
            tape.tensors.setdefault(names[name], _tensor(tensor, names[name], names[like]))
        tape.layouts.update((names[name], layout) for name, layout in template.layouts)
        tape.pending.update((names[name], axes) for name, axes in template.pending)
        for name, values in template.given:
            parts = [_value(value, names) for value in values]
            tape.contributions.setdefault(names[name], []).extend(parts)
            tape.handed_on.update(part.name for part in parts)
        tape.ops += [_op(op, names, tape.stage) for op in template.ops]
        tape.saved.update(names[name] for name in template.saved)
        self.results.update(names[name] for name in template.results)
        return [(names[name], _value(value, names)) for name, value in template.values]


def _of_layer(text: str, number: int) -> list[str]:
    """The names of a text with marks, of a layer."""
    # Marks are replaced in all names at once, which is faster than name by name.
    for offset in range(-NEAR, NEAR + 1):
        text = text.replace(f'\0{offset + NEAR}\0', f'layer{number + offset}')
    return text.split('\n')


def _tensor(like: Tensor, name: str, of: str) -> Tensor:
    return Tensor(
        name, like.kind, like.shape, like.dtype, like.splits, like.partial, like.batch_dim, like.initial, of,
        like.members, like.fill,
    )  # fmt: skip


def _value(value: _Value, names: Sequence[str]) -> Value:
    like, again = value.like, _value(value.again, names) if value.again else None
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
class _Mark:
    """How far a tape had come."""

    ops: int
    tensors: int
    layouts: int
    pending: int
    given: dict[str, int]
    saved: frozenset[str]
    results: frozenset[str]

    @staticmethod
    def of(tape: Tape, results: set[str]) -> _Mark:
        return _Mark(
            len(tape.ops),
            len(tape.tensors),
            len(tape.layouts),
            len(tape.pending),
            {name: len(parts) for name, parts in tape.contributions.items()},
            frozenset(tape.saved),
            frozenset(results),
        )

    def added(self, tape: Tape, results: set[str], number: int, values: Sequence[tuple[str, Value]] = ()) -> _Template:
        """What came to the tape since."""
        mark = _Names(number)
        given = [(name, parts[self.given.get(name, 0) :]) for name, parts in tape.contributions.items()]
        return _Template(
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


class _Names:
    """Gives names numbers, and marks the numbers of layers in them, as seen from one layer."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))

    @property
    def text(self) -> str:
        """All names, one a line."""
        return _marked('\n'.join(self.known), self.number)

    def names(self, names: Iterable[str]) -> Numbers:
        return tuple(map(self, names))

    def op(self, op: OpClass) -> _Op:
        site = self(str(op.attributes['site'])) if 'site' in op.attributes else -1
        return _Op(op, self(op.name), self.names(op.reads), self.names(op.writes), self.names(op.accumulates), site)

    def value(self, value: Value) -> _Value:
        return _Value(value, self(value.name), self.value(value.again) if value.again else None)


def _marked(name: str, number: int) -> str:
    """``layer3.qkv`` as seen from layer 3: the distance, between zeros, stands for the layer."""

    def mark(found: re.Match[str]) -> str:
        offset = int(found.group(1)) - number + NEAR
        return f'\0{offset}\0' if 0 <= offset <= 2 * NEAR else found.group()

    return LAYER.sub(mark, name)


def _known(value: Value, number: int) -> tuple[object, ...]:
    """All that ops depend on of a value, its name as seen from a layer."""
    again = _known(value.again, number) if value.again else None
    return _marked(value.name, number), value.shape, value.layout, value.needs_gradient, again, value.load


def operator_kind(operator: Any, number: int) -> tuple[object, ...]:
    """An operator but for numbers of layers in its names."""
    known = _kinds(operator)
    if number not in known:
        told = (getattr(operator, one.name) for one in fields(operator))
        known[number] = (
            type(operator),
            *(_marked(value, number) if isinstance(value, str) else value for value in told),
        )
    return known[number]


_kinds: Final[Facts[Any, dict[int, tuple[object, ...]]]] = Facts(lambda operator: {}, 2**10)
"""By layer; a model is recorded for many plans."""
