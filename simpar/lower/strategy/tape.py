"""The tape of strategies: op classes with local dims, of tensors that lie in any layout.

A value that is repeated along an axis has a gradient with a pending sum over it, and what is summed forward has a
repeated gradient: every backward op is the transpose of its forward. Sums so happen at the backward of the forward's
all-reduce, and at the mirror of a parameter, as in MindSpore ("reduce late").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from simpar.errors import Infeasible, ProgramError
from simpar.layout import Axis, Layout, TensorLayout
from simpar.layout.axis import axes_name, merged, rank_groups, size_of
from simpar.lower.mesh import PIPELINE, STAGE, Mesh
from simpar.lower.tape import Tape
from simpar.program import Cut, OpClass, Partition, Tensor
from simpar.program.op import Attribute, Phase
from simpar.program.tensor import BYTES, TensorKind


@dataclass(frozen=True, slots=True)
class Laid:
    """A value in a layout.

    Arguments: ``shape`` of the whole value of one micro-batch.
    """

    name: str
    shape: tuple[int, ...]
    layout: TensorLayout
    needs_gradient: bool = True

    @property
    def gradient_layout(self) -> TensorLayout:
        """Where the value is repeated, its gradient has pending sums; where it has pending sums, it is repeated."""
        return self.layout.with_partial(self.layout.repeated)


class LaidTape(Tape):
    """A tape whose values lie in layouts over the ``world`` ranks of a stage, in every stage alike.

    Arguments: ``mesh``, whose data ranks are those of a stage; ``shard_group``, of optimizer parallelism, 0: all ranks
    with the same slice; ``names``, a device matrix whose axes name partitions, if the user gave one.
    """

    def __init__(
        self, mesh: Mesh, dtype: str, gradients: str = '', *, shard_group: int = 0, names: Layout | None = None
    ) -> None:
        super().__init__(mesh, dtype, late=False, gradients=gradients)
        self.world = mesh.data
        self._shard_group = shard_group
        self.partitions = {name: of for name, of in self.partitions.items() if name == PIPELINE}
        self.names = names
        self._axes: dict[str, tuple[Axis, ...]] = {}
        self._layouts: dict[str, TensorLayout] = {}
        self._laid_gradients: dict[str, list[Laid]] = {}
        self.moved: dict[tuple[str, TensorLayout, int], Laid] = {}

    # tensors

    def partition(self, axes: Sequence[Axis]) -> str:
        """The name of the partition into groups along axes, the first of which counts most; registered on first use."""
        name = self._registered(self._groups(merged(axes)))
        self._axes[name] = merged(axes)
        return name

    def _groups(self, axes: tuple[Axis, ...]) -> Partition:
        """The groups along axes in every stage."""
        name = self._alias(axes) or axes_name(self.world, axes)
        if name == 'world' and list(axes) != sorted(axes, key=lambda axis: -axis.stride):
            name = '+'.join(map(str, axes))
        elif name == 'world' and self.mesh.pipeline > 1:
            name = STAGE
        groups = rank_groups(self.world, axes)
        first = np.arange(self.mesh.pipeline, dtype=np.int32)[:, None, None] * self.world
        return Partition(name, (groups + first).reshape(-1, groups.shape[1]))

    def _registered(self, partition: Partition) -> str:
        return self.partitions.setdefault(partition.name, partition).name

    def _alias(self, axes: tuple[Axis, ...]) -> str:
        if self.names is None:
            return ''
        known = {self.names.axis(alias): alias for alias in self.names.aliases}
        return '+'.join(known[axis] for axis in axes) if all(axis in known for axis in axes) else ''

    def lay(
        self,
        value: Laid,
        kind: TensorKind = 'activation',
        dtype: str = '',
        *,
        batch_dim: int | None = 0,
        initial: str = '',
        like: str = '',
    ) -> Laid:
        """Register a value; ``batch_dim``, the dim along which copies cut it."""
        cuts = tuple(Cut(dim, self.partition((axis,))) for dim, axes in enumerate(value.layout.dims) for axis in axes)
        self._layouts[value.name] = value.layout
        partial = (self.partition(value.layout.partial),) if value.layout.partial else ()
        self._put(Tensor(value.name, kind, value.shape, dtype or self.dtype, cuts, partial, batch_dim, initial, like))
        return value

    def laid_parameter(self, name: str, shape: tuple[int, ...], layout: TensorLayout, initial: str) -> Laid:
        """Register a parameter and its gradient, which holds a rank's part of the sum until it is reduced."""
        value = self.lay(Laid(name, shape, layout), 'parameter', batch_dim=None, initial=initial)
        self.lay(Laid(f'd:{name}', shape, layout), 'gradient', self.gradients, batch_dim=None, like=name)
        return value

    def _put(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            raise ProgramError(f'two tensors are named {tensor.name!r}; give the layers different names')
        self.tensors[tensor.name] = tensor

    def held(self, name: str) -> int:
        """Elements of a tensor that one rank holds for one copy."""
        tensor = self.tensors[name]
        count = prod(tensor.shape) // prod(self.partitions[cut.partition].size for cut in tensor.cuts)
        return count if tensor.batch_dim is None else count // self.mesh.copies

    def held_bytes(self, name: str) -> int:
        """Bytes of a tensor that one rank holds for one copy."""
        return self.held(name) * BYTES[self.tensors[name].dtype]

    # ops

    def work(
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
            )
        )

    def exchange(
        self,
        operator: str,
        phase: Phase,
        axes: Sequence[Axis],
        source: str,
        target: str,
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        """Emit a collective of the ranks along axes."""
        full = target if operator == 'all_gather' else source
        self.emit(
            OpClass(
                name=f'{target}.{operator}.{phase}',
                kind='collective',
                operator=operator,
                phase=phase,
                bytes=float(self.held_bytes(full)),
                dtype=self.tensors[source].dtype,
                partition=self.partition(axes),
                reduce='sum' if operator in ('all_reduce', 'reduce_scatter') else '',
                reads=(source,),
                writes=(target,),
                attributes=attributes or {},
            )
        )

    # gradients

    def give(self, value: Laid, gradient: Laid | None) -> None:
        """The gradient of a value, from one of the operators that read it."""
        if gradient is not None and value.needs_gradient:
            self._laid_gradients.setdefault(value.name, []).append(gradient)

    def take(self, value: Laid) -> Laid | None:
        """The gradient of a value, the sum of what its readers gave; None if there is none."""
        parts = self._laid_gradients.pop(value.name, [])
        total = parts[0] if parts else None
        for count, part in enumerate(parts[1:], 1):
            summed = self.lay(replace(parts[0], name=f'd:{value.name}.sum{count}'))
            reads = [total.name if total else '', part.name]
            self.work(summed.name, 'add', 'I', reads, [summed.name], flops=self.held(summed.name))
            total = summed
        return total

    def new_gradient(self, value: Laid, of: str) -> Laid:
        """Register the gradient of a value that operator ``of`` reads."""
        return self.lay(Laid(f'd:{value.name}@{of}', value.shape, value.gradient_layout))

    def backward_of(self, value: Laid, rule: Callable[[Laid], None]) -> None:
        """Emit what ``rule`` makes of the gradient of a value, once there is one."""

        def run() -> None:
            gradient = self.take(value)
            if gradient is not None:
                rule(gradient)

        self.on_backward(run)

    def cutting(self, name: str) -> str:
        """The ranks along all axes that cut a tensor, the first cut's counting most."""
        axes = [axis for cut in self.tensors[name].cuts for axis in self._axes[cut.partition]]
        return self.partition(axes) if axes else ''

    # replicas of parameters

    def summing(self, parameter: str) -> str:
        """The mirror: all ranks of the stage that have the same slice."""
        mirror = self._layouts[parameter].uncut
        return self.partition(mirror) if size_of(mirror) > 1 else ''

    def sharding(self, parameter: str) -> tuple[str, str]:
        """The mirror, or so many neighbours in it as the plan says, if there are more.

        Raises ``Infeasible`` where these do not divide.
        """
        mirror = self._groups(self._layouts[parameter].uncut)
        size = min(self._shard_group or mirror.size, mirror.size)
        if mirror.size % size:
            raise Infeasible(
                f'plan.shard_group: {size} does not divide the {mirror.size} ranks with the same slice of {parameter}; '
                'choose a divisor, or 0 for all'
            )
        if size in (1, mirror.size):
            return (self._registered(mirror) if size > 1 else ''), ''
        groups = mirror.groups_GP.reshape(-1, mirror.size // size, size)
        near = Partition(f'{mirror.name}.shard', groups.reshape(-1, size))
        far = Partition(f'{mirror.name}.replica', groups.swapaxes(1, 2).reshape(-1, mirror.size // size))
        return self._registered(near), self._registered(far)

    # stages

    def pass_on(self, value: Laid) -> Laid:
        """Go on in the next stage: every rank sends its slice there, and gets its part of the gradient back.

        Where both stages are on one rank, nothing is sent, and what this stage's backward reads too is copied.
        """
        sender, receiver = self.stage, self.stage + 1
        if self.mesh.pipeline_rank(sender) == self.mesh.pipeline_rank(receiver):
            kept = self._apart_from(value) if value.name in self.saved else value
            self.stage += 1
            # Summed in this stage, which ends what it sums: of what two stages read neither would.
            self.backward_of(kept, lambda gradient: self.give(kept, gradient))
            return kept
        arrived = self._send(value, f'{value.name}.received', 'F', sender, receiver)

        def backward(gradient: Laid) -> None:
            if value.needs_gradient:
                self.give(value, self._send(gradient, f'd:{value.name}.back', 'I', receiver, sender))

        self.backward_of(arrived, backward)
        return arrived

    def _apart_from(self, value: Laid) -> Laid:
        copied = self.lay(replace(value, name=f'{value.name}.copy'))
        self.work(copied.name, 'scale', 'F', [value.name], [copied.name], attributes={'factor': 1.0})
        self.backward_of(copied, lambda gradient: self.give(value, gradient))
        return copied

    def _send(self, value: Laid, name: str, phase: Phase, source: int, target: int) -> Laid:
        arrived = self.lay(replace(value, name=name), dtype=self.tensors[value.name].dtype)
        self.transfer(value.name, name, float(self.held_bytes(value.name)), phase, source, target)
        return arrived
