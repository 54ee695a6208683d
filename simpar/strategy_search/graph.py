"""Operator graph: the operators of a forward pass and the tensors between them, as models and MindSpore have them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from math import prod
from typing import Literal

from simpar import errors, layout
from simpar.model import Flatten, LayerNorm, Transpose, ops
from simpar.model.library import cross_entropy
from simpar.model.model import Graph as ModelGraph
from simpar.model.operators import KINDS, PRIMITIVES, base
from simpar.model.operators.base import Operator as ModelOperator
from simpar.model.operators.loss import DATASET
from simpar.model.primitive import Call, Primitive, Shape
from simpar.workload import Workload

Dataset = Literal['full_batch', 'data_parallel']


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(Call):
    """One operator of the forward pass.

    Arguments:
        name: unique in its graph.
        primitive: its name in MindSpore (``MatMul``, ``ReLU``, …): see ``simpar.model.operators.PRIMITIVES``.
        reads, writes: names of tensors. Only a ``_VirtualDataset`` writes more than one.
        named: its named dims, where they follow from more than its primitive and its shapes.
    """

    name: str
    primitive: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    named: layout.Rule | None = field(default=None, compare=False)

    @property
    def look(self) -> object:
        """What of it decides how it can be split, beside the shapes of its tensors."""
        rule = self.named
        axes = rule and (rule.inputs, rule.output, tuple(rule.fixed), tuple(rule.units.items()))
        return (self.primitive, axes, self.transpose_a, self.transpose_b, self.permutation, self.axes, self.keep_dims)

    @property
    def kind(self) -> Primitive:
        """What is known of its primitive."""
        return PRIMITIVES[self.primitive]


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators in an order that they can run in, and their tensors.

    Arguments:
        operators: a tensor is written before it is read.
        shapes: by tensor name, full (global) shapes; parameters and inputs are those that no operator writes.
        parameters: names of tensors whose gradients are summed over everyone who holds the same slice.
        dataset: how the global batch comes in: full on every device, or split along dim 0.
    """

    operators: tuple[Operator, ...]
    shapes: Mapping[str, Shape]
    parameters: frozenset[str] = frozenset()
    dataset: Dataset = 'full_batch'
    writer: Mapping[str, int] = field(default_factory=dict, compare=False)
    readers: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)

    def operator(self, name: str) -> Operator:
        """The operator of a name; a ScheduleError where there is none."""
        for operator in self.operators:
            if operator.name == name:
                return operator
        raise errors.ScheduleError(errors.Problem(name, 'no operator of this name', f'write one of {self.names}'))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operators, in order."""
        return tuple(operator.name for operator in self.operators)

    def neighbours(self, place: int) -> Iterator[tuple[int, str, bool]]:
        """Who reads what an operator writes, then who writes what it reads: its place, the tensor, whether it reads."""
        for tensor in self.operators[place].writes:
            yield from ((reader, tensor, True) for reader in self.readers.get(tensor, ()))
        for tensor in self.operators[place].reads:
            if tensor in self.writer:
                yield self.writer[tensor], tensor, False

    def read_shapes(self, operator: Operator) -> tuple[Shape, ...]:
        """Shapes of what an operator reads."""
        return tuple(self.shapes[name] for name in operator.reads)

    def output_shape(self, operator: Operator) -> Shape:
        """Shape of the first tensor that an operator writes; () where it writes none."""
        return self.shapes[operator.writes[0]] if operator.writes else ()


def make_graph(
    operators: tuple[Operator, ...],
    shapes: Mapping[str, Shape],
    parameters: frozenset[str],
    dataset: Dataset = 'full_batch',
) -> Graph:
    """A graph with its index of writers and readers; raises ScheduleError where a tensor is read before it is written
    or an operator is unknown.
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for place, operator in enumerate(operators):
        if operator.primitive not in PRIMITIVES:
            raise errors.ScheduleError(errors.Problem(operator.name, f'no rule for the operator {operator.primitive}'))
        for name in operator.reads:
            if name not in shapes:
                raise errors.ScheduleError(errors.Problem(operator.name, f'reads {name}, which nothing has written'))
            readers.setdefault(name, []).append(place)
        writer.update(dict.fromkeys(operator.writes, place))
    frozen = {name: tuple(places) for name, places in readers.items()}
    return Graph(operators, shapes, parameters, dataset, writer, frozen)


