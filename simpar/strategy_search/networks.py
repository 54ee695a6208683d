"""Operator graphs of workloads: the layers of networks, and transformer blocks in MindSpore's primitives."""

from __future__ import annotations

from math import prod

from simpar.model import Dense, Flatten, Network, Softmax
from simpar.model.library.cross_entropy import (
    COUNT,
    CROSS_ENTROPY,
    LABELS,
    LIKELIHOOD,
    LOGITS,
    ONES,
    SMOOTH,
    LossOperator,
)
from simpar.model.model import Graph as ModelGraph
from simpar.model.primitive import Call, Shape
from simpar.strategy_search.graph import Dataset, Graph, GraphBuilder
from simpar.workload import Workload

MNIST_SAMPLE = (1, 28, 28)


def workload_graph(workload: Workload, dataset: Dataset = 'full_batch') -> Graph:
    """The forward operators of a workload and its loss."""
    # ``loss_operators`` names the compiler whose operators these are.
    loss = workload.loss if workload.loss_operators == 'one' else workload.loss_operators
    return model_graph(workload.model.graph(workload.batch), loss, dataset)


def network_graph(network: Network, batch: int, loss: str, dataset: Dataset = 'full_batch') -> Graph:
    """A network's layers under the names that programs give them, products as x · weightᵀ each, and its loss.

    Raises ``Infeasible`` where layers do not fit each other.
    """
    return model_graph(network.graph(batch), loss, dataset)


def model_graph(model: ModelGraph, loss: str, dataset: Dataset = 'full_batch') -> Graph:
    """A model's operators under the names that programs give them, and its loss.

    A bias that another operator adds is not in it; a weight that two have is summed with the first.
    """
    build = GraphBuilder()
    first, *others = model.sources
    batch, result = first.shape[0], model.shapes[model.nodes[-1].name]
    # Dropout keys and the like come as they are; only the first input has samples to reshape.
    inputs = {first.name: (batch, *_sample(model)), **{source.name: source.shape for source in others}}
    *names, label = build.dataset(**inputs, label=result if loss in ('mse', 'mae') else result[:-1])
    values = dict(zip(inputs, names, strict=True))
    for node in model.nodes:
        reads = (values[read] for read in node.reads)
        values[node.name] = build.apply(node.operator, node.name, *reads, samples=batch)
    LOSSES[loss](build, values[model.nodes[-1].name], label)
    return build.graph(dataset)


def _sample(model: ModelGraph) -> Shape:
    """A sample's shape: an image where a flatten of so many pixels comes first, as in the compiler's networks.

    One that is split by hand is split as a file has it.
    """
    first, sample = model.nodes[0].operator, model.sources[0].shape[1:]
    # A recorded search of the compiler reads [1, 28, 28]; programs hold pixels flat.
    image = isinstance(first, Flatten) and not first.strategy and sample == (prod(MNIST_SAMPLE),)
    return MNIST_SAMPLE if image else sample


def dense_layer(build: GraphBuilder, name: str, x: str, outputs: int, *, bias: bool) -> str:
    """MatMul with a transposed weight, and BiasAdd."""
    return build.apply(Dense(inputs=build.shapes[x][-1], outputs=outputs, bias=bias), name, x)


def mean_squared_error(build: GraphBuilder, x: str, label: str, name: str = '') -> str:
    """Sub, Square, ReduceMean; ``name`` goes before theirs."""
    square = build.elementwise('Square', f'{name}loss.square', build.elementwise('Sub', f'{name}loss.sub', x, label))
    return build.reduce('ReduceMean', f'{name}loss', square, tuple(range(len(build.shapes[square]))))


def mean_absolute_error(build: GraphBuilder, x: str, label: str, name: str = '') -> str:
    """Sub, Abs, ReduceMean; ``name`` goes before theirs."""
    absolute = build.elementwise('Abs', f'{name}loss.abs', build.elementwise('Sub', f'{name}loss.sub', x, label))
    return build.reduce('ReduceMean', f'{name}loss', absolute, tuple(range(len(build.shapes[absolute]))))


