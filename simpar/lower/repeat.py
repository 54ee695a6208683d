"""Equal layers are recorded once: others are their ops and tensors with other numbers in their names.

A layer is recorded for real where it is the first of its kind: kinds are told apart by the place in a stage and in the
model. All others are instances of it: ``layer3.qkv`` becomes ``layer7.qkv``, and what it reads of the layer before, or
gets back from the one behind, moves along. The backward meets the last of a kind first; then it is recorded as that of
the first, with the gradients that came in under other names, and taken off the tape again. Names, layouts and these
gradients must agree; where they do not, a layer is recorded for real, and where only the backward shows it, all are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from simpar.kept import Facts
from simpar.lower.layer_template import LAYER, Mark, Names, Template, marked, of_layer, value_of
from simpar.lower.tape import Rule, Tape
from simpar.lower.value import Value


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


@dataclass(slots=True, eq=False)
class Repeats:
    """The layers of one recording.

    Arguments: ``results`` of the mover; ``forward``, ``backward``, templates by all that they depend on; ``rules`` of
    the layers that gave those of the forward, until they are run.
    """

    tape: Tape
    results: set[str]
    forward: dict[object, tuple[int, Template]] = field(default_factory=dict)
    backward: dict[object, tuple[int, Template]] = field(default_factory=dict)
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
            made = self.forward[key][1].put(self.tape, self.results, number)
            self.tape.on_backward(lambda: self._back(number, key))
            return made
        before, rules = Mark.of(self.tape, self.results), len(self.tape.rules)
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
        key = (forward, tuple((marked(name, number), tuple(_known(part, number) for part in parts))
                              for name, parts in sorted(coming.items())))  # fmt: skip
        if number not in self.rules:
            if key not in self.backward:
                donor = self.forward[forward][0]
                self.backward[key] = donor, self._as_of(donor, number, coming)
            for name in coming:
                del self.tape.contributions[name]
            self.backward[key][1].put(self.tape, self.results, number)
            return
        before = Mark.of(self.tape, self.results)
        self._run(number)
        if key not in self.backward:
            self.backward[key] = number, before.added(self.tape, self.results, number)

    def _run(self, number: int) -> None:
        """Run the rules of a layer, once."""
        for stage, rule in reversed(self.rules.pop(number)):
            self.tape.stage = stage
            rule()

    def _as_of(self, donor: int, number: int, coming: Mapping[str, Sequence[Value]]) -> Template:
        """The backward of a layer whose rules are there, with what comes to layer ``number``; the tape stays as it is.

        Raises ``NotRepeated`` where the rules have been run, or names of other layers would be taken for near ones.
        """
        tape, mark = self.tape, Names(number)
        gradients = [(mark(name), [mark.value(part) for part in parts]) for name, parts in coming.items()]
        if donor not in self.rules or LAYER.search(mark.text):
            # The tape is half written by then, so the whole recording is begun again.
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
        made = before.added(tape, self.results, donor)
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
