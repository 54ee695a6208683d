"""Redistributions on the tape, and the ops that a node of the graph emits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod

from simpar.layout import (
    Axis,
    Method,
    Part,
    Redistribution,
    State,
    Step,
    TensorLayout,
    redistribute,
    replicated,
    size_of,
)
from simpar.lower.tape import Tape, Value
from simpar.model.ops import NAMED, Ops, Parameter, Work
from simpar.program import BYTES, Attribute, Phase

# Redistribution on the tape: the steps of a layout change become collectives and slices of the program.
#
# Where every slice on the way is one block of the tensor, steps work on the tensor's own dims. Else the tensor is
# seen in parts for the time, with a copy at either end (what MindSpore's Reshape, Split and Concat do).

Dims = tuple[tuple[Axis, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Mover:
    """Brings values into layouts.

    Arguments:
        method, all_to_all: of ``simpar.layout.redistribute``.
        results: of ops emitted forward.
        moved: what values became before, by name, layout and stage.
        again: what the backward gathered once more, by the name of what the forward gathered.
    """

    tape: Tape
    method: Method = 'cheapest'
    all_to_all: bool = False
    results: set[str] = field(default_factory=set)
    moved: dict[tuple[str, TensorLayout, int], Value] = field(default_factory=dict)
    again: dict[str, Value] = field(default_factory=dict)

    @property
    def as_compiler(self) -> bool:
        """Whether values go the way of MindSpore's compiler."""
        return self.method != 'cheapest'

    def move(self, value: Value, target: TensorLayout, name: str = '') -> Value:
        """The value in a layout; its gradient will come back.

        Arguments: ``name`` of the result; made from the value's unless given.
        """
        if value.layout == target:
            return value
        # One redistribution for all that want the same; the compiler has one for each: see ``share``.
        # By stage, too: a rank of one stage does not have what another made.
        key = (value.name, target, self.tape.stage)
        if not self.as_compiler and key in self.moved:
            return self.moved[key]
        redistribution = redistribute(value.shape, value.layout, target, self.method, self._exchanges(value))
        gathers = any(step.kind == 'all_gather' for step in redistribution.steps)
        if not name and self.tape.degrees:
            name = self._free(f'{value.name}.{"whole" if gathers else "slice"}')
        result = self._emit(redistribution, value, name or self._fresh(value.name), 'F')
        # Megatron gathers a sequence-parallel input once more in the backward instead of keeping it.
        gathered = [step.kind for step in redistribution.steps] == ['all_gather']
        # Tokens that came to an expert are kept.
        once_more = self.tape.degrees and gathered and value.load is None
        result = result._replace(again=value if once_more else None)
        if self.tape.early:
            self.tape.on_backward(lambda: self._back_early(value, result, gathers=gathers))
        else:
            self.tape.backward_of(result, lambda gradient: self._back(redistribution, value, gradient, gathers=gathers))
        self.moved[key] = result
        return result

    def in_layout(self, value: Value, target: TensorLayout, name: str, phase: Phase) -> Value:
        """The value in a layout, under this name; no gradient comes back by itself."""
        if value.layout == target:
            return value
        return self._emit(redistribute(value.shape, value.layout, target, 'cheapest'), value, name, phase)

    def summed(self, y: Value, output: TensorLayout, name: str) -> Value:
        """An operator's own sum, whatever the way of redistributions: scattered where its output is to be."""
        # The compiler's sequences begin from full values: the operator's own sum is no redistribution to it.
        return replace(self, method='cheapest').move(y, output, name) if y.layout.partial else y

    def gathered_again(self, value: Value) -> Value:
        """What the backward reads of a value that is gathered once more instead of kept."""
        if value.again is None:
            return value
        # One gather for all that read the same, as where queries, keys and values are products of their own.
        if value.name not in self.again:
            redistribution = redistribute(value.shape, value.again.layout, value.layout, 'cheapest', self.all_to_all)
            self.again[value.name] = self._emit(
                redistribution, value.again, self._free(f'{value.again.name}.again'), 'W'
            )
        return self.again[value.name]

    def share(self) -> None:
        """Do once what several redistributions of a value begin with alike, forward; each gradient has its own way.

        The compiler eliminates common subexpressions behind its differentiation.
        """
        instead: dict[str, str] = {}
        by_key: dict[object, str] = {}
        ops = []
        for op in self.tape.ops:
            reads = tuple(instead.get(name, name) for name in op.reads)
            if not self.results.isdisjoint(op.writes):
                (result,) = op.writes
                # A copy that sees a tensor in parts is told by nothing but its result.
                unnamed = replace(self.tape.tensors[result], name='')
                same = (op.stage, op.operator, op.partition, reads, unnamed, *op.attributes.items())
                instead[result] = by_key.setdefault(same, result)
                if instead[result] != result:
                    del self.tape.tensors[result]
                    continue
            ops.append(op if reads == op.reads else replace(op, reads=reads))
        self.tape.ops[:] = ops

    def _exchanges(self, value: Value) -> bool:
        """Whether a value may move by an all-to-all: tokens go to experts by nothing else."""
        return self.all_to_all or value.load is not None

    # names

    def _fresh(self, name: str, mark: str = '') -> str:
        """A name for another layout of a value."""
        base, count = name.partition('@')[0], 1
        while f'{base}@{mark}{count}' in self.tape.tensors:
            count += 1
        return f'{base}@{mark}{count}'

    def _free(self, name: str) -> str:
        """The name, or one with a count where it is taken."""
        candidate, count = name, 1
        while candidate in self.tape.tensors:
            candidate, count = f'{name}{count}', count + 1
        return candidate

    # the backward

    def _back(self, redistribution: Redistribution, value: Value, gradient: Value, *, gathers: bool) -> None:
        if not value.needs_gradient:
            return
        name = f'd:{value.name}'
        if self.tape.degrees:
            name = self._free(f'{name}@sum' if gathers else f'{gradient.name}.whole')
        elif name in self.tape.tensors:
            name = self._fresh(name, 'back')
        self.tape.accumulate(value, self._emit(redistribution.backward(), gradient, name, 'I'))

    def _back_early(self, value: Value, result: Value, *, gathers: bool) -> None:
        """Behind a gather, pending sums of the gradient are scattered and not summed first."""
        summed = None if gathers else self.tape.pop(result)
        for gradient in self.tape.parts(result) if gathers else [summed] if summed else []:
            if value.needs_gradient:
                self.tape.accumulate(value, self._returned(value, gradient, gathers=gathers))

    def _returned(self, value: Value, gradient: Value, *, gathers: bool) -> Value:
        wanted = self.tape.gradient_layout(value)
        if gradient.layout == wanted:
            return gradient
        ending = 'sum' if gradient.layout.partial else 'slice'
        name = self._free(f'd:{value.name}@{ending}' if gathers else f'{gradient.name}.whole')
        redistribution = redistribute(gradient.shape, gradient.layout, wanted, 'cheapest', self._exchanges(value))
        return self._emit(redistribution, gradient, name, 'I')

    # ops

    def _emit(self, redistribution: Redistribution, value: Value, name: str, phase: Phase) -> Value:
        actions = [action for part in redistribution.parts for action in _actions(redistribution.shape, part)]
        dtype = self.tape.tensors[value.name].dtype
        source = value.name
        for place, action in enumerate(actions):
            last = place == len(actions) - 1
            layout = redistribution.target if last else TensorLayout(self.tape.world, action.dims)
            result = Value(
                name if last else f'{name}.{place}', action.shape, layout, value.needs_gradient, load=value.load
            )
            self.tape.register(result, dtype=dtype, batch_dim=action.batch_dim)
            self._op(action, phase, source, result.name)
            self.results.update([result.name] if phase == 'F' else [])
            source = result.name
        return result

    def _op(self, action: _Action, phase: Phase, source: str, target: str) -> None:
        if action.kind == 'copy':
            self.tape.emit_compute(f'{target}.copy', 'scale', phase, [source], [target], attributes={'factor': 1.0})
        elif action.kind in ('slice', 'pad'):
            attributes: dict[str, Attribute] = {
                **(action.attributes or {}),
                'partition': self.tape.partition(action.axes),
            }
            name = target if self.tape.degrees else f'{target}.{action.kind}'
            self.tape.emit_compute(name, action.kind, phase, [source], [target], attributes=attributes)
        else:
            self.tape.emit_collective(action.kind, phase, action.axes, source, target, action.attributes)


