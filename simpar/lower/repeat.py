"""Equal layers are recorded once: others are their ops and tensors with other numbers in their names.

A layer is recorded for real where it is the first of its kind: kinds are told apart by the place in a stage and in the
model. All others are instances of it: ``layer3.qkv`` becomes ``layer7.qkv``, and what it reads of the layer before, or
gets back from the one behind, moves along. The backward meets the last of a kind first; then it is recorded as that of
the first, with the gradients that came in under other names, and taken off the tape again. Names, layouts and these
gradients must agree; where they do not, a layer is recorded for real, and where only the backward shows it, all are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from simpar.kept import Facts
from simpar.lower.layer_template import LAYER, Mark, Names, NotRepeated, Template, marked, of_layer, value_of
from simpar.lower.tape import Rule, Tape
from simpar.lower.value import Value
from simpar.model.node import Node


def real_layers(nodes: Sequence[Node], stages: Sequence[int]) -> dict[int, bool]:
    """Layers whose names tell their number, and whether each must be recorded for real; ``stages`` of the nodes."""
    stage_of: dict[int, set[int]] = {}
    named = set()
    for node, stage in zip(nodes, stages, strict=True):
        stage_of.setdefault(node.layer, set()).add(stage)
        named |= set() if node.name.startswith(f'layer{node.layer}.') else {node.layer}
    layers = [layer for layer, own in stage_of.items() if layer not in named and len(own) == 1]
    if layers != list(range(len(layers))):
        return {}
    places = _place_kinds([min(stage_of[layer]) for layer in layers], handed_through=_hands_through(nodes, layers[-1:]))
    # Layers that differ, as those with and without a window, are of different kinds in the same place.
    alike: dict[int, list[object]] = {layer: [] for layer in layers}
    for node in nodes:
        if node.layer in alike:
            alike[node.layer].append(operator_kind(node.operator, node.layer))
    real = _recorded_for_real([(*place, *alike[layer]) for layer, place in enumerate(places)])
    return {layer: layer in real for layer in layers}


def _hands_through(nodes: Sequence[Node], layers: Sequence[int]) -> bool:
    """Whether layers may give the one before them gradients that no op of their own has summed."""
    own = {node.name: node for node in nodes if node.layer in layers}
    readers = Counter(name for node in own.values() for name in node.reads)
    # From the result on by values that one operator reads: where two do, their gradients are summed.
    names = [name for name in own if not readers[name]]
    while names:
        node = own[names.pop()]
        if any(name.startswith(f'layer{node.layer - 1}.') for name in node.reads):
            return True
        names += [name for name in node.reads if name in own and readers[name] == 1]
    return False


def _place_kinds(stages: Sequence[int], *, handed_through: bool) -> list[tuple[bool, ...]]:
    """For each layer its kind: last of the model, first and last of its stage; the first of all is as those behind.

    Arguments: ``stages``, of each layer; ``handed_through``: a layer gives gradients to the one before as they came to
    it, so that the last but one of a stage gets others than those before it.
    """
    count = len(stages)
    ends = [layer + 1 == count or stages[layer + 1] != stages[layer] for layer in range(count)]
    return [
        (
            layer + 1 == count,
            layer > 0 and ends[layer - 1],
            ends[layer],
            handed_through and layer + 1 < count and ends[layer + 1],
        )
        for layer in range(count)
    ]


def _recorded_for_real(kinds: Sequence[tuple[object, ...]]) -> frozenset[int]:
    """Layers that are recorded: the first of each kind."""
    # Of equal keys a dict keeps the last: reversed, that is the first layer of a kind.
    return frozenset({kind: layer for layer, kind in reversed(list(enumerate(kinds)))}.values())


@dataclass(slots=True, eq=False)
class Repeats:
    """The layers of one recording.

    Arguments:
        results: of the mover.
        forward, backward: templates by all that they depend on.
        donors: layers that were recorded, by the key of their forward; ``rules`` of each, until they are run.
        reads: by layer the names of what it reads, where its template has marks for them.
    """

    tape: Tape
    results: set[str]
    forward: dict[object, Template] = field(default_factory=dict)
    backward: dict[object, Template] = field(default_factory=dict)
    donors: dict[object, list[int]] = field(default_factory=dict)
    rules: dict[int, Sequence[Rule]] = field(default_factory=dict)
    reads: dict[int, tuple[str, ...]] = field(default_factory=dict)

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
        kinds, names = tuple(operator_kind(one, number) for one in operators), tuple([value.name for value in read])
        # Equal keys make equal ops up to numbers: a key holds all that recording a layer looks at.
        anywhere: object = kinds, tuple(self._unnamed(value, number) for value in read)
        key: object = kinds, tuple(_known(value, number) for value in read)
        self.reads[number] = ()
        if anywhere in self.forward:
            key, self.reads[number] = anywhere, names
        if key in self.forward and not real:
            made = self.forward[key].put(self.tape, self.results, number, self.reads[number])
            self.tape.on_backward(lambda: self._back(number, key))
            return made
        before, rules = Mark.of(self.tape, self.results), len(self.tape.rules)
        values = run()
        # The layer's rules are taken off and run by ``_back``, so that the backward's part can be recorded as a
        # template, too.
        mine = self.tape.rules[rules:]
        del self.tape.rules[rules:]
        if key not in self.forward:
            template = before.added(self.tape, self.results, number, names, values)
            if template.derived or template.bound:
                template = before.added(self.tape, self.results, number, (), values)
            else:
                key, self.reads[number] = anywhere, names
            self.forward[key] = template
        self.rules[number] = mine
        self.donors.setdefault(key, []).append(number)
        self.tape.on_backward(lambda: self._back(number, key))
        return values

    def _back(self, number: int, forward: object) -> None:
        own = re.compile(rf'(d:)?layer{number}\.')
        # Gradients that other layers gave: they decide what the backward emits.
        coming = {name: parts for name, parts in self.tape.contributions.items() if own.match(name)}
        key = (forward, tuple((marked(name, number), tuple(_known(part, number) for part in parts))
                              for name, parts in sorted(coming.items())))  # fmt: skip
        if number not in self.rules:
            if key not in self.backward:
                donors = (one for one in self.donors[forward] if one in self.rules)
                donor = next(donors, None)
                if donor is None:
                    # The tape is half written by then, so the whole recording is begun again.
                    raise NotRepeated
                self.backward[key] = self._as_of(donor, number, coming)
            for name in coming:
                del self.tape.contributions[name]
            self.backward[key].put(self.tape, self.results, number, self.reads[number])
            return
        before = Mark.of(self.tape, self.results)
        self._run(number)
        if key not in self.backward:
            template = before.added(self.tape, self.results, number, self.reads[number])
            if not template.bound:
                self.backward[key] = template

    def _unnamed(self, value: Value, number: int) -> tuple[object, ...]:
        """All that ops depend on of a value that is read, but its name."""
        told = self.tape.tensors[value.name]
        return (*_known(value._replace(name=''), number), told.kind, told.dtype, told.batch_dim)

    def _run(self, number: int) -> None:
        """Run the rules of a layer, once."""
        for stage, rule in reversed(self.rules.pop(number)):
            self.tape.stage = stage
            rule()

    def _as_of(self, donor: int, number: int, coming: Mapping[str, Sequence[Value]]) -> Template:
        """The backward of a layer whose rules are there, with what comes to layer ``number``; the tape stays as it is.

        Raises ``NotRepeated`` where names of other layers would be taken for near ones.
        """
        tape, mark = self.tape, Names(number)
        gradients = [(mark(name), [mark.value(part) for part in parts]) for name, parts in coming.items()]
        if LAYER.search(mark.text):
            raise NotRepeated
        names = of_layer(mark.text, donor)
        lent = {name: of for name, of in zip(names, mark.known, strict=True) if name not in tape.tensors}
        for name, of in lent.items():
            tape.tensors[name], tape.layouts[name] = replace(tape.tensors[of], name=name), tape.layouts[of]
        stage, handed_on, others = tape.stage, tape.handed_on, tape.contributions
        tape.contributions = {names[name]: [value_of(part, names) for part in parts] for name, parts in gradients}
        tape.handed_on = handed_on.copy()
        before = Mark.of(tape, self.results)
        self._run(donor)
        made = before.added(tape, self.results, donor, self.reads[donor])
        if made.bound:
            raise NotRepeated
        before.undo(tape, self.results)
        for name in lent:
            del tape.tensors[name], tape.layouts[name]
        tape.stage, tape.handed_on, tape.contributions = stage, handed_on, others
        return made


def _known(value: Value, number: int) -> tuple[object, ...]:
    """All that ops depend on of a value, its name as seen from a layer."""
    again = _known(value.again, number) if value.again else None
    return marked(value.name, number), value.shape, value.layout, value.needs_gradient, again, value.load


def operator_kind(operator: Any, number: int) -> tuple[object, ...]:
    """An operator but for numbers of layers in its names."""
    known = _kinds(operator)
    if number not in known:
        told = (getattr(operator, one.name) for one in fields(operator))
        known[number] = (
            type(operator),
            *(marked(value, number) if isinstance(value, str) else value for value in told),
        )
    return known[number]


_kinds: Final[Facts[Any, dict[int, tuple[object, ...]]]] = Facts(lambda operator: {}, 2**10)
"""By layer; a model is recorded for many plans."""
