"""Equal layers are recorded once: the others are its ops and tensors with other numbers in their names.

Layers are of one kind where their operators, those of the layer behind and their places in a stage are alike. The first
and the last of a kind are recorded for real. What the forward of the first put on the tape is the template of all
others: ``layer3.qkv`` becomes ``layer7.qkv``, and what it reads of the layer before moves along. So is what the
backward of the last put there, which comes first. What a layer reads and the gradients that come to it must agree, too:
else it is recorded for real, and where only the backward shows it, all layers are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from simpar.layout import Axis, TensorLayout
from simpar.lower.tape import Rule, Tape, Value
from simpar.model.node import Node
from simpar.model.operators.base import Operator
from simpar.program import OpClass, Tensor

Numbers = tuple[int, ...]
"""Places in the names of a template."""
T = TypeVar('T')
_LAYER: Final = re.compile(r'\blayer(\d+)(?=\.)')
_NEAR: Final = 2
"""A layer names its neighbours up to so many away; names of others stay as they are."""


class NotRepeated(Exception):
    """The backward of a layer differs from that of all that were recorded: record every layer for real."""


class Layer(NamedTuple):
    """A layer whose names tell its number. Arguments: ``kind`` of its operators; ``real``: it must be recorded."""

    kind: object
    real: bool


def layers_of(nodes: Sequence[Node], stages: Sequence[int]) -> dict[int, Layer]:
    """The layers of a graph by their numbers; none where these do not count from 0. Arguments: ``stages`` of nodes."""
    stage_of: dict[int, set[int]] = {}
    kinds: dict[int, list[object]] = {}
    otherwise = set()
    for node, stage in zip(nodes, stages, strict=True):
        stage_of.setdefault(node.layer, set()).add(stage)
        kinds.setdefault(node.layer, []).append(_operator_kind(node.operator, node.layer))
        otherwise |= set() if node.name.startswith(f'layer{node.layer}.') else {node.layer}
    numbers = [layer for layer, own in stage_of.items() if layer not in otherwise and len(own) == 1]
    if not numbers or numbers != list(range(len(numbers))):
        return {}
    kind = [tuple(kinds[layer]) for layer in numbers]
    near = [-1, *(min(stage_of[layer]) for layer in numbers), -1, -1]
    # By the kinds of itself and the next one, and by where stages begin near it: a layer may hand on to the one before
    # it the gradient that came to it.
    places = [
        (own, behind, *(near[at] == near[at + 1] for at in range(layer, layer + 3)))
        for layer, (own, behind) in enumerate(zip(kind, [*kind[1:], ()], strict=True))
    ]
    # Of equal keys a dict keeps the last one: of the reversed list, that is the first layer of a kind.
    orders = (enumerate(places), reversed(list(enumerate(places))))
    ends = {layer for order in orders for layer in {place: at for at, place in order}.values()}
    return {layer: Layer(kind[layer], layer in ends) for layer in numbers}


def _operator_kind(operator: Operator, number: int) -> tuple[object, ...]:
    """An operator but for numbers of layers in its names."""
    told = (getattr(operator, one.name) for one in fields(operator))
    return type(operator), *(_marked(value, number) if isinstance(value, str) else value for value in told)


@dataclass(slots=True, eq=False)
class Repeats:
    """The layers of one recording.

    Arguments:
        results: of the mover.
        forward, backward: templates by all that they depend on.
        rules: by layer that was recorded, what emits its backward, until it is run.
    """

    tape: Tape
    results: set[str]
    forward: dict[object, _Template] = field(default_factory=dict)
    backward: dict[object, _Template] = field(default_factory=dict)
    rules: dict[int, Sequence[Rule]] = field(default_factory=dict)

    def layer(
        self, number: int, layer: Layer, read: Sequence[Value], run: Callable[[], Sequence[tuple[str, Value]]]
    ) -> Sequence[tuple[str, Value]]:
        """Record a layer, or make it of an equal one; its values by the names of nodes.

        Arguments: ``read``, values of other layers that it reads; ``run`` records the layer and returns its values.
        """
        # Equal keys make equal ops up to numbers: a key holds all that recording a layer looks at.
        key: object = layer.kind, tuple([_known(value, number) for value in read])
        if key in self.forward and not layer.real:
            values: Sequence[tuple[str, Value]] = self.forward[key].put(self.tape, self.results, number)
        else:
            before, rules = _Mark.of(self.tape, self.results), len(self.tape.backward.rules)
            values = run()
            # Taken off and run by ``_back``, so that the backward's part can be a template, too.
            self.rules[number] = self.tape.backward.rules[rules:]
            del self.tape.backward.rules[rules:]
            before.keep(self.forward, key, self.tape, self.results, number, values)
        self.tape.on_backward(lambda: self._back(number, key))
        return values

    def _back(self, number: int, forward: object) -> None:
        own = re.compile(rf'(d:)?layer{number}\.')
        # Gradients that other layers gave: they decide what the backward emits.
        coming = {name: parts for name, parts in self.tape.backward.contributions.items() if own.match(name)}
        key = (forward, tuple((_marked(name, number), tuple(_known(part, number) for part in parts))
                              for name, parts in sorted(coming.items())))  # fmt: skip
        if number in self.rules:
            before = _Mark.of(self.tape, self.results)
            for stage, rule in reversed(self.rules.pop(number)):
                self.tape.stage = stage
                rule()
            before.keep(self.backward, key, self.tape, self.results, number)
            return
        if key not in self.backward:
            # The tape is half written by then, so the whole recording is begun again.
            raise NotRepeated
        for name in coming:
            del self.tape.backward.contributions[name]
        self.backward[key].put(self.tape, self.results, number)


def _known(value: Value, number: int) -> tuple[object, ...]:
    """All that ops depend on of a value, its name as seen from a layer."""
    again = _known(value.again, number) if value.again else None
    return _marked(value.name, number), value.shape, value.layout, value.needs_gradient, again, value.load


# templates


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

    def of(self, names: Sequence[str]) -> Value:
        """The same with other names."""
        again = self.again.of(names) if self.again else None
        return self.like._replace(name=names[self.name], again=again)


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """What recording a layer added to the tape.

    Arguments: ``text``, all names, one a line, with marks for layers; all else has numbers for names.
    """

    text: str
    ops: tuple[_Op, ...]
    tensors: tuple[tuple[Tensor, int, int], ...]
    layouts: tuple[tuple[int, TensorLayout], ...]
    pending: tuple[tuple[int, tuple[Axis, ...]], ...]
    contributions: tuple[tuple[int, tuple[_Value, ...]], ...]
    saved: Numbers
    results: Numbers
    values: tuple[tuple[int, _Value], ...] = ()

    def put(self, tape: Tape, results: set[str], number: int) -> list[tuple[str, Value]]:
        """Put the same of another layer on the tape; its values by the names of nodes.

        Raises ``NotRepeated`` where a name is taken.
        """
        text = self.text
        # Marks are replaced in all names at once, which is faster than name by name.
        for offset in range(-_NEAR, _NEAR + 1):
            text = text.replace(f'\0{offset}\0', f'layer{number + offset}')
        names = text.split('\n')
        if any(names[name] in tape.tensors for _, name, _ in self.tensors):
            raise NotRepeated
        tape.tensors.update((names[name], _tensor(like, names[name], names[of])) for like, name, of in self.tensors)
        tape.layouts.update((names[name], layout) for name, layout in self.layouts)
        tape.pending.update((names[name], axes) for name, axes in self.pending)
        for name, values in self.contributions:
            parts = [value.of(names) for value in values]
            tape.backward.contributions.setdefault(names[name], []).extend(parts)
            tape.backward.handed_on.update(part.name for part in parts)
        tape.ops += [_op(op, names, tape.stage) for op in self.ops]
        tape.saved.update(names[name] for name in self.saved)
        results.update(names[name] for name in self.results)
        return [(names[name], value.of(names)) for name, value in self.values]


def _tensor(like: Tensor, name: str, of: str) -> Tensor:
    # ``replace`` of dataclasses takes three times as long, and so it does below.
    return Tensor(
        name, like.kind, like.shape, like.dtype, like.splits, like.partial, like.batch_dim, like.initial, of,
        like.members, like.fill,
    )  # fmt: skip


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
    contributions: dict[str, int]
    saved: frozenset[str]
    results: frozenset[str]

    @staticmethod
    def of(tape: Tape, results: set[str]) -> _Mark:
        return _Mark(
            len(tape.ops),
            len(tape.tensors),
            len(tape.layouts),
            len(tape.pending),
            {name: len(parts) for name, parts in tape.backward.contributions.items()},
            frozenset(tape.saved),
            frozenset(results),
        )

    def keep(
        self, templates: dict[object, _Template], key: object, tape: Tape, results: set[str], number: int,
        values: Sequence[tuple[str, Value]] = (),
    ) -> None:  # fmt: skip
        """Keep what came to the tape since as a template, unless names in it do not follow from the layer's number."""
        if key in templates:
            return
        made = dict(_behind(tape.tensors.items(), self.tensors))
        if all(_LAYER.search(name) and not _is_counted(name, made, tape) for name in made):
            templates[key] = self._added(tape, results, number, made, values)

    def _added(
        self, tape: Tape, results: set[str], number: int, made: dict[str, Tensor], values: Sequence[tuple[str, Value]]
    ) -> _Template:
        names = _Names()
        given = [
            (name, parts[self.contributions.get(name, 0) :]) for name, parts in tape.backward.contributions.items()
        ]
        return _Template(
            ops=tuple(names.op(op) for op in tape.ops[self.ops :]),
            tensors=tuple((one, names(one.name), names(one.like)) for one in made.values()),
            layouts=tuple((names(name), layout) for name, layout in _behind(tape.layouts.items(), self.layouts)),
            pending=tuple((names(name), axes) for name, axes in _behind(tape.pending.items(), self.pending)),
            contributions=tuple((names(name), tuple(map(names.value, parts))) for name, parts in given if parts),
            saved=names.all(tape.saved - self.saved),
            results=names.all(results - self.results),
            values=tuple((names(name), names.value(value)) for name, value in values),
            text=_marked('\n'.join(names.number), number),
        )