@dataclass(frozen=True, slots=True)
class _Action:
    """One op of a redistribution.

    Arguments: ``kind``: a step's, or ``copy``; ``shape``, ``dims`` and ``batch_dim`` of what it writes.
    """

    kind: str
    shape: tuple[int, ...]
    dims: Dims
    batch_dim: int = 0
    axes: tuple[Axis, ...] = ()
    attributes: dict[str, Attribute] | None = None


def _actions(shape: tuple[int, ...], part: Part) -> Iterator[_Action]:
    own = tuple(range(len(part.shape)))
    steps = [single for step in part.steps for single in _by_dim(step, part.dim_of)]
    states = list(_states(part.begin, steps))
    # Kernels slice and join along dims of the tensor; a slice that is several blocks needs a view in parts, and two
    # copies.
    if all(_is_block(part, state) for state in states) and all(_is_nested(step, part.dim_of) for step in steps):
        for step, state in zip(steps, states[1:], strict=True):
            yield _Action(step.kind, shape, _block_dims(part, state), 0, step.axes, _attributes(step, part.dim_of))
        return
    steps = [single for step in part.steps for single in _by_dim(step, own)]
    states = list(_states(part.begin, steps))
    # Copies are the innermost part of the first dim: what axes shard lies outside of it.
    batch_dim = max(place for place, dim in enumerate(part.dim_of) if dim == 0)
    yield _Action('copy', part.shape, _view_dims(states[0]), batch_dim)
    for step, state in zip(steps, states[1:], strict=True):
        yield _Action(step.kind, part.shape, _view_dims(state), batch_dim, step.axes, _attributes(step, own))
    yield _Action('copy', shape, _block_dims(part, states[-1]))


