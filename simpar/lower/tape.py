"""Tape: emits local op classes forward and backward, and the collectives that the layouts of values imply.

Forward, an operator asks for its input in a layout (``whole``, ``scattered``) and the tape inserts the collective.
Backward, every operator contributes gradients in the layout that it computes them in, and ``gradient`` brings their
sum into the layout that the operator before needs: with ``reduce: early`` the gradient of a whole value is whole,
with ``late`` it stays a partial sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from simpar.errors import ProgramError
from simpar.lower.mesh import DATA, PIPELINE, STAGE, TENSOR, Mesh
from simpar.lower.value import Value
from simpar.program import Cut, OpClass, Partition, Tensor
from simpar.program.op import Attribute, Phase
from simpar.program.tensor import BYTES


class Tape:
    """Collects the tensors and op classes of one copy of a training step.

    Arguments: ``late``: gradients of whole values stay partial sums until the earlier all-reduce's backward;
    ``gradients``, data type of the gradients of weights: ``dtype`` unless given.
    """

    def __init__(self, mesh: Mesh, dtype: str, *, late: bool, gradients: str = '') -> None:
        self.mesh = mesh
        self.dtype = dtype
        self.gradients = gradients or dtype
        self.late = late and mesh.tensor > 1
        self.partitions: dict[str, Partition] = mesh.partitions()
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[OpClass] = []
        self.stage = 0
        self.partial_gradients: set[str] = set()
        self.saved: set[str] = set()
        self.once: list[OpClass] = []
        self.notes: list[str] = []
        self.replaced: set[str] = set()
        self._gradients: dict[str, list[Value]] = {}
        self._backward: list[tuple[int, Callable[[], None]]] = []

    # tensors

    def activation(self, value: Value, dtype: str = '') -> Value:
        """Register a value as an activation, cut along the batch over data ranks and copies."""
        cuts = (Cut(0, DATA),) if self.mesh.data > 1 else ()
        self._register(value, 'activation', dtype or self.dtype, cuts, batch_dim=0)
        return value

    def input(self, name: str, shape: tuple[int, ...], dtype: str, initial: str) -> Value:
        """Register an input of the step; ``initial`` says how it is drawn."""
        value = Value(name, shape, needs_gradient=False)
        cuts = (Cut(0, DATA),) if self.mesh.data > 1 else ()
        self._register(value, 'input', dtype, cuts, batch_dim=0, initial=initial)
        return value

    def parameter(self, name: str, shape: tuple[int, ...], initial: str, cut: int | None = None) -> Value:
        """Register a parameter (once; a tied weight is found again) and its gradient."""
        value = Value(name, shape, cut=cut if self.mesh.tensor > 1 else None)
        if name not in self.tensors:
            self._register(value, 'parameter', self.dtype, (), initial=initial)
            self._register(value.like(f'd:{name}'), 'gradient', self.gradients, (), like=name)
        return value

    def _register(
        self,
        value: Value,
        kind: str,
        dtype: str,
        cuts: tuple[Cut, ...],
        *,
        batch_dim: int | None = None,
        initial: str = '',
        like: str = '',
    ) -> None:
        if value.name in self.tensors:
            raise ProgramError(f'two tensors are named {value.name!r}; give the layers different names')
        if value.cut is not None:
            cuts = (*cuts, Cut(value.cut, TENSOR))
        self.tensors[value.name] = Tensor(
            name=value.name,
            kind=kind,  # type: ignore[arg-type]
            shape=value.shape,
            dtype=dtype,
            cuts=cuts,
            partial=(TENSOR,) if value.partial else (),
            batch_dim=batch_dim,
            initial=initial,
            like=like,
        )

    def elements(self, value: Value) -> int:
        """Elements of the piece that one rank holds for one copy."""
        count = prod(value.shape)
        if value.cut is not None:
            count //= self.mesh.tensor
        kind = self.tensors[value.name].kind
        return count // (self.mesh.data * self.mesh.copies) if kind in ('activation', 'input') else count

    def size(self, value: Value) -> int:
        """Bytes of the piece that one rank holds for one copy."""
        return self.elements(value) * BYTES[self.tensors[value.name].dtype]

    def cutting(self, name: str) -> str:
        """The partition of ranks that hold different pieces of a tensor; empty: all hold all of it."""
        partitions = [cut.partition for cut in self.tensors[name].cuts]
        return STAGE if len(partitions) > 1 else ''.join(partitions)

    # replicas of parameters

    def summing(self, parameter: str) -> str:
        """The partition that a parameter's gradient is summed over; empty: no one else has a part of it."""
        return self.mesh.summing(over_tensor=parameter in self.partial_gradients)

    def sharding(self, parameter: str) -> tuple[str, str]:
        """The partition that pieces of a parameter can be cut over, and the one over which they are then repeated;
        empty: none."""
        return self.mesh.sharding

    # ops

    def emit(self, op: OpClass) -> None:
        """Append an op class to the current stage."""
        self.ops.append(replace(op, stage=self.stage) if self.stage else op)

    def on_backward(self, rule: Callable[[], None]) -> None:
        """Remember what to emit when the backward pass comes by here."""
        self._backward.append((self.stage, rule))

    def backpropagate(self) -> None:
        """Emit the backward ops, last operator first, each in the stage of its forward."""
        while self._backward:
            self.stage, rule = self._backward.pop()
            rule()

    def compute(
        self,
        name: str,
        operator: str,
        phase: Phase,
        reads: list[Value],
        writes: list[Value],
        *,
        flops: float = 0.0,
        moved: float | None = None,
        dims: dict[str, int] | None = None,
        accumulates: tuple[str, ...] = (),
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        """Emit a compute op; ``moved``, bytes of device memory traffic, is all it reads and writes unless given."""
        gradients = sum(self.size(Value(n, self.tensors[n].shape, self._cut_of(n))) for n in accumulates)
        traffic = sum(self.size(value) for value in (*reads, *writes)) + 2 * gradients
        self.emit(
            OpClass(
                name=f'{name}.{phase}',
                kind='compute',
                operator=operator,
                phase=phase,
                dims=dims or {},
                flops=float(flops),
                bytes=float(traffic if moved is None else moved),
                dtype=self.dtype,
                reads=tuple(value.name for value in reads),
                writes=tuple(value.name for value in writes),
                accumulates=accumulates,
                attributes=attributes or {},
            )
        )

    def _cut_of(self, name: str) -> int | None:
        return next((cut.dim for cut in self.tensors[name].cuts if cut.partition == TENSOR), None)

    def collective(
        self, operator: str, phase: Phase, source: Value, target: Value, *, dim: int = 0, reduce: str = 'sum'
    ) -> Value:
        """Emit a collective over the tensor ranks from ``source`` to a newly registered ``target``."""
        self.activation(target, self.tensors[source.name].dtype)
        full = target if operator == 'all_gather' else source
        self.emit(
            OpClass(
                name=f'{target.name}.{operator}.{phase}',
                kind='collective',
                operator=operator,
                phase=phase,
                bytes=float(self.size(full)),
                dtype=self.tensors[source.name].dtype,
                partition=TENSOR,
                reduce='' if operator == 'all_gather' else reduce,
                reads=(source.name,),
                writes=(target.name,),
                attributes={} if operator == 'all_reduce' else {'dim': dim},
            )
        )
        return target

    # layouts, forward

    def whole(self, value: Value, phase: Phase = 'F') -> Value:
        """The value made whole on every tensor rank: all-reduced if partial, gathered if cut."""
        if value.whole:
            return value
        if value.partial:
            target = value.like(value.name.removesuffix('.partial'), partial=False)
            self.collective('all_reduce', phase, value, target)
            self.on_backward(lambda: self._whole_from_partial(value, target))
            return target
        gathered = Value(f'{value.name}.whole', value.shape, gathered=True, needs_gradient=value.needs_gradient)
        self.collective('all_gather', phase, value, gathered, dim=value.cut or 0)
        self.on_backward(lambda: self._whole_from_cut(value, gathered))
        return gathered

    def scattered(self, value: Value, dim: int) -> Value:
        """The value cut along ``dim``: reduce-scattered if partial, sliced if whole."""
        if value.cut == dim or self.mesh.tensor == 1:
            return value
        if value.partial:
            target = value.like(value.name.removesuffix('.partial'), partial=False, cut=dim)
            self.collective('reduce_scatter', 'F', value, target, dim=dim)
        else:
            target = value.like(f'{value.name}.slice', cut=dim)
            self.slice(value, target, 'F', dim)
        self.on_backward(lambda: self._scattered_backward(value, target))
        return target

    def slice(self, source: Value, target: Value, phase: Phase, dim: int) -> Value:
        """Emit the op that takes this rank's slice of a whole value."""
        self.activation(target)
        self.compute(target.name, 'slice', phase, [source], [target], attributes={'dim': dim, 'partition': TENSOR})
        return target

    def _whole_from_partial(self, value: Value, target: Value) -> None:
        gradient = self.gradient(target)
        if gradient is not None and gradient.partial:
            gradient = self.collective(
                'all_reduce', 'I', gradient, gradient.like(f'{gradient.name}.whole', partial=False)
            )
        self.contribute(value, gradient)

    def _whole_from_cut(self, value: Value, gathered: Value) -> None:
        parts = self._gradients.pop(gathered.name, [])
        dim = value.cut or 0
        for partial in (True, False):
            total = self._sum(f'd:{gathered.name}', [part for part in parts if part.partial is partial])
            if total is None:
                continue
            target = total.like(f'd:{value.name}@{"sum" if partial else "slice"}', partial=False, cut=dim)
            if partial:
                self.contribute(value, self.collective('reduce_scatter', 'I', total, target, dim=dim))
            else:
                self.contribute(value, self.slice(total, target, 'I', dim))

    def _scattered_backward(self, value: Value, target: Value) -> None:
        gradient = self.gradient(target)
        if gradient is None or not value.needs_gradient:
            return
        whole = gradient.like(f'{gradient.name}.whole', cut=None)
        self.contribute(value, self.collective('all_gather', 'I', gradient, whole, dim=target.cut or 0))

    # stages

    def cross(self, value: Value) -> Value:
        """Go on in the next stage: the value is sent there, and its gradient back, unless both are on one rank."""
        sender, receiver = self.stage, self.stage + 1
        if self.mesh.pipeline_rank(sender) == self.mesh.pipeline_rank(receiver):
            return self._stay(value)
        arrived = self._transfer(value, f'{value.name}.received', 'F', sender, receiver)
        self.on_backward(lambda: self._cross_backward(value, arrived, sender))
        return arrived

    def _stay(self, value: Value) -> Value:
        """Go on in the next stage on the same rank, in which alone all that it reads is read: each stage frees its own.

        So the value is copied where this stage's backward reads it too, and the next one sums its gradient.
        """
        if value.name in self.saved:
            value = self._apart(value)
        self.stage += 1
        self.on_backward(lambda: self.contribute(value, self.gradient(value)))
        return value

    def _apart(self, value: Value) -> Value:
        """A copy of a value."""
        copied = self.activation(value.like(f'{value.name}.copy'))
        self.compute(copied.name, 'scale', 'F', [value], [copied], attributes={'factor': 1.0})
        self.on_backward(lambda: self.contribute(value, self.gradient(copied)))
        return copied

    def _cross_backward(self, value: Value, arrived: Value, sender: int) -> None:
        gradient = self.gradient(arrived)
        if gradient is not None:
            self.contribute(value, self._transfer(gradient, f'd:{value.name}@stage', 'I', self.stage, sender))

    def _transfer(self, value: Value, name: str, phase: Phase, source: int, target: int) -> Value:
        """Emit a send in one stage and its receive in another."""
        arrived = self.activation(value.like(name), self.tensors[value.name].dtype)
        self.transfer(value.name, arrived.name, float(self.size(value)), phase, source, target)
        return arrived

    def transfer(self, sent: str, arrived: str, size: float, phase: Phase, source: int, target: int) -> None:
        """Emit a send of a tensor in stage ``source`` and its receive as another in ``target``; ``size`` in bytes."""
        offset = self.mesh.pipeline_rank(target) - self.mesh.pipeline_rank(source)
        for stage, operator in ((source, 'send'), (target, 'recv')):
            self.stage = stage
            self.emit(
                OpClass(
                    name=f'{sent}.{operator}.{phase}',
                    kind='send' if operator == 'send' else 'recv',
                    operator=operator,
                    phase=phase,
                    bytes=size,
                    dtype=self.tensors[sent].dtype,
                    partition=PIPELINE,
                    peer=offset if operator == 'send' else -offset,
                    reads=(sent,) if operator == 'send' else (),
                    writes=(arrived,) if operator == 'recv' else (),
                )
            )

    # gradients

    def contribute(self, value: Value, gradient: Value | None) -> None:
        """Add a part of the gradient of ``value``."""
        if gradient is not None and value.needs_gradient:
            self._gradients.setdefault(value.name, []).append(gradient)

    def gradient(self, value: Value) -> Value | None:
        """The gradient of a value, all its parts summed, in the layout that its producer works with; None if unused.

        Whole values: whole (early) or partial (late). Cut values: cut alike. Partial values: whole.
        """
        parts = self._gradients.pop(value.name, [])
        name = f'd:{value.name}'
        if self.late and value.whole:
            return self._sum(name, [part if part.partial else self._share(part) for part in parts])
        partial = self._sum(f'{name}.partial', [part for part in parts if part.partial])
        others = [part for part in parts if not part.partial]
        if partial is not None:
            others.append(self.collective('all_reduce', 'I', partial, partial.like(f'{name}.reduced', partial=False)))
        return self._sum(name, others)

    def _sum(self, name: str, parts: list[Value]) -> Value | None:
        if not parts:
            return None
        total = parts[0]
        for index, part in enumerate(parts[1:]):
            target = self.activation(total.like(name if index == len(parts) - 2 else f'{name}+{index}'))
            self.compute(target.name, 'add', 'I', [total, part], [target], flops=self.elements(target))
            total = target
        return total

    def _share(self, gradient: Value) -> Value:
        """A whole gradient as partial sums: every rank's share of it."""
        target = self.activation(gradient.like(f'{gradient.name}.share', partial=True))
        self.compute(target.name, 'scale', 'I', [gradient], [target], attributes={'factor': 1.0 / self.mesh.tensor})
        return target

    def weight_gradients(
        self, parameters: list[Value], gradient: Value, *, sequence_cut: bool = False
    ) -> tuple[str, ...]:
        """Names of the gradients of parameters; marks those that hold only this rank's part of the sum."""
        for parameter in parameters:
            if parameter.cut is None and (gradient.partial or sequence_cut):
                self.partial_gradients.add(parameter.name)
        return tuple(f'd:{parameter.name}' for parameter in parameters)
