"""Equal layers are recorded once: the others are its ops and tensors with other numbers in their names.

Layers are of one kind where their operators, those of the layer behind and their places in a stage are alike. The first
and the last of a kind are recorded for real. What the forward of the first put on the tape is the template of all
others: ``layer3.qkv`` becomes ``layer7.qkv``, and what it reads of the layer before moves along. So is what the
backward of the last put there, which comes first. What a layer reads and the gradients that come to it must agree, too:
else it is recorded for real, and where only the backward shows it, all layers are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Final, NamedTuple

from simpar.layout import Axis, TensorLayout
from simpar.lower.tape import Rule, Tape, Value
from simpar.model.model import Node
from simpar.model.operators.base import Operator
from simpar.program import OpClass, Tensor

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
            # DeviceUse off and run by ``_back``, so that the backward's part can be a template, too.
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


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """What recording a layer added to the tape, and how its names are those of another layer.

    Arguments: ``names``, all of them; ``text``, the same, one a line, with marks for layers.
    """

    names: tuple[str, ...]
    text: str
    ops: list[OpClass]
    tensors: list[Tensor]
    layouts: dict[str, TensorLayout]
    pending: dict[str, tuple[Axis, ...]]
    contributions: dict[str, list[Value]]
    saved: set[str]
    results: set[str]
    values: Sequence[tuple[str, Value]]

    def put(self, tape: Tape, results: set[str], number: int) -> list[tuple[str, Value]]:
        """Put the same of another layer on the tape; its values by the names of nodes.

        Raises ``NotRepeated`` where a name is taken.
        """
        text = self.text
        # Marks are replaced in all names at once, which is faster than name by name.
        for offset in range(-_NEAR, _NEAR + 1):
            text = text.replace(f'\0{offset}\0', f'layer{number + offset}')
        name = dict(zip(self.names, text.split('\n'), strict=True))
        if any(name[tensor.name] in tape.tensors for tensor in self.tensors):
            raise NotRepeated
        tape.tensors.update((name[one.name], _tensor(one, name)) for one in self.tensors)
        tape.layouts.update((name[of], layout) for of, layout in self.layouts.items())
        tape.pending.update((name[of], axes) for of, axes in self.pending.items())
        for of, values in self.contributions.items():
            parts = [_value(value, name) for value in values]
            tape.backward.contributions.setdefault(name[of], []).extend(parts)
            tape.backward.handed_on.update(part.name for part in parts)
        tape.ops += [_op(op, name, tape.stage) for op in self.ops]
        tape.saved.update(map(name.__getitem__, self.saved))
        results.update(map(name.__getitem__, self.results))
        return [(name[of], _value(value, name)) for of, value in self.values]


def _value(like: Value, name: Mapping[str, str]) -> Value:
    return like._replace(name=name[like.name], again=_value(like.again, name) if like.again else None)


def _tensor(like: Tensor, name: Mapping[str, str]) -> Tensor:
    # ``replace`` of dataclasses takes three times as long, and so it does below.
    return Tensor(
        name[like.name], like.kind, like.shape, like.dtype, like.splits, like.partial, like.batch_dim, like.initial,
        name[like.like], like.members, like.fill,
    )  # fmt: skip


def _op(like: OpClass, name: Mapping[str, str], stage: int) -> OpClass:
    attributes, site = like.attributes, like.attributes.get('site')
    # A mask of dropout is drawn by the name of its operator.
    attributes = attributes if site is None else {**attributes, 'site': name[str(site)]}
    reads, writes, accumulates = (
        tuple([name[one] for one in names]) for names in (like.reads, like.writes, like.accumulates)
    )
    return OpClass(
        name[like.name], like.kind, like.operator, like.phase, like.dims, like.flops, like.bytes, like.dtype,
        like.partition, like.peer, like.reduce, reads, writes, accumulates, (), attributes, stage,
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
        made = dict(islice(tape.tensors.items(), self.tensors, None))
        if not all(_LAYER.search(name) and not _is_counted(name, made, tape) for name in made):
            return
        given = {name: parts[self.contributions.get(name, 0) :] for name, parts in tape.backward.contributions.items()}
        given = {name: parts for name, parts in given.items() if parts}
        ops, tensors = tape.ops[self.ops :], list(made.values())
        layouts = dict(islice(tape.layouts.items(), self.layouts, None))
        pending = dict(islice(tape.pending.items(), self.pending, None))
        saved, new = tape.saved - self.saved, results - self.results
        every = [value for parts in given.values() for value in parts] + [value for _, value in values]
        names = tuple(dict.fromkeys((
            *(name for op in ops for name in _names(op)), *(name for one in tensors for name in (one.name, one.like)),
            *layouts, *pending, *given, *saved, *new, *(name for name, _ in values),
            *(one.name for value in every for one in _gathers(value)),
        )))  # fmt: skip
        text = _marked('\n'.join(names), number)
        templates[key] = _Template(names, text, ops, tensors, layouts, pending, given, saved, new, values)


def _names(op: OpClass) -> Iterator[str]:
    yield from (op.name, *op.reads, *op.writes, *op.accumulates)
    if 'site' in op.attributes:
        yield str(op.attributes['site'])


def _gathers(value: Value) -> Iterator[Value]:
    """A value, and what it was gathered from."""
    yield value
    if value.again:
        yield from _gathers(value.again)


def _is_counted(name: str, made: Mapping[str, Tensor], tape: Tape) -> bool:
    """Whether a name ends with a number as the same without it was taken, by another layer."""
    base = name.rstrip('0123456789')
    return base != name and base in tape.tensors and base not in made


def _marked(name: str, number: int) -> str:
    """``layer3.qkv`` as seen from layer 3: the distance, between zeros, stands for the layer."""

    def mark(found: re.Match[str]) -> str:
        offset = int(found.group(1)) - number
        return f'\0{offset}\0' if abs(offset) <= _NEAR else found.group()

    return _LAYER.sub(mark, name) if 'layer' in name else name