def _by_dim(step: Step, dim_of: Sequence[int]) -> Iterator[Step]:
    """A step as one for each dim of what it works on; an all-to-all and an all-reduce stay one."""
    if step.kind in ('all_to_all', 'all_reduce'):
        yield step
        return
    for _, places in groupby(range(len(step.axes)), key=lambda place: dim_of[(step.gather or step.split)[place]]):
        yield _restricted(step, list(places))


def _restricted(step: Step, places: Sequence[int]) -> Step:
    """A step of some of the axes; its shapes are no longer told."""

    def of(items: Sequence[int]) -> tuple[int, ...]:
        return tuple(items[place] for place in places) if items else ()

    axes = tuple(step.axes[place] for place in places)
    return replace(step, axes=axes, gather=of(step.gather), split=of(step.split), before=(), after=())


def _states(begin: State, steps: Iterable[Step]) -> Iterator[State]:
    """The state before the first step and after each."""
    state = list(begin)
    yield tuple(state)
    for step in steps:
        for place in step.gather:
            state[place] = None
        for axis, place in zip(step.axes, step.split, strict=False):
            state[place] = axis
        yield tuple(state)


def _is_block(part: Part, state: State) -> bool:
    """Whether a rank's slice is one block of the tensor: no part is sharded inside of one that is not split up."""
    open_dims: set[int] = set()
    for axis, dim, length in zip(state, part.dim_of, part.shape, strict=True):
        if axis is not None and dim in open_dims:
            return False
        # The part is not used up: what lies inside of it would be several blocks.
        if axis is None or axis.size < length:
            open_dims.add(dim)
    return True


def _is_nested(step: Step, dim_of: Sequence[int]) -> bool:
    """Whether the axes that an all-to-all moves to one dim count there as they do in the group."""
    if step.kind != 'all_to_all':
        return True
    return list(step.split) == sorted(step.split) and list(step.gather) == sorted(step.gather)


def _block_dims(part: Part, state: State) -> Dims:
    """The axes that shard each tensor dim."""
    dims: list[list[Axis]] = [[] for _ in range(max(part.dim_of) + 1)]
    for axis, dim in zip(state, part.dim_of, strict=True):
        dims[dim] += [axis] if axis is not None else []
    return tuple(map(tuple, dims))


def _view_dims(state: State) -> Dims:
    return tuple((axis,) if axis is not None else () for axis in state)


def _attributes(step: Step, dim_of: Sequence[int]) -> dict[str, Attribute]:
    """What a kernel must know: the dim along which it splits or joins; for an all-to-all, of each axis."""
    if step.kind == 'all_reduce':
        return {}
    if step.kind != 'all_to_all':
        return {'dim': dim_of[(step.gather or step.split)[0]]}
    joins, splits = ([str(dim_of[place]) for place in places] for places in (step.gather, step.split))
    sizes = [str(axis.size) for axis in step.axes]
    return {'joins': ' '.join(joins), 'cuts': ' '.join(splits), 'sizes': ' '.join(sizes)}


# Operators on the tape: their templates of F, I and W become op classes with tensors' names and local sizes.


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
        return self.tape.mesh.parts if self.tape.mesh.balanced else 0

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
        tensor = self.tape.tensors.get(self.values[role].name)
        return self.elements(role) * BYTES[tensor.dtype if tensor else self.tape.dtype]

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
        for extra in self.ops.kept:
            value = Value(self._named(extra.role), extra.shape, extra.layout)
            self.values[extra.role] = tape.register(value, dtype=extra.dtype)
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
