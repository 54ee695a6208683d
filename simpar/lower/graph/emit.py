"""Operators on the tape: their templates of F, I and W become op classes with tensors' names and local sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from simpar.layout import TensorLayout, replicated, size_of
from simpar.lower.graph.move import Mover
from simpar.lower.tape import Tape, Value
from simpar.model.ops import NAMED, Ops, Parameter, Work
from simpar.program import BYTES, Phase


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """Where an operator stands: what its template asks for local sizes.

    Arguments:
        name: of the operator in programs.
        values: by role, what it reads and its result ``y``.
        inputs: layouts of all that its axes name, parameters too, in their order.
        output: the layout of its result once nothing is left to be summed.
        deviation: of normal initial weights.
        loss_weight, loss_scale: see ``simpar.model.ops.Local``.
    """

    tape: Tape
    mover: Mover
    name: str
    values: Mapping[str, Value]
    inputs: tuple[TensorLayout, ...]
    output: TensorLayout
    deviation: float
    loss_weight: float = 1.0
    loss_scale: float = 1.0

    @property
    def world(self) -> int:
        """Ranks of a stage."""
        return self.tape.world

    @property
    def copies(self) -> int:
        """Copies of a micro-batch."""
        return self.tape.mesh.copies

    @property
    def balanced(self) -> int:
        """Context ranks that hold chunks from both ends of a sequence; 0: tokens lie in order."""
        return self.tape.mesh.context if self.tape.mesh.balanced else 0

    def layout(self, role: str) -> TensorLayout:
        """How a value lies."""
        return self.values[role].layout

    def shape(self, role: str) -> tuple[int, ...]:
        """The unsharded shape of a value, of one micro-batch."""
        return self.values[role].shape

    def slice_shape(self, role: str) -> tuple[int, ...]:
        """The shape of a rank's slice, of all copies."""
        return self.values[role].layout.slice_shape(self.values[role].shape)

    def elements(self, role: str) -> int:
        """Elements of a rank's slice, of one copy."""
        elements, fill = prod(self.slice_shape(role)) // self.copies, self.values[role].fill
        return elements if fill == 1 else round(elements * fill)

    def fullest(self, role: str) -> float:
        """What the fullest rank has of a value over the mean of all ranks."""
        load = self.values[role].load
        return self.values[role].fill / load.mean if load else 1.0

    def share(self, role: str) -> float:
        """The part of a value's gradient that this rank gives, where several ranks make the same gradient."""
        return 1.0 / size_of(self.tape.gradient_layout(self.values[role]).partial)

    def size(self, role: str) -> int:
        """Bytes of a rank's slice, of one copy."""
        # A template may ask for the size of the result before it is registered.
        known = self.tape.tensors.get(self.values[role].name)
        return self.elements(role) * BYTES[known.dtype if known else self.tape.dtype]

    def partition(self, layout: TensorLayout, dim: int) -> str:
        """The partition whose ranks hold the slices of a dim; empty: it is unsharded."""
        return self.tape.partition(layout.dims[dim]) if layout.dims[dim] else ''


