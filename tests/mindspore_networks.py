"""The networks of the recorded cases as operator graphs, in the order of the compiler's own dump."""

from itertools import pairwise

from simpar.strategy_search import Choice, GraphBuilder, Operator
from simpar.strategy_search.graph import LOSSES, mean_error, softmax_cross_entropy
from tests.strategy_networks import dense_layer, transformer_blocks


def tuples(value):
    """JSON's lists as tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def case_graph(case):
    """The graph of a recorded case: see NETWORKS for those that can be."""
    return NETWORKS[case['net']](case, case['ctx'].get('dataset_strategy', 'full_batch'))


def fixed(case):
    """Strategies of the matrix products that the case's network shards by hand."""
    args = case['net_args']
    given = [args.get('s1'), args.get('s2')] if case['net'] == 'Seed003' else args.get('strategies') or []
    return {f'matmul{place}': Choice(tuples(strategy)) for place, strategy in enumerate(given) if strategy}


def rows(case, dataset):
    """Rows of the whole batch: with `data_parallel` a case names those of one device."""
    return case['inputs'][0][0][0] * (case['device_num'] if dataset == 'data_parallel' else 1)


def chain(case, dataset):
    """MatMul and ReLU in turn, then a mean squared error."""
    args, batch = case['net_args'], rows(case, dataset)
    dims = args.get('dims') or [args['in_dim'], args['hidden_dim'], args['out_dim']]
    build = GraphBuilder()
    x, label = build.dataset(x=(batch, dims[0]), label=(batch, dims[-1]))
    for place, (inputs, outputs) in enumerate(pairwise(dims)):
        x = build.matmul(f'matmul{place}', x, build.parameter(f'w{place}', inputs, outputs))
        if args.get('relu', True) and place < len(dims) - 2:
            x = build.elementwise('ReLU', f'relu{place}', x)
    mean_error(build, x, label)
    return build.graph(dataset)


def transformer(case, dataset):
    """Pre-norm blocks."""
    args = case['net_args']
    sizes = (args['batch'], args['seq'], args['hidden'], args['heads'], args['ffn'])
    return transformer_blocks(*sizes, args.get('layers', 1), dataset)


def convolutions(case, dataset):
    """Two convolutions with BatchNorm and ReLU, a mean over each channel, a matrix product."""
    args, (batch, *image) = case['net_args'], case['inputs'][0][0]
    build = GraphBuilder()
    x, label = build.dataset(x=(batch, *image), label=(batch,))
    channels = (args['cin'], args['c1'], args['c2'])
    for place, (inputs, outputs) in enumerate(pairwise(channels)):
        shape = (batch, outputs, *image[1:])
        x = build.add('Conv2D', f'conv{place}', (x, build.parameter(f'filter{place}', outputs, inputs, 3, 3)), shape)
        norm = tuple(build.parameter(f'norm{place}.{name}', outputs) for name in ('gain', 'bias', 'mean', 'variance'))
        x = build.elementwise('ReLU', f'relu{place}', build.add('BatchNorm', f'norm{place}', (x, *norm), shape))
    x = build.reduce('ReduceMean', 'mean', x, (2, 3))
    x = build.matmul('fc', x, build.parameter('fc.weight', args['c2'], args['classes']))
    softmax_cross_entropy(build, x, label)
    return build.graph(dataset)


def mnist(case, dataset):
    """The tutorials' network; in a pipeline every micro-batch has its own operators, and losses are added."""
    (images, _), (labels, _) = case['inputs']
    pieces = case.get('wrap', {}).get('pipeline', 1)
    scale = case['device_num'] // case['ctx'].get('pipeline_stages', 1) if dataset == 'data_parallel' else 1
    build = GraphBuilder()
    fed = build.dataset(x=(images[0] * scale, *images[1:]), label=(labels[0] * scale, *labels[1:]))
    losses = []
    for piece in range(pieces):
        x, label = fed
        if pieces > 1:
            x, label = (
                build.add('StridedSlice', f'{name}.{piece}', (name,), (build.shapes[name][0] // pieces, *shape[1:]))
                for name, shape in zip(fed, (images, labels), strict=True)
            )
        losses.append(mnist_layers(build, f'm{piece}.', x, label, case))
    total = losses[0]
    for place, loss in enumerate(losses[1:]):
        total = build.elementwise('Add', f'add{place}', total, loss)
    return build.graph(dataset)


def mnist_layers(build, name, x, label, case):
    x = build.reshape(f'{name}flatten', x, build.shapes[x][0], 784, primitive='Flatten')
    x = build.elementwise('ReLU', f'{name}relu1', dense_layer(build, f'{name}layer1', x, 512, bias=True))
    x = build.elementwise('ReLU', f'{name}relu2', dense_layer(build, f'{name}layer2', x, 512, bias=True))
    x = dense_layer(build, f'{name}layer3', x, case['net_args'].get('out', 10), bias=True)
    return (LOSSES['mae'] if case['loss'] == 'mae' else cross_entropy)(build, x, label, name)


LAST = Operator(name='', primitive='', reads=(), writes=(), axes=(1,))


def cross_entropy(build, x, label, name=''):
    """nn.CrossEntropyLoss of MindSpore 2.10 with the operators that its compiler leaves of it."""
    batch, _ = build.shapes[x]
    zero = build.constant('zero')
    largest = build.reduce('ReduceMax', 'max', x, (1,), keep_dims=True)
    powers = build.elementwise('Exp', 'exp', build.elementwise('Sub', 'shifted', x, largest))
    total = build.elementwise('Log', 'log', build.reduce('SumExt', 'sum', powers, (1,), keep_dims=True))
    logarithm = build.elementwise('Sub', 'log_softmax', x, build.elementwise('Add', 'lse', total, largest))
    target = build.add('ExpandDims', 'target', (label,), (batch, 1), LAST)
    ignored = build.elementwise('Equal', 'ignored', target, build.constant('ignore_index'))
    weights = build.elementwise('MaskedFill', 'weights', build.constant('ones', batch, 1), ignored, zero)

    def mean(which, losses):
        losses = build.elementwise('MaskedFill', f'{which}.kept', losses, ignored, zero)
        losses = build.reduce(
            'SumExt', f'{which}.sum', build.add('Squeeze', f'{which}.row', (losses,), (batch,), LAST), (0,)
        )
        count = build.reduce('SumExt', f'{which}.count', weights, (0, 1))
        return build.elementwise('Muls', f'{which}.mean', build.elementwise('Div', f'{which}.div', losses, count))

    index = build.elementwise('MaskedFill', 'index', target, ignored, zero)
    picked = build.elementwise('Neg', 'picked.neg', build.add('GatherD', 'picked', (logarithm, index), (batch, 1)))
    smooth = build.reduce('SumExt', 'smooth', logarithm, (1,), keep_dims=True)
    smooth = mean('smoothing', build.elementwise('Neg', 'smooth.neg', smooth))
    return build.elementwise('Add', 'loss', mean('likelihood', picked), smooth)


NETWORKS = {'Seed003': chain, 'MatMulChain': chain, 'Transformer': transformer, 'ConvNet': convolutions, 'Mnist': mnist}
