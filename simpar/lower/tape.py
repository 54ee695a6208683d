"""The tape: registers tensors in layouts, and emits op classes with local sizes, forward and then backward.

Gradients lie in one of two ways. ``late`` (MindSpore): where a value is replicated, its gradient is a pending sum.
Then every backward op is the transpose of its forward, and sums happen at the backward of the forward's all-reduce.
``early`` (Megatron): where a value is replicated, its gradient is, too; what an operator gives as a pending sum is
summed where the gradient is popped. In both, the gradient of a value with a pending sum is replicated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Final, NamedTuple

import numpy as np

from simpar.errors import Infeasible, ProgramError
from simpar.layout import Axis, Layout, TensorLayout, axes_name, merged, minus, rank_groups, size_of, union
from simpar.lower import issue
from simpar.model.ops import Load
from simpar.program import BYTES, COLLECTIVES, Attribute, OpClass, Partition, Phase, Split, Tensor, TensorKind


class Value(NamedTuple):
    """Name, shape and layout.

    Arguments:
        shape: of one micro-batch, unsharded.
        needs_gradient: whether anything behind it is trained.
        again: what it was gathered from, where the backward gathers it once more instead of keeping it.
        load: how full it is, where it has room for what a router sends to experts.
    """

    name: str
    shape: tuple[int, ...]
    layout: TensorLayout
    needs_gradient: bool = True
    again: Value | None = None
    load: Load | None = None

    @property
    def fill(self) -> float:
        """The share of its elements that are in use."""
        return self.load.fill(self.layout.shard_counts[self.load.dim]) if self.load else 1.0

    def like(self, name: str, layout: TensorLayout | None = None) -> Value:
        """Another value of the same shape, in this layout unless told otherwise."""
        return Value(name, self.shape, layout or self.layout, load=self.load)


SHOWN: Final = 20
"""Names that an error lists."""
Rule = tuple[int, Callable[[], None]]
"""A stage, and what emits ops of the backward in it."""


class Axes(NamedTuple):
    """The axes of degrees on the ranks of a stage, the outermost first; empty: the degree is 1.

    Arguments: ``heads``, context ranks that exchange heads for tokens; ``ring``, those that keys go round, or are
    gathered over; ``replicas``, ranks that hold the same weights, and whose parts of gradients are summed; ``expert``,
    those that share experts; ``expert_data``, those that hold the same ones.
    """

    data: tuple[Axis, ...]
    context: tuple[Axis, ...]
    heads: tuple[Axis, ...]
    ring: tuple[Axis, ...]
    replicas: tuple[Axis, ...]
    tensor: tuple[Axis, ...]
    expert: tuple[Axis, ...]
    expert_data: tuple[Axis, ...]

    @staticmethod
    def of(mesh: issue.Mesh) -> Axes:
        """Tensor ranks are neighbours, then context ranks, then data ranks."""
        inner = mesh.context * mesh.tensor
        replicas, expert = merged([Axis(mesh.replicas, mesh.tensor)]), merged([Axis(mesh.expert, mesh.expert_stride)])
        holders = replicas if mesh.expert_stride >= mesh.tensor else merged([Axis(mesh.replicas * mesh.tensor, 1)])
        return Axes(
            data=merged([Axis(mesh.data, inner)]),
            context=merged([Axis(mesh.context, mesh.tensor)]),
            heads=merged([Axis(mesh.by_heads, mesh.tensor)]),
            ring=merged([Axis(mesh.context // mesh.by_heads, mesh.by_heads * mesh.tensor)]),
            replicas=replicas,
            tensor=merged([Axis(mesh.tensor, 1)]),
            expert=expert,
            expert_data=minus(holders, expert),
        )


@dataclass(slots=True, eq=False)
class Backward:
    """What only the recording of a micro-batch needs.

    Arguments: ``rules``, what is to be emitted, the last operator last; ``contributions``, by value the parts of its
    gradient; ``handed_on``, to how many values each gradient was given.
    """

    rules: list[Rule] = field(default_factory=list)
    contributions: dict[str, list[Value]] = field(default_factory=dict)
    handed_on: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class Tape:
    """Collects the tensors and op classes of one copy of a micro-batch.

    Arguments:
        mesh: its data and tensor ranks are the ranks of a stage.
        dtype: of activations and weights; ``gradients``, of the gradients of weights, the same unless given.
        early: how gradients lie, see above.
        degrees: whether layouts come from degrees alone. Then partitions have the names of the mesh, and optimizer
            parallelism shards over the data ranks; else over all ranks that hold the same slice.
        names: a device matrix whose axes name partitions, if there is one.
        shard_group: ranks that optimizer parallelism shards over without degrees; 0: all with the same slice.

        partitions, tensors, layouts: by name. pending: by parameter the axes that its gradient is summed over.
        ops, once, casts: those of every micro-batch, those that a step does once, and casts of weights, each before the
            first product that reads it.
        saved: what a backward reads, and so must be kept. replaced: what a packed tensor holds, which is left out of
            the program.

        stage: of the pipeline, that ops are emitted in; ``backward``, what is still to come.
    """

    mesh: issue.Mesh
    dtype: str
    gradients: str = ''
    early: bool = False
    degrees: bool = False
    names: Layout | None = None
    shard_group: int = 0

    partitions: dict[str, Partition] = field(init=False)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    layouts: dict[str, TensorLayout] = field(default_factory=dict)
    pending: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    ops: list[OpClass] = field(default_factory=list)
    once: list[OpClass] = field(default_factory=list)
    casts: list[OpClass] = field(default_factory=list)
    saved: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    stage: int = 0
    backward: Backward = field(default_factory=Backward)

    def __post_init__(self) -> None:
        self.gradients = self.gradients or self.dtype
        self.axes = Axes.of(self.mesh)
        partitions = self.mesh.partitions()
        self.partitions = {name: one for name, one in partitions.items() if self.degrees or name == issue.PIPELINE}
        # Axes are looked up for every tensor, and making groups of thousands of ranks takes long.
        self._names: dict[tuple[Axis, ...], str] = {}
        self._splits: dict[TensorLayout, tuple[tuple[Split, ...], tuple[str, ...]]] = {}

    @property
    def world(self) -> int:
        """Ranks of a stage."""
        return self.mesh.replicas * self.mesh.tensor

    def copy(self) -> Tape:
        """A tape with the same on it, whose changes leave this one as it is."""
        made = copy(self)
        for name, value in vars(self).items():
            # What ops and tensors say is never changed in place, so the lists of them are all that is copied.
            if isinstance(value, dict | list | set):
                setattr(made, name, value.copy())
        return made

    # partitions

    def partition(self, axes: Sequence[Axis]) -> str:
        """The name of the partition into groups along axes, the first of which counts most; registered on first use."""
        wanted = merged(axes)
        if wanted not in self._names:
            self._names[wanted] = self.registered(self.groups(wanted))
        return self._names[wanted]

    def groups(self, axes: tuple[Axis, ...]) -> Partition:
        """The groups along axes in every stage."""
        groups = rank_groups(self.world, axes)
        first = np.arange(self.mesh.pipeline, dtype=np.int32)[:, None, None] * self.world
        return Partition(partition_name(self, axes), (groups + first).reshape(-1, groups.shape[1]))

    def registered(self, partition: Partition) -> str:
        """The name of a partition, which is known from then on."""
        return self.partitions.setdefault(partition.name, partition).name

    # tensors

    def register(
        self,
        value: Value,
        kind: TensorKind = 'activation',
        dtype: str = '',
        *,
        batch_dim: int | None = 0,
        initial: str = '',
        like: str = '',
    ) -> Value:
        """Register a value; ``batch_dim``, the dim along which copies split it."""
        layout = value.layout
        self.layouts[value.name] = layout
        splits = self._splits.get(layout)
        if splits is None:
            shards = tuple(Split(dim, self.partition((axis,))) for dim, axes in enumerate(layout.dims) for axis in axes)
            partial = (self.partition(layout.partial),) if layout.partial else ()
            splits = self._splits[layout] = shards, partial
        tensor = Tensor(
            value.name, kind, value.shape, dtype or self.dtype, *splits, batch_dim, initial, like,
            fill=value.fill,
        )  # fmt: skip
        if tensor.name in self.tensors:
            raise ProgramError(f'two tensors are named {tensor.name!r}; give the layers different names')
        self.tensors[tensor.name] = tensor
        return value

    def place(self, name: str, layout: TensorLayout) -> None:
        """Remember how a tensor lies that is registered by hand."""
        self.layouts[name] = layout

    def parameter(
        self, name: str, shape: tuple[int, ...], layout: TensorLayout, initial: str, *, trained: bool = True
    ) -> Value:
        """Register a parameter, once, and its gradient, which holds a rank's part of the sum until it is reduced.

        Arguments: ``trained``; else it is a constant, without a gradient.
        """
        value = Value(name, shape, layout, needs_gradient=trained)
        if name not in self.tensors:
            self.register(value, 'parameter', batch_dim=None, initial=initial)
            if not trained:
                return value
            self.register(value.like(f'd:{name}'), 'gradient', self.gradients, batch_dim=None, like=name)
        elif self.layouts[name] != layout:
            raise Infeasible(
                f'{name}: two operators have it (tied), and their strategies split it unlike; split both alike, or none'
            )
        return value

    def held(self, name: str) -> int:
        """Elements of a tensor that one rank holds for one copy."""
        tensor = self.tensors[name]
        elements = prod(tensor.local_shape(self.partitions, self.mesh.copies))
        return elements if tensor.fill == 1 else round(elements * tensor.fill)

    def held_bytes(self, name: str) -> int:
        """Bytes of a tensor that one rank holds for one copy."""
        return self.held(name) * BYTES[self.tensors[name].dtype]

    # ops

    def emit(self, op: OpClass) -> None:
        """Append an op class to the current stage."""
        self.ops.append(op if op.stage == self.stage else replace(op, stage=self.stage))

    def emit_compute(
        self,
        name: str,
        operator: str,
        phase: Phase,
        reads: Sequence[str],
        writes: Sequence[str] = (),
        *,
        flops: float = 0.0,
        dims: dict[str, int] | None = None,
        accumulates: Sequence[str] = (),
        attributes: dict[str, Attribute] | None = None,
        moved: float | None = None,
    ) -> None:
        """Emit a compute op; ``moved``, bytes of memory traffic, is all that it reads and writes unless given."""
        if moved is None:
            moved = sum(map(self.held_bytes, (*reads, *writes))) + 2 * sum(map(self.held_bytes, accumulates))
        self.emit(
            OpClass(
                name=f'{name}.{phase}',
                kind='compute',
                operator=operator,
                phase=phase,
                dims=dims or {},
                flops=float(flops),
                bytes=float(moved),
                dtype=self.dtype,
                reads=tuple(reads),
                writes=tuple(writes),
                accumulates=tuple(accumulates),
                attributes=attributes or {},
                stage=self.stage,
            )
        )

    def emit_collective(
        self,
        operator: str,
        phase: Phase,
        over: Sequence[Axis] | str,
        source: str,
        target: str,
        attributes: dict[str, Attribute] | None = None,
        *,
        reduce: str = 'sum',
    ) -> None:
        """Emit a collective of the ranks along axes, or of a partition's."""
        sent = target if operator == 'all_gather' else source
        # Of an all-to-all to experts the rank of the fullest one gets more than it sends.
        got = target if operator == 'all_to_all' else sent
        self.emit(
            OpClass(
                name=f'{target}.{operator}.{phase}',
                kind='collective',
                operator=operator,
                phase=phase,
                bytes=float(max(self.held_bytes(sent), self.held_bytes(got))),
                dtype=self.tensors[source].dtype,
                partition=over if isinstance(over, str) else self._met_over(operator, over),
                reduce=reduce if COLLECTIVES[operator].adds else '',
                reads=(source,),
                writes=(target,),
                attributes=attributes or {},
                stage=self.stage,
            )
        )

    def _met_over(self, operator: str, axes: Sequence[Axis]) -> str:
        """The partition of a collective along axes.

        All-to-alls to experts have one, and so a stream, of their own: tokens must not wait for sums of gradients.
        """
        experts = self.axes.expert if self.degrees and operator == 'all_to_all' else ()
        return issue.EXPERT if experts and merged(axes) == experts else self.partition(axes)

    # the backward

    def on_backward(self, rule: Callable[[], None]) -> None:
        """Remember what to emit when the backward comes by here."""
        self.backward.rules.append((self.stage, rule))

    def backward_of(self, value: Value, rule: Callable[[Value], None]) -> None:
        """Emit what ``rule`` makes of the gradient of a value, once there is one."""

        def run() -> None:
            gradient = self.pop(value)
            if gradient is not None:
                rule(gradient)

        self.on_backward(run)

    def backpropagate(self) -> None:
        """Emit the backward ops, the last operator first, each in the stage of its forward."""
        # Last in, first out: the backward of an operator needs the gradients that its readers give.
        while self.backward.rules:
            self.stage, rule = self.backward.rules.pop()
            rule()

    # gradients of values

    def gradient_layout(self, value: Value) -> TensorLayout:
        """How the gradient of a value lies once it is popped."""
        return value.layout.without_partial() if self.early else value.layout.with_partial(value.layout.replicated_axes)

    def layout_given(self, value: Value, gradient: Value) -> TensorLayout:
        """How an operator gives the gradient of a value that it reads, from the gradient of its result.

        It sums over what shards its result and not the value: early, that is what it leaves to be summed.
        """
        if not self.early:
            return self.gradient_layout(value)
        pending = minus(gradient.layout.sharding_axes, value.layout.sharding_axes)
        return value.layout.with_partial(union(pending, gradient.layout.partial))

    def new_gradient(self, value: Value, of: str, gradient: Value) -> Value:
        """Register the gradient of a value as operator ``of`` gives it, from the gradient of its result."""
        return self.register(value.like(f'd:{value.name}@{of}', self.layout_given(value, gradient)))

    def accumulate(self, value: Value, gradient: Value | None) -> None:
        """Add a part of the gradient of a value, from one of the operators that read it."""
        if gradient is not None and value.needs_gradient:
            self.backward.contributions.setdefault(value.name, []).append(gradient)
            self.backward.handed_on[gradient.name] += 1

    def parts(self, value: Value) -> list[Value]:
        """What the readers of a value gave, as sums of those that lie alike: pending sums first."""
        gradients = self.backward.contributions.pop(value.name, [])
        pending = [part for part in gradients if part.layout.partial]
        summed = [self._sum(value.name, pending), self._sum(value.name, [p for p in gradients if not p.layout.partial])]
        return [part for part in summed if part is not None]

    def pop(self, value: Value) -> Value | None:
        """The gradient of a value, the sum of what its readers gave, as it is to lie; None where there is none."""
        gradients = self.backward.contributions.pop(value.name, [])
        wanted = self.gradient_layout(value)
        # Pending parts are added before they are reduced: one all-reduce instead of one a part.
        pending = self._sum(f'{value.name}.partial', [part for part in gradients if part.layout != wanted])
        others = [part for part in gradients if part.layout == wanted]
        if pending is not None:
            done = self.register(pending.like(f'd:{value.name}.reduced', wanted))
            self.emit_collective(
                'all_reduce', 'I', minus(pending.layout.partial, wanted.partial), pending.name, done.name
            )
            others.append(done)
        return self._sum(value.name, others)

    def _sum(self, name: str, parts: Sequence[Value]) -> Value | None:
        total = parts[0] if parts else None
        for count, part in enumerate(parts[1:], 1):
            last = f'd:{name}' if count == len(parts) - 1 else f'd:{name}+{count - 1}'
            summed = self.register(parts[0].like(last if self.degrees else f'd:{name}.sum{count}'))
            reads = [total.name if total else '', part.name]
            self.emit_compute(summed.name, 'add', 'I', reads, [summed.name], flops=self.held(summed.name))
            total = summed
        return total

    # gradients of parameters

    def adds_to(self, parameters: Sequence[Value], of: Iterable[Value]) -> list[str]:
        """The names of the gradients of parameters, to which an op adds that reads values and gradients ``of``."""
        sharded: tuple[Axis, ...] = ()
        for value in of if self.early else ():
            sharded = union(sharded, union(value.layout.sharding_axes, value.layout.partial))
        for parameter in parameters:
            pending = minus(sharded, parameter.layout.sharding_axes) if self.early else parameter.layout.unsharded_axes
            # One gradient has one sum: a weight that is used twice must be used alike.
            if self.pending.setdefault(parameter.name, pending) != pending:
                raise ProgramError(f'the gradient of {parameter.name} has two different pending sums')
        return [f'd:{parameter.name}' for parameter in parameters]

    def adders(self) -> dict[str, list[OpClass]]:
        """By gradient of a parameter the ops that add to it; the backward goes from the last stage to the first."""
        by_gradient: dict[str, list[OpClass]] = {}
        for op in self.ops:
            for name in op.accumulates:
                by_gradient.setdefault(name, []).append(op)
        return by_gradient

    def summing(self, parameter: str) -> str:
        """The partition that a parameter's gradient is summed over; empty: no one else has a part of it."""
        pending = self.pending[parameter]
        if self.degrees and pending == self.axes.replicas and self.mesh.replicas > 1:
            return self.mesh.summed
        return self.partition(pending) if size_of(pending) > 1 else ''


