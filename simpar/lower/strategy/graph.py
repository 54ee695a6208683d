"""A ``network:`` whose operators carry strategies, on the tape.

A dense layer is ``MatMul(x, weight)`` with x [batch, in] and weight [in, out], cut as its strategy says; without one it
is cut by batch over all ranks, as MindSpore's semi-automatic mode does, and so are an embedding and the loss. What has
no strategy else lies as its input does, as far as that can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from simpar.errors import Infeasible
from simpar.layout import Layout, TensorLayout, operators, replicated
from simpar.lower.strategy.feed import gathered_input
from simpar.lower.strategy.layer import At, add_layer
from simpar.lower.strategy.loss import add_loss
from simpar.lower.strategy.move import Mover
from simpar.lower.strategy.place import Placed, Placer
from simpar.lower.strategy.rule import lead_of, rule_of
from simpar.lower.strategy.tape import Laid, LaidTape
from simpar.model import (
    INPUT,
    Dense,
    Embedding,
    Flatten,
    Network,
    Reshape,
    Shape,
    Trained,
    Weighted,
    layer_names,
    network_shapes,
    reads_of,
)
from simpar.model import (
    Operator as AnyLayer,
)
from simpar.workload import Workload

Named = tuple[str, AnyLayer, tuple[str, ...]]
"""A layer with its name and the names of what it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """Emits one copy of a micro-batch.

    Arguments: ``batch``, samples of a micro-batch; ``stages``, the stage of each layer;
    ``full_batch``: every rank reads all samples, else its own slice; ``summed``, losses of copies.
    """

    tape: LaidTape
    mover: Mover
    workload: Workload
    model: Network
    batch: int
    stages: tuple[int, ...]
    full_batch: bool
    summed: bool

    @property
    def placer(self) -> Placer:
        """Places operators."""
        return Placer(self.tape.world, self.tape.mesh.copies)

    def network(self) -> None:
        """Forward, loss and backward."""
        model, drawn = self.model, 'mnist' if self.workload.data == 'mnist' else ''
        shapes = network_shapes(model, self.batch)
        first = model.layers[0]
        tokens = f'tokens:{first.vocab}' if isinstance(first, Embedding) else ''
        x = self.input(INPUT, shapes[INPUT], tokens or drawn or 'normal:1', 'int64' if tokens else self.tape.dtype)
        values, last = {INPUT: x}, INPUT
        named = list(zip(layer_names(model), model.layers, reads_of(model), strict=True))
        for place, (name, layer, reads) in enumerate(named):
            self._go_to(self.stages[place], values, [of for _, _, of in named[place:]])
            read = [values[of] for of in reads]
            if isinstance(layer, Reshape) and self.mover.as_compiler:
                y = Laid(name, shapes[name], self._placed(layer, name, read).output)
                wanted = self._wanted(y, named[place + 1 :], values, shapes)
                read = [self._before_reshape(read[0], y, wanted)]
            values[name] = self._layer(layer, name, read, shapes[name])
            last = name
        self._go_to(self.tape.mesh.stages - 1, values, [(last,)])
        add_loss(self.tape, self.mover, self.placer, self.workload, self.input, values[last], summed=self.summed)
        self.tape.backpropagate()
        if self.mover.as_compiler:
            self.mover.share()

    def _go_to(self, stage: int, values: dict[str, Laid], later: list[tuple[str, ...]]) -> None:
        """Hand the one value that is still read on to the next stage, until this one is reached."""
        while self.tape.stage < stage:
            crossing = [name for name in values if any(name in reads for reads in later)]
            if len(crossing) > 1:
                raise Infeasible(
                    f'stage {self.tape.stage + 1} of the pipeline would read {", ".join(crossing)} of earlier ones; '
                    'let a stage begin where one value alone is read on'
                )
            value = values[crossing[0]]
            if any(value.name in op.reads for op in self.tape.ops):
                self.tape.saved.add(value.name)
            values[crossing[0]] = self.tape.pass_on(value)

    def input(self, name: str, shape: Shape, drawn: str, dtype: str) -> Laid:
        """Register an input of the step, whole or by batch as the data set is."""
        gathered = gathered_input(self.tape, name, shape, drawn, dtype) if self._gathers_inputs else None
        if gathered is not None:
            return gathered
        layout = replicated(self.tape.world, len(shape))
        if not self.full_batch:
            # A copy is a part of each slice: all inputs are sliced alike, and a slice's part holds whole samples.
            samples = shape[0] if self.tape.mesh.copies == 1 else self._samples
            cuts = (self.placer.by_batch(samples), *(1,) * (len(shape) - 1))
            layout = operators.elementwise(name, shape).sharded((cuts,), self.tape.world).output
        return self.tape.lay(Laid(name, shape, layout, needs_gradient=False), 'input', dtype, initial=drawn)

    @property
    def _gathers_inputs(self) -> bool:
        """Whether the compiler cuts a batch in slices further, for copies or for the micro-batches of a pipeline."""
        mesh = self.tape.mesh
        several = mesh.copies > 1 or (mesh.pipeline > 1 and mesh.micro_batches > 1)
        return self.mover.as_compiler and several and not self.full_batch

    @property
    def _samples(self) -> int:
        """What rows of any value can be taken together to, by reshapes."""
        return gcd(*(shape[0] for shape in network_shapes(self.model, self.batch).values()))

    # layers

    def _wanted(
        self, y: Laid, later: list[Named], values: dict[str, Laid], shapes: dict[str, Shape]
    ) -> TensorLayout | None:
        """Where the first layer that reads a value wants it; None where none does.

        Arguments: ``later``, the layers behind it; ``values`` before it.
        """
        for name, layer, reads in later:
            if y.name in reads:
                known = {**values, y.name: y}
                laid = [known.get(of) or Laid(of, shapes[of], y.layout) for of in reads]
                return self._placed(layer, name, laid).inputs[lead_of(layer) + reads.index(y.name)]
        return None

    def _before_reshape(self, x: Laid, y: Laid, wanted: TensorLayout | None) -> Laid:
        """What a reshape reads, brought to where the result is wanted if its own shape is the finer one.

        A reshape of the compiler is the redistribution from the operator before it to the one behind it, in a shape
        as fine as both.
        """
        if wanted is None or _fineness(y.shape) >= _fineness(x.shape):
            return x
        back = self.placer.viewed(operators.reshape(y.name, y.shape, x.shape), wanted)
        return self.mover.move(x, back.output) if back else x

    def _layer(self, layer: AnyLayer, name: str, reads: list[Laid], shape: Shape) -> Laid:
        flat = isinstance(layer, Flatten) and reads[0].shape == shape
        if flat and _follows(layer):
            return reads[0]
        placed = self._placed(layer, name, reads)
        lead = lead_of(layer)
        layouts = placed.inputs[lead : lead + len(reads)]
        reads = [self.mover.move(value, layout) for value, layout in zip(reads, layouts, strict=True)]
        if flat:
            return reads[0]
        comes_back = isinstance(layer, Trained) or any(read.needs_gradient for read in reads)
        y = Laid(name, shape, placed.local, comes_back)
        return add_layer(At(self.tape, self.mover, self.model.weight_deviation, layer, reads, y, placed))

    def _placed(self, layer: AnyLayer, name: str, reads: list[Laid]) -> Placed:
        operator = rule_of(layer, name, [read.shape for read in reads])
        if isinstance(layer, Reshape) or (isinstance(layer, Flatten) and _follows(layer)):
            kept = self.placer.viewed(operator, reads[0].layout) if self.mover.as_compiler else None
            return kept or self.placer.followed(operator, reads[0].layout)
        lead, strategy = lead_of(layer), layer.strategy
        if layer.layout:
            out = layer.out_layout if isinstance(layer, Dense) else ()
            return self.placer.by_layout(operator, self._matrix(name), layer.layout, out, lead)
        if not strategy and isinstance(layer, Weighted):
            strategy = operator.strategy({operator.inputs[lead][0]: self.placer.by_batch(reads[0].shape[0])})
        if not strategy:
            return self.placer.followed(operator, reads[0].layout, lead)
        out_strategy = layer.out_strategy if isinstance(layer, Dense) else ()
        return self.placer.by_strategy(operator, strategy, out_strategy, reads[0].layout, lead)

    def _matrix(self, name: str) -> Layout:
        if self.tape.names is None:
            raise Infeasible(
                f'{name}: its layout names axes, but plan.device_matrix has none; write e.g. {{dp: 2, mp: 4}}'
            )
        return self.tape.names


def _follows(layer: AnyLayer) -> bool:
    """Whether a layer is told nothing, and lies as its input does."""
    return not (getattr(layer, 'strategy', ()) or getattr(layer, 'layout', ()))


def _fineness(shape: Shape) -> int:
    """How many dims can be cut."""
    return sum(length > 1 for length in shape)
