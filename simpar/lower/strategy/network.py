"""A ``network:`` whose layers carry strategies, on the tape.

A dense layer is ``MatMul(x, weight)`` with x [batch, in] and weight [in, out], cut as its strategy says; without one it
is cut by batch over all ranks, as MindSpore's semi-automatic mode does, and so is the loss. What has no strategy else
lies as its input does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from simpar.errors import Infeasible
from simpar.layout import TensorLayout, operators, replicated
from simpar.layout.axis import size_of
from simpar.layout.operator import Sharded, Strategy
from simpar.lower import loss
from simpar.lower.strategy.move import Mover
from simpar.lower.strategy.tape import Laid, LaidTape
from simpar.program import Cut, Tensor
from simpar.program.op import Attribute
from simpar.workload import Dense, Network, Relu, Workload


@dataclass(frozen=True, slots=True)
class Lowering:
    """Emits one copy of a micro-batch.

    Arguments: ``batch``, samples of a micro-batch; ``stages``, the stage of each dense layer, and of what follows it;
    ``full_batch``: every rank reads all samples, else its own slice.
    """

    tape: LaidTape
    mover: Mover
    workload: Workload
    batch: int
    stages: tuple[int, ...]
    full_batch: bool
    summed: bool

    def network(self, model: Network) -> None:
        """Forward, loss and backward."""
        dense = [layer for layer in model.layers if isinstance(layer, Dense)]
        drawn = 'mnist' if self.workload.data == 'mnist' else ''
        x = self._input('x', (self.batch, dense[0].inputs), drawn or 'normal:1', self.tape.dtype)
        counts = {Dense: 0, Relu: 0}
        for layer in model.layers:
            if isinstance(layer, Dense):
                x = self._go_to(self.stages[counts[Dense]], x)
                x = self._dense(layer, layer.name or f'dense{counts[Dense]}', x, model.weight_deviation)
                counts[Dense] += 1
            elif isinstance(layer, Relu):
                x = self._relu(layer, layer.name or f'relu{counts[Relu]}', x)
                counts[Relu] += 1
        self._loss(self._go_to(self.tape.mesh.stages - 1, x), dense[-1].outputs, drawn)
        self.tape.backpropagate()

    def _go_to(self, stage: int, x: Laid) -> Laid:
        while self.tape.stage < stage:
            x = self.tape.pass_on(x)
        return x

    @property
    def _by_batch(self) -> int:
        """Slices of the batch where nothing else is said: as many as divide ranks and samples."""
        rows = self.batch // self.tape.mesh.copies
        return max(cut for cut in range(1, self.tape.world + 1) if self.tape.world % cut == 0 == rows % cut)

    def _input(self, name: str, shape: tuple[int, ...], drawn: str, dtype: str) -> Laid:
        layout = replicated(self.tape.world, len(shape))
        if not self.full_batch:
            rows = operators.elementwise(name, shape).sharded(((self._by_batch, *(1,) * (len(shape) - 1)),),
                                                              self.tape.world)  # fmt: skip
            layout = rows.output
        value = Laid(name, shape, layout, needs_gradient=False)
        return self.tape.lay(value, 'input', dtype, initial=drawn)

    def _divides(self, name: str, sharded: Sharded) -> None:
        """The rows of a copy must divide as the rows of the whole do."""
        copies = self.tape.mesh.copies
        for layout in (sharded.inputs[0], sharded.output):
            rows = layout.cuts[0] if layout.cuts else 1
            if self.batch % (rows * copies):
                raise Infeasible(f'{name}: {self.batch} samples cannot be cut into {rows} slices of {copies} copies')

    # operators

    def _dense(self, layer: Dense, name: str, x: Laid, deviation: float) -> Laid:
        product = operators.matmul(name, x.shape, (layer.inputs, layer.outputs))
        strategy: Strategy = layer.strategy or ((self._by_batch, 1), (1, 1))
        sharded = product.sharded(strategy, self.tape.world, layer.out_strategy)
        self._divides(name, sharded)
        x = self.mover.move(x, sharded.inputs[0])
        pending = bool(sharded.local.partial)
        rows, columns = sharded.inputs[1].dims
        weight = self.tape.laid_parameter(
            f'{name}.weight', (layer.outputs, layer.inputs), TensorLayout(self.tape.world, (columns, rows)),
            f'normal:{deviation}',
        )  # fmt: skip
        parameters = [weight, *([self._bias(name, layer, sharded.output)] if layer.bias else ())]
        joined = parameters[:1] if pending else parameters
        y = Laid(f'{name}.partial' if pending else name, (x.shape[0], layer.outputs), sharded.local)
        self._matmul(name, x, y, joined)
        # The operator's own sum, whatever the way of redistributions: reduce-scattered where out_strategy says so.
        y = replace(self.mover, method='cheapest').move(y, sharded.output, name) if pending else y
        return self._add_bias(name, y, parameters[1]) if pending and layer.bias else y

    def _bias(self, name: str, layer: Dense, output: TensorLayout) -> Laid:
        layout = TensorLayout(self.tape.world, output.dims[1:])
        return self.tape.laid_parameter(f'{name}.bias', (layer.outputs,), layout, 'zeros')

    def _matmul(self, name: str, x: Laid, y: Laid, parameters: list[Laid]) -> None:
        self.tape.lay(y)
        weight = parameters[0]
        n, k = weight.layout.slice_shape(weight.shape)
        m = self.tape.held(x.name) // k
        flops, one = 2.0 * m * n * k, {'outputs': 1}
        self.tape.work(name, 'matmul', 'F', [x.name, *(p.name for p in parameters)], [y.name], flops=flops,
                       dims={'m': m, 'n': n, 'k': k}, attributes={**one})  # fmt: skip

        def backward(dy: Laid) -> None:
            if x.needs_gradient:
                dx = self.tape.new_gradient(x, name)
                self.tape.work(name, 'matmul', 'I', [dy.name, weight.name], [dx.name], flops=flops,
                               dims={'m': m, 'n': k, 'k': n}, attributes={**one})  # fmt: skip
                self.tape.give(x, dx)
            gradients = [f'd:{parameter.name}' for parameter in parameters]
            self.tape.work(name, 'matmul', 'W', [dy.name, x.name], accumulates=gradients, flops=flops,
                           dims={'m': n, 'n': k, 'k': m}, attributes={**one})  # fmt: skip

        self.tape.backward_of(y, backward)

    def _add_bias(self, name: str, y: Laid, bias: Laid) -> Laid:
        z = self.tape.lay(Laid(f'{name}.biased', y.shape, y.layout))
        elements = self.tape.held(z.name)
        self.tape.work(f'{name}.bias', 'bias', 'F', [y.name, bias.name], [z.name], flops=elements)

        def backward(dz: Laid) -> None:
            self.tape.give(y, dz)
            self.tape.work(f'{name}.bias', 'bias', 'W', [dz.name], accumulates=[f'd:{bias.name}'], flops=elements)

        self.tape.backward_of(z, backward)
        return z

    def _relu(self, layer: Relu, name: str, x: Laid) -> Laid:
        strategy = layer.strategy or (x.layout.cuts,)
        sharded = operators.elementwise(name, x.shape).sharded(strategy, self.tape.world)
        self._divides(name, sharded)
        # As many slices as x has: on whichever ranks they lie, as MindSpore 2.10 propagates layouts.
        x = x if sharded.inputs[0].cuts == x.layout.cuts else self.mover.move(x, sharded.inputs[0])
        y = self.tape.lay(Laid(name, x.shape, x.layout))
        self.tape.saved.add(y.name)
        elements = self.tape.held(y.name)
        self.tape.work(name, 'relu', 'F', [x.name], [y.name], flops=elements)

        def backward(dy: Laid) -> None:
            if x.needs_gradient:
                dx = self.tape.new_gradient(x, name)
                self.tape.work(name, 'relu', 'I', [dy.name, y.name], [dx.name], flops=elements)
                self.tape.give(x, dx)

        self.tape.backward_of(y, backward)
        return y

    # loss

    def _loss(self, y: Laid, classes: int, drawn: str) -> None:
        tape, kind = self.tape, self.workload.loss
        by_class = kind == 'cross-entropy'
        make = operators.cross_entropy if by_class else operators.mean_loss
        by_batch = ((self._by_batch, 1), (self._by_batch, 1)[: 2 - by_class])
        sharded = make('loss', y.shape).sharded(self.workload.loss_strategy or by_batch, tape.world)
        self._divides('loss', sharded)
        y = self.mover.move(y, sharded.inputs[0])
        if by_class:
            target = self._input('labels', y.shape[:1], drawn or f'classes:{classes}', 'int64')
        else:
            target = self._input('target', y.shape, 'normal:1', tape.dtype)
        target = self.mover.move(target, sharded.inputs[1])
        number = self._number(sharded.inputs[0])
        lse = [tape.lay(Laid('loss.lse', target.shape, target.layout)).name] if by_class else []
        factor = loss.scale(tape, prod(target.shape), summed=self.summed)
        operator, elements = kind.replace('-', '_'), tape.held(y.name)
        tape.work('loss', operator, 'F', [y.name, target.name], [number, *lse], flops=(5 if by_class else 3) * elements,
                  attributes={'scale': factor})  # fmt: skip
        dy = tape.new_gradient(y, 'loss')
        scaled = factor * self.workload.loss_scale
        share: dict[str, Attribute] = {'scale': scaled, 'partial_share': 1.0 / size_of(y.layout.uncut)}
        tape.work('loss', operator, 'I', [y.name, target.name, *lse], [dy.name], flops=(2 + 2 * by_class) * elements,
                  attributes=share)  # fmt: skip
        tape.give(y, dy)

    def _number(self, layout: TensorLayout) -> str:
        """The tensor ``loss``: one number for each slice and copy."""
        axes, copies = layout.cutting, self.tape.mesh.copies
        cuts = tuple(Cut(0, self.tape.partition((axis,))) for axis in axes)
        self.tape.tensors['loss'] = Tensor('loss', 'activation', (size_of(axes) * copies,), 'fp32', cuts, batch_dim=0)
        return 'loss'