# What partitions are called: by the degrees whose ranks they are, by axes of a device matrix, or by their axes.


def partition_name(tape: Tape, axes: tuple[Axis, ...]) -> str:
    """The name of the partition into groups along axes."""
    name = _of_degrees(tape).get(axes, '') if tape.degrees else _alias(tape, axes)
    if name:
        return name
    if size_of(axes) < tape.world:
        return axes_name(tape.world, axes)
    # All ranks in another order are another partition: positions in its group differ.
    if list(axes) != sorted(axes, key=lambda axis: -axis.stride):
        return '+'.join(map(str, axes))
    return issue.STAGE if tape.degrees or tape.mesh.pipeline > 1 else axes_name(tape.world, axes)


def _of_degrees(tape: Tape) -> dict[tuple[Axis, ...], str]:
    """By axes; where degrees have the same ranks, the last one counts."""
    names = {tape.axes.data: issue.DATA}
    if tape.axes.expert and tape.axes.expert_data:
        names |= {tape.axes.expert: issue.EXPERT, tape.axes.expert_data: issue.EXPERT_DATA}
    names |= {tape.axes.tensor: issue.TENSOR}
    if tape.axes.context:
        both = merged([*tape.axes.context, *tape.axes.tensor])
        names |= {both: issue.CONTEXT_TENSOR} if size_of(both) < tape.world else {}
        if tape.axes.heads and tape.axes.ring:
            names |= {tape.axes.heads: issue.CONTEXT_HEADS, tape.axes.ring: issue.CONTEXT_RING}
        names |= {tape.axes.replicas: tape.mesh.summed, tape.axes.context: issue.CONTEXT}
    return names