def _behind(items: Iterable[T], count: int) -> Iterable[T]:
    return islice(items, count, None)


def _is_counted(name: str, made: dict[str, Tensor], tape: Tape) -> bool:
    """Whether a name ends with a number as the same without it was taken, by another layer."""
    base = name.rstrip('0123456789')
    return base != name and base in tape.tensors and base not in made


class _Names:
    """Gives names numbers, from 0 on."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.number.setdefault(name, len(self.number))

    def all(self, names: Iterable[str]) -> Numbers:
        return tuple(map(self, names))

    def op(self, op: OpClass) -> _Op:
        site = self(str(op.attributes['site'])) if 'site' in op.attributes else -1
        return _Op(op, self(op.name), self.all(op.reads), self.all(op.writes), self.all(op.accumulates), site)

    def value(self, value: Value) -> _Value:
        return _Value(value, self(value.name), self.value(value.again) if value.again else None)


def _marked(name: str, number: int) -> str:
    """``layer3.qkv`` as seen from layer 3: the distance, between zeros, stands for the layer."""

    def mark(found: re.Match[str]) -> str:
        offset = int(found.group(1)) - number
        return f'\0{offset}\0' if abs(offset) <= _NEAR else found.group()

    return _LAYER.sub(mark, name) if 'layer' in name else name