@dataclass(slots=True)
class GraphBuilder:
    """Collects operators; each method adds one and returns the name of the tensor that it writes."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)

    def parameter(self, name: str, *shape: int) -> str:
        """A trained tensor."""
        self.parameters.add(name)
        return self.constant(name, *shape)

    def constant(self, name: str, *shape: int) -> str:
        """A tensor that is neither trained nor fed."""
        self.shapes[name] = shape
        return name

    def dataset(self, **inputs: Shape) -> tuple[str, ...]:
        """What feeds the graph; returns the names of its tensors."""
        self.shapes.update({f'{name}.fed': shape for name, shape in inputs.items()})
        self.shapes.update(inputs)
        fed = tuple(f'{name}.fed' for name in inputs)
        self.operators.append(Operator(name='dataset', primitive=DATASET, reads=fed, writes=tuple(inputs)))
        return tuple(inputs)

    def apply(self, layer: ModelOperator, name: str, *reads: str, samples: int = 0) -> str:
        """An operator of a model, in the primitives that MindSpore makes of it.

        Arguments: ``samples`` in dim 0 of the graph's input; 0: as many as in dim 0 of what it reads.
        """
        shapes = [self.shapes[read] for read in reads]
        written = ''
        for step in layer.steps(reads, layer.result_shape(samples or shapes[0][0], *shapes)):
            called = f'{name}.{step.part}' if step.part else name
            # An empty name is what the step before has written.
            inputs = tuple(self._read(name, one, layer.tied) or written for one in step.reads)
            # Written operators are primitives of MindSpore, whose own rules hold; those of the library tell their
            # dims.
            named = None if layer.key in KINDS or step.part else layer.axes(name, *shapes)
            written = self.add(step.primitive.name, called, inputs, step.shape, step.call, named)
        return written

    def _read(self, name: str, one: str | ops.Parameter, tied: str) -> str:
        if isinstance(one, str):
            return one
        # The gradient of a tied weight is summed once, with that of the operator that owns it.
        make = self.parameter if one.trained and not (tied and one.role == 'weight') else self.constant
        return make(f'{name}.{one.role}', *one.shape)

    def add(
        self,
        primitive: str,
        name: str,
        reads: tuple[str, ...],
        shape: Shape,
        call: Call = base.PLAIN,
        named: layout.Rule | None = None,
    ) -> str:
        """An operator that writes one tensor of this shape, named after the operator.

        Arguments: ``call``, its attributes; ``named``, its named dims where the primitive does not tell them.
        """
        attributes = {part.name: getattr(call, part.name) for part in fields(Call)}
        self.operators.append(
            Operator(name=name, primitive=primitive, reads=reads, writes=(name,), named=named, **attributes)
        )
        self.shapes[name] = shape
        return name

    def matmul(self, name: str, x: str, weight: str, *, transpose_b: bool = False) -> str:
        """x · weight, or x · weightᵀ, over the last dim of x [rows, inputs]."""
        columns = self.shapes[weight][0 if transpose_b else 1]
        return self.add('MatMul', name, (x, weight), (*self.shapes[x][:-1], columns), Call(transpose_b=transpose_b))

    def batch_matmul(self, name: str, x: str, z: str, *, transpose_b: bool = False) -> str:
        """A matrix product for each index of the leading dims."""
        columns = self.shapes[z][-2 if transpose_b else -1]
        return self.add('BatchMatMul', name, (x, z), (*self.shapes[x][:-1], columns), Call(transpose_b=transpose_b))

    def elementwise(self, primitive: str, name: str, *reads: str) -> str:
        """An elementwise operator with broadcast."""
        # Stands in for broadcasting: it is right where one operand has the shape of the result.
        return self.add(
            primitive, name, reads, max((self.shapes[read] for read in reads), key=lambda shape: (len(shape), shape))
        )

    def reshape(self, name: str, x: str, *shape: int, primitive: str = 'Reshape') -> str:
        """The same elements in another shape."""
        return self.add(primitive, name, (x,), shape)

    def transpose(self, name: str, x: str, *permutation: int) -> str:
        """Dims in another order."""
        return self.apply(Transpose(permutation=permutation), name, x)

    def layer_norm(self, name: str, x: str) -> str:
        """LayerNorm over the last dim, with a gain and a bias."""
        return self.apply(LayerNorm(), name, x)

    def reduce(self, primitive: str, name: str, x: str, axes: tuple[int, ...], *, keep_dims: bool = False) -> str:
        """A reduction over some dims."""
        sizes = [1 if dim in axes else size for dim, size in enumerate(self.shapes[x]) if keep_dims or dim not in axes]
        return self.add(primitive, name, (x,), tuple(sizes), Call(axes=axes, keep_dims=keep_dims))

    def graph(self, dataset: Dataset = 'full_batch') -> Graph:
        """What was collected."""
        return make_graph(tuple(self.operators), self.shapes, frozenset(self.parameters), dataset)


MNIST_SAMPLE = (1, 28, 28)


def workload_graph(workload: Workload, dataset: Dataset = 'full_batch') -> Graph:
    """The forward operators of a workload and its loss."""
    # ``loss_operators`` names the compiler whose operators these are.
    loss = workload.loss if workload.loss_operators == 'one' else workload.loss_operators
    return model_graph(workload.model.graph(workload.batch), loss, dataset)


def model_graph(model: ModelGraph, loss: str, dataset: Dataset = 'full_batch') -> Graph:
    """A model's operators under the names that programs give them, and its loss.

    A bias that another operator adds is not in it; a weight that two have is summed with the first.
    """
    build = GraphBuilder()
    first, *others = model.sources
    batch, result = first.shape[0], model.shapes[model.nodes[-1].name]
    # Dropout keys and the like come as they are; only the first input has samples to reshape.
    inputs = {first.name: (batch, *_sample_shape(model)), **{source.name: source.shape for source in others}}
    *names, label = build.dataset(**inputs, label=result if loss in ('mse', 'mae') else result[:-1])
    values = dict(zip(inputs, names, strict=True))
    for node in model.nodes:
        reads = (values[read] for read in node.reads)
        values[node.name] = build.apply(node.operator, node.name, *reads, samples=batch)
    LOSSES[loss](build, values[model.nodes[-1].name], label)
    return build.graph(dataset)


def _sample_shape(model: ModelGraph) -> Shape:
    """A sample's shape: an image where a flatten of so many pixels comes first, as in the compiler's networks.

    One that is split by hand is split as a file has it.
    """
    first, sample = model.nodes[0].operator, model.sources[0].shape[1:]
    # A recorded search of the compiler reads [1, 28, 28]; programs hold pixels flat.
    image = isinstance(first, Flatten) and not first.strategy and sample == (prod(MNIST_SAMPLE),)
    return MNIST_SAMPLE if image else sample


def mean_error(build: GraphBuilder, x: str, label: str, name: str = '', *, primitive: str = 'Square') -> str:
    """Sub, Square or Abs, ReduceMean; ``name`` goes before theirs."""
    difference = build.elementwise('Sub', f'{name}loss.sub', x, label)
    error = build.elementwise(primitive, f'{name}loss.{primitive.lower()}', difference)
    return build.reduce('ReduceMean', f'{name}loss', error, tuple(range(len(build.shapes[error]))))


def softmax_cross_entropy(build: GraphBuilder, x: str, label: str, name: str = '') -> str:
    """Cross-entropy of logits and classes as one operator."""
    return build.add('SparseSoftmaxCrossEntropyWithLogits', f'{name}loss', (x, label), ())


def cross_entropy_operators(build: GraphBuilder, x: str, label: str) -> str:
    """Cross-entropy as the operators of ``simpar.model.library.cross_entropy``, and the arithmetic of their sums."""
    names = {
        cross_entropy.LOGITS: x,
        cross_entropy.LABELS: label,
        cross_entropy.ONES: build.constant('loss.ones', build.shapes[x][0], 1),
    }
    for one in cross_entropy.CROSS_ENTROPY:
        numbers = tuple(build.constant(f'{one.node}.number{place}') for place in range(one.numbers))
        names[one.name] = _loss_operator(build, one, (*(names[read] for read in one.reads), *numbers))
    means = []
    for which in (cross_entropy.LIKELIHOOD, cross_entropy.SMOOTH):
        mean = build.elementwise('Div', f'{names[which]}.div', names[which], names[cross_entropy.COUNT])
        means.append(build.elementwise('Muls', f'{names[which]}.mean', mean))
    return build.elementwise('Add', 'loss.total', *means)


def _loss_operator(build: GraphBuilder, one: cross_entropy.LossOperator, reads: tuple[str, ...]) -> str:
    shape = build.shapes[reads[0]]
    match one.primitive:
        case 'ReduceMax' | 'SumExt':
            return build.reduce(one.primitive, one.node, reads[0], one.axes, keep_dims=one.keep)
        case 'ExpandDims':
            return build.add(one.primitive, one.node, reads, (*shape, 1), LAST_DIM)
        case 'Squeeze':
            return build.add(one.primitive, one.node, reads, shape[:-1], LAST_DIM)
        case 'GatherD':
            return build.add(one.primitive, one.node, reads, build.shapes[reads[1]])
    return build.elementwise(one.primitive, one.node, *reads)


LAST_DIM = Call(axes=(1,))
LOSSES: Mapping[str, Callable[..., str]] = {
    'mse': mean_error,
    'mae': partial(mean_error, primitive='Abs'),
    'cross-entropy': softmax_cross_entropy,
    'mindspore-2.10': cross_entropy_operators,
}