def _alias(tape: Tape, axes: tuple[Axis, ...]) -> str:
    if tape.names is None:
        return ''
    by_axis = {tape.names.axis(alias): alias for alias in tape.names.aliases}
    return '+'.join(by_axis[axis] for axis in axes) if all(axis in by_axis for axis in axes) else ''


def summed(
    name: str, phase: Phase, partition: str, names: tuple[str, ...], size: float, dtype: str, stage: int = 0
) -> OpClass:
    """An all-reduce of tensors in place, ``size`` bytes."""
    return OpClass(name, 'collective', 'all_reduce', phase, bytes=size, dtype=dtype, partition=partition, reduce='sum',
                   reads=names, writes=names, stage=stage)  # fmt: skip


def named_by_nothing(key: str, pattern: str, what: str, names: Collection[str]) -> Infeasible:
    """The error that a pattern names none of some names: to be raised."""
    more = ', ...' if len(names) > SHOWN else ''
    return Infeasible(f'{key}: {pattern} names no {what}; there are {", ".join(islice(names, SHOWN))}{more}')


def layer_of(parameter: str) -> str:
    """``layer3.qkv.weight`` → ``layer3``."""
    return parameter.partition('.')[0]


def local_elements(tape: Tape, tensor: Tensor) -> int:
    """Elements of a parameter, gradient or state that one rank holds."""
    return prod(local_shape(tape, tensor))


def local_shape(tape: Tape, tensor: Tensor) -> tuple[int, ...]:
    """The shape that one rank holds of a parameter, gradient or state."""
    return tensor.local_shape(tape.partitions)
