"""The tape of strategies: op classes with local dims, of tensors that lie in any layout.

A value that is repeated along an axis has a gradient with a pending sum over it, and what is summed forward has a
repeated gradient: every backward op is the transpose of its forward. Sums so happen at the backward of the forward's
all-reduce, and at the mirror of a parameter, as in MindSpore ("reduce late").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from simpar.errors import ProgramError
from simpar.layout import Axis, Layout, TensorLayout
from simpar.layout.axis import axes_name, merged, rank_groups, size_of
from simpar.lower.mesh import Mesh
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
    """A tape whose values lie in layouts over ``world`` ranks.

    Arguments: ``names``, a device matrix whose axes name partitions, if the user gave one.
    """

    def __init__(
        self, world: int, copies: int, micro_batches: int, dtype: str, gradients: str = '', names: Layout | None = None
    ) -> None:
        mesh = Mesh(data=1, tensor=1, copies=copies, micro_batches=micro_batches)
        super().__init__(mesh, dtype, late=False, gradients=gradients)
        self.world = world
        self.partitions: dict[str, Partition] = {}
        self._names = names
        self._layouts: dict[str, TensorLayout] = {}
        self._laid_gradients: dict[str, Laid] = {}

    # tensors

    def partition(self, axes: Sequence[Axis]) -> str:
        """The name of the partition into groups along axes, the first of which counts most; registered on first use."""
        axes = merged(axes)
        name = self._alias(axes) or axes_name(self.world, axes)
        if name == 'world' and list(axes) != sorted(axes, key=lambda axis: -axis.stride):
            name = '+'.join(map(str, axes))
        if name not in self.partitions:
            self.partitions[name] = Partition(name, rank_groups(self.world, axes))
        return name

    def _alias(self, axes: tuple[Axis, ...]) -> str:
        if self._names is None:
            return ''
        known = {self._names.axis(alias): alias for alias in self._names.aliases}
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
    ) -> None:
        """Emit a compute op; it moves all that it reads and writes."""
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
        """The gradient of a value, from the only operator that reads it."""
        if gradient is not None and value.needs_gradient:
            self._laid_gradients[value.name] = gradient

    def take(self, value: Laid) -> Laid | None:
        """The gradient of a value, as its reader gave it; None if there is none."""
        return self._laid_gradients.pop(value.name, None)

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

    def layout_of(self, tensor: Tensor) -> TensorLayout:
        """The layout that a tensor was registered with, without its pending sums."""
        return self._layouts[tensor.name].whole()

    def mirror(self, layout: TensorLayout) -> str:
        """The partition over which the gradient of a parameter of this layout is summed; empty: nobody shares it."""
        return self.partition(layout.uncut) if size_of(layout.uncut) > 1 else ''
