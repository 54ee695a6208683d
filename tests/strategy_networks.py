"""Operator graphs of networks and of transformer blocks in MindSpore's primitives, which tests search."""

from simpar.model import Dense, Network, Softmax
from simpar.strategy_search import Graph, GraphBuilder
from simpar.strategy_search.graph import Dataset, mean_error, model_graph


def network_graph(network: Network, batch: int, loss: str, dataset: Dataset = 'full_batch') -> Graph:
    """A network's layers under the names that programs give them, products as x · weightᵀ each, and its loss.

    Raises ``Infeasible`` where layers do not fit each other.
    """
    return model_graph(network.graph(batch), loss, dataset)


def dense_layer(build: GraphBuilder, name: str, x: str, outputs: int, *, bias: bool) -> str:
    """MatMul with a transposed weight, and BiasAdd."""
    return build.apply(Dense(inputs=build.shapes[x][-1], outputs=outputs, bias=bias), name, x)


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
    mean_error(build, x, label)
    return build.graph(dataset)