@dataclass(slots=True, eq=False)
class _Emission:
    """One operator being emitted.

    Arguments:
        roles: of what it reads.
        values: what has been made so far, by role.
        again: by role, what the backward reads in the place of what was gathered in the forward.
    """

    site: Site
    ops: Ops
    roles: tuple[str, ...]
    values: dict[str, Value] = field(default_factory=dict)
    again: dict[str, Value] = field(default_factory=dict)

    def forward(self) -> Value:
        tape, site = self.site.tape, self.site
        self.values.update(site.values)
        for parameter in self.ops.parameters:
            name = self._named(parameter.role)
            layout = parameter.layout or replicated(tape.world, len(parameter.shape))
            initial = parameter.initial or f'normal:{site.deviation}'
            made = tape.parameter(name, parameter.shape, layout, initial, trained=parameter.trained)
            self.values[parameter.role] = made
        for constant in self.ops.constants:
            self.values[constant.role] = _constant(tape, constant, site.name)
        y = tape.register(site.values['y'], dtype=self.ops.dtype)
        # The backward reads it, so it must be kept (or made again) behind its last reader in the forward.
        if self.ops.saves_result:
            tape.saved.add(y.name)
        for kept in self.ops.kept:
            value = Value(self._named(kept.role), kept.shape, kept.layout)
            self.values[kept.role] = tape.register(value, dtype=kept.dtype)
        self._op(self.ops.F, 'F', self._names(self.ops.F.writes))
        tape.backward_of(y, self._backward)
        return y

    def _named(self, role: str) -> str:
        return role.removeprefix(NAMED) if role.startswith(NAMED) else f'{self.site.name}.{role}'

    def _backward(self, dy: Value) -> None:
        self.values['dy'] = dy
        wanted = {role: work for role, work in self.ops.I.items() if self.values[role].needs_gradient}
        # Once for I and W together, before both.
        self._gather_again([work for work in (*wanted.values(), self.ops.W) if work])
        for role, work in wanted.items():
            x = self.values[role]
            self.values[f'd{role}'] = gradient = dy if work is None else self._input_gradient(x, work, dy)
            # Gradients of inputs go before W: others wait for them, for W only the update does.
            self.site.tape.accumulate(x, gradient)
        if self.ops.W is not None:
            self._op(self.ops.W, 'W', (), [self.values[parameter.role] for parameter in self.ops.parameters])

    def _gather_again(self, works: Sequence[Work]) -> None:
        read = {role for work in works for role in work.reads}
        for role in self.roles:
            if role in read and self.values[role].again is not None:
                self.again[role] = self.site.mover.gathered_again(self.values[role])

    def _input_gradient(self, x: Value, work: Work, dy: Value) -> Value:
        tape = self.site.tape
        gradient = tape.new_gradient(x, work.of or f'{self.site.name}{work.suffix}', dy)
        for made in self.ops.made_backward if work.writes else ():
            value = Value(self._named(made.role), made.shape, made.layout)
            tape.register(value.like(value.name, tape.layout_given(value, dy)), dtype=made.dtype)
        self._op(work, 'I', [gradient.name, *self._names(work.writes)])
        return gradient

    def _names(self, roles: Iterable[str]) -> list[str]:
        return [role.removeprefix(NAMED) if role.startswith(NAMED) else self._read(role).name for role in roles]

    def _read(self, role: str) -> Value:
        return self.again.get(role) or self.values[role]

    def _op(self, work: Work, phase: Phase, writes: Sequence[str], adds: Sequence[Value] = ()) -> None:
        tape = self.site.tape
        read = [self._read(role) for role in work.reads if not role.startswith(NAMED)]
        tape.emit_compute(
            f'{self.site.name}{work.suffix}',
            work.operator,
            phase,
            self._names(work.reads),
            writes,
            flops=work.flops,
            dims=dict(work.dims),
            accumulates=tape.adds_to(adds, read) if adds else (),
            attributes=dict(work.attributes),
            moved=work.moved,
        )


def emit(site: Site, ops: Ops, roles: tuple[str, ...]) -> Value:
    """Emit an operator's forward, and remember its backward; returns its result, as a rank computes it.

    Arguments: ``roles`` of what it reads.
    """
    return _Emission(site, ops, roles).forward()


def _constant(tape: Tape, wanted: Parameter, reader: str) -> Value:
    """Register what nothing trains, once for each way that it lies; ``reader``, the operator that reads it."""
    layout = wanted.layout or replicated(tape.world, len(wanted.shape))
    name = wanted.name
    if name in tape.tensors and tape.layouts[name] != layout:
        name = f'{name}@{reader}'
    value = Value(name, wanted.shape, layout, needs_gradient=False)
    if name not in tape.tensors:
        # ``like`` has it read in full and then sharded, the same in every step and for every copy.
        tape.register(value, 'input', wanted.dtype, batch_dim=None, initial=wanted.initial, like=name)
    return value