def softmax_cross_entropy(build: GraphBuilder, x: str, label: str, name: str = '') -> str:
    """Cross-entropy of logits and classes as one operator."""
    return build.add('SparseSoftmaxCrossEntropyWithLogits', f'{name}loss', (x, label), ())


def cross_entropy_operators(build: GraphBuilder, x: str, label: str) -> str:
    """Cross-entropy as the operators of ``simpar.model.library.cross_entropy``, and the arithmetic of their sums."""
    names = {LOGITS: x, LABELS: label, ONES: build.constant('loss.ones', build.shapes[x][0], 1)}
    for one in CROSS_ENTROPY:
        numbers = tuple(build.constant(f'{one.node}.number{place}') for place in range(one.numbers))
        names[one.name] = _loss_operator(build, one, (*(names[read] for read in one.reads), *numbers))
    means = []
    for which in (LIKELIHOOD, SMOOTH):
        mean = build.elementwise('Div', f'{names[which]}.div', names[which], names[COUNT])
        means.append(build.elementwise('Muls', f'{names[which]}.mean', mean))
    return build.elementwise('Add', 'loss.total', *means)


def _loss_operator(build: GraphBuilder, one: LossOperator, reads: tuple[str, ...]) -> str:
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
LOSSES = {
    'mse': mean_squared_error,
    'mae': mean_absolute_error,
    'cross-entropy': softmax_cross_entropy,
    'mindspore-2.10': cross_entropy_operators,
}


def attention(build: GraphBuilder, name: str, x: str, batch: int, sequence: int, heads: int) -> str:
    """Unfused attention of x [batch × sequence, hidden] up to its output projection."""
    rows, hidden = build.shapes[x]
    split = (batch, sequence, heads, hidden // heads)

    def projected(which: str) -> str:
        weight = build.parameter(f'{name}.{which}.weight', hidden, hidden)
        y = build.matmul(f'{name}.{which}', x, weight)
        y = build.reshape(f'{name}.{which}.reshape', y, *split)
        return build.transpose(f'{name}.{which}.transpose', y, 0, 2, 1, 3)

    q, k = projected('q'), projected('k')
    scores = build.batch_matmul(f'{name}.scores', q, k, transpose_b=True)
    scores = build.elementwise('Mul', f'{name}.scale', scores, build.constant(f'{name}.factor'))
    probability = build.apply(Softmax(), f'{name}.softmax', scores)
    y = build.batch_matmul(f'{name}.values', probability, projected('v'))
    y = build.reshape(f'{name}.reshape', build.transpose(f'{name}.transpose', y, 0, 2, 1, 3), rows, hidden)
    return build.matmul(f'{name}.o', y, build.parameter(f'{name}.o.weight', hidden, hidden))


def block(build: GraphBuilder, name: str, x: str, batch: int, sequence: int, heads: int, ffn: int) -> str:
    """A pre-norm transformer block over x [batch × sequence, hidden], without biases."""
    hidden = build.shapes[x][1]
    y = attention(build, f'{name}.attention', build.layer_norm(f'{name}.norm1', x), batch, sequence, heads)
    x = build.elementwise('Add', f'{name}.add1', x, y)
    y = build.layer_norm(f'{name}.norm2', x)
    y = build.matmul(f'{name}.up', y, build.parameter(f'{name}.up.weight', hidden, ffn))
    y = build.elementwise('GeLU', f'{name}.gelu', y)
    y = build.matmul(f'{name}.down', y, build.parameter(f'{name}.down.weight', ffn, hidden))
    return build.elementwise('Add', f'{name}.add2', x, y)


def transformer_blocks(
    batch: int, sequence: int, hidden: int, heads: int, ffn: int, layers: int = 1, dataset: Dataset = 'full_batch'
) -> Graph:
    """Blocks and a mean squared error over [batch × sequence, hidden], without embedding or head."""
    build = GraphBuilder()
    x, label = build.dataset(x=(batch * sequence, hidden), label=(batch * sequence, hidden))
    for layer in range(layers):
        x = block(build, f'layer{layer}', x, batch, sequence, heads, ffn)
    mean_squared_error(build, x, label)
    return build.graph(dataset)
