"""Fuzzed schedules whose op tables are recorded: every way to cut, order, shard, fuse, recompute and search, small.

Schedules are trees as a schedule file holds them. Of several random ones that one is taken which brings most pairs of
values that none before it had, so that few cover much.
"""

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from math import prod

import combined_cases
import graph_cases
import strategy_cases
from drawn_orders import DRAWN as ORDERS
from op_tables import tables_of_tree
from tile_cases import tiled_case
from training_cases import training_case

from simpar.errors import SimparError
from simpar.model.library.blocks import block_network, llama_network
from simpar.pipeline.checks import rows_of
from simpar.plans import Plan
from simpar.schedule.contents import ClusterReference, Contents
from simpar.schedule.schedule import written
from simpar.workload import Workload

SEED = 20261122
DRAWN = 6
"""Random schedules of which the one is taken that brings most."""
MOST_SLOTS = 1200
PROFILES = ('h100-sxm-8', 'ascend910a-8')
SHARES = {'transformer': 80, 'chain': 24, 'mixed': 14, 'tiled': 8, 'strategies': 18, 'graph': 24, 'block': 8,
          'layout': 12, 'propagation': 4, 'recursive': 4, 'exact': 4}  # fmt: skip
"""How many of 200 are of each kind."""
PASSES = ('matmul_grad_comm_overlap', 'enable_grad_comm_opt', 'enable_opt_shard_comm_opt', 'recompute_comm_overlap')


def fuzzed(count=200):
    """Names and trees, the same in every run."""
    for kind, share in SHARES.items():
        draw, seen = random.Random(f'{SEED} {kind}'), Counter()
        for number in range(max(1, share * count // 200)):
            yield f'{kind}-{number:02}', _good(draw, GENERATORS[kind], seen)


def _good(draw, generate, seen):
    """One that makes a program, and brings pairs that the ones before had not."""
    while True:
        trees = [tree for tree in (generate(draw) for _ in range(DRAWN)) if tree is not None]
        for tree in sorted(trees, key=lambda tree: -sum(not seen[pair] for pair in _pairs(tree))):
            try:
                found = tables_of_tree(tree)['plan']
            except SimparError:
                continue
            if sum(len(role['op']) for role in found['roles']) <= MOST_SLOTS:
                seen.update(_pairs(tree))
                return tree


def _pairs(tree):
    return combinations(sorted(set(_values(tree, ''))), 2)


def _values(tree, at):
    """Keys with their values; a size or a list says no more than that it is there."""
    for key, value in tree.items():
        name = f'{at}.{key}'
        if isinstance(value, dict):
            yield from _values(value, name)
        elif isinstance(value, list):
            yield from ((name, str(kind)) for one in value for kind in (one if isinstance(one, dict) else [str(one)]))
        else:
            yield name, str(value)


def cluster_tree(draw, world):
    """A cluster of so many devices."""
    devices = max(count for count in range(1, 9) if world % count == 0)
    return {'profile': draw.choice(PROFILES), 'nodes': world // devices, 'devices': devices}


def tree_of(draw, workload, plan, world):
    """The tree of a workload and a plan, without most of what is as by default."""
    cluster = ClusterReference(**cluster_tree(draw, world))
    tree = _lists(written(Contents(simpar=1, cluster=cluster, workload=workload, plan=plan, against={})))
    default = _lists(written(Contents(simpar=1, cluster=cluster, workload=workload, plan=Plan())))['plan']
    tree['plan'] = {key: value for key, value in tree['plan'].items() if value != default[key]}
    return {key: _pruned(value) if key == 'workload' else value for key, value in tree.items() if value is not None}


def _lists(tree):
    if isinstance(tree, dict):
        return {key: _lists(value) for key, value in tree.items()}
    return [_lists(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _pruned(tree):
    """Without keys that say nothing."""
    if isinstance(tree, dict):
        return {key: _pruned(value) for key, value in tree.items() if value not in ('', [], None)}
    return [_pruned(value) for value in tree] if isinstance(tree, list) else tree


# Plans


DEGREES = [
    degrees
    for degrees in product((1, 1, 2, 3, 4), (1, 2, 2, 3, 4, 8), (1, 1, 2, 2, 3, 4))
    if degrees[0] * degrees[1] * degrees[2] <= 24
]
"""Data, tensor and pipeline."""
FUSIONS = ('layer', 'layer', 'none', 'all', 'auto', 'predicted', '500 B', '2000 B', [2], [1, 4], 'ids')
RECOMPUTED = (
    *('none', 'none', 'full', 'selective'),
    *(['layer*.gelu'], ['layer*.norm?', 'norm'], ['*.attention*', '*.qkv'], ['*']),
)


def _pipeline(draw, pipeline):
    """Keys of a pipeline and how many stages there are at least."""
    if pipeline == 1 and draw.random() < 0.8:
        return {'micro_batches': draw.choice([1, 1, 2, 3])}
    name = draw.choice([*ORDERS, 'zb-1p', 'zb-2p'])
    least, most = ORDERS[name].chunks if name in ORDERS else (1, 1)
    chunks = draw.choice([count for count in (1, 2, 3) if least <= count <= most])
    return {
        'order': name,
        **({'chunks': chunks} if draw.random() < 0.5 or chunks > least else {}),
        'micro_batches': draw.choice([pipeline, 2 * pipeline, 2 * pipeline, 3, 5]),
        'receive': draw.choice(['early', 'late']),
        'exchange': draw.choice(['separate', 'separate', 'fused']),
    }


def _sharding(draw, data):
    """Keys of optimizer parallelism."""
    parts = draw.choice([['state'], ['state', 'gradients'], ['state', 'weights'], ['state', 'gradients', 'weights']])
    gathers = ['on-use', 'on-use-twice'] if 'weights' in parts else ['after-update']
    found = draw.choice([
        {}, {}, {'zero': 1}, {'zero': 2}, {'zero': 3}, {'zero': 3},
        {'hsdp': 'level1'}, {'hsdp': 'level2'}, {'hsdp': 'level3'},
        {'shard': parts, 'gather': draw.choice(gathers)},
    ])  # fmt: skip
    if found:
        found = {
            **found,
            'shard_threshold': draw.choice(['0 B', '0 B', '200 B']),
            'prefetch': draw.choice([0, 1, 2, 5]),
            'accumulate': draw.choice(['', 'full', 'sharded']),
            'unsharded': draw.choice([[], [], ['*.bias']]),
            **({'shard_group': 2} if data % 2 == 0 and data > 2 and draw.random() < 0.5 else {}),
        }
    return found


def _plan(draw):
    data, tensor, pipeline = draw.choice(DEGREES)
    return {
        'data': draw.choice([data, 0]),
        'tensor': tensor,
        'pipeline': pipeline,
        **_pipeline(draw, pipeline),
        'sequence_parallel': tensor > 1 and draw.random() < 0.5,
        'copies': draw.choice([1, 1, 2, 2, 3, 4]),
        'copies_loss': draw.choice(['mean', 'sum']),
        'sum_loss': draw.random() < 0.4,
        'reduce': draw.choice(['early', 'late']),
        'streams': draw.choice(['group', 'group', 'group', 'single']),
        **_sharding(draw, data),
        'reduce_gradients': draw.choice(['overlapped', 'overlapped', 'end']),
        'fusion': draw.choice(FUSIONS),
        'tiles': draw.choice([1, 1, 1, 2, 3, 4]),
        'overlap': draw.choice(['default', 'default', draw.sample(PASSES, draw.randint(0, 4))]),
        'recompute_communication': draw.random() < 0.6,
    }, data * tensor * pipeline  # fmt: skip


def _ends(draw):
    """Keys of a workload that are of every model."""
    optimizer = draw.choice([
        {'sgd': {}}, {'momentum': {'nesterov': draw.random() < 0.5}}, {'adam': {}}, {'adamw': {'weight_decay': 0.1}}
    ])  # fmt: skip
    (kind, keys), master = *optimizer.items(), draw.random() < 0.4
    return {
        'precision': draw.choice(['fp32', 'bf16', 'fp16', 'fp64']),
        **({'gradients': 'fp32'} if draw.random() < 0.3 else {}),
        'optimizer': {kind: {**keys, 'master_weights': master}},
        'clip_norm': draw.choice([0.0, 0.0, 1.0]),
        'loss_scale': draw.choice([1.0, 1.0, 1024.0]),
    }


def _tree(draw, model, workload, plan, world):
    batch = (plan['data'] or world // plan['tensor'] // plan['pipeline']) * plan['copies'] * plan['micro_batches']
    tree = {
        'simpar': 1,
        'cluster': cluster_tree(draw, world),
        'workload': {**model, 'batch': batch * draw.choice([1, 1, 2]), **workload, **_ends(draw)},
        'plan': plan,
        'against': {},
    }
    if draw.random() < 0.1:
        tree['against'] = {'plan.copies': 1, 'plan.fusion': 'all'}
    return tree


# Kinds


def transformer(draw):
    """Of two to four layers; heads divide by the tensor degree, other sizes mostly."""
    plan, world = _plan(draw)
    tensor, pipeline = plan['tensor'], plan['pipeline']
    groups = draw.choice([tensor, tensor, 2 * tensor])
    heads = groups * draw.choice([1, 1, 2])
    stages = pipeline * max(1, plan.get('chunks', 1))
    layers = max(stages, draw.choice([2, 2, 3, 4]))
    if stages > 1 and draw.random() < 0.3 and plan['order'] in ORDERS:
        plan['stages'] = draw.choice(['balanced', [1] * (stages - 1) + [layers - stages + 1]])
    plan['recompute'] = draw.choice(RECOMPUTED)
    if plan['recompute'] != 'none' and stages > 1 and draw.random() < 0.4:
        plan['recompute_stages'] = sorted(draw.sample(range(stages), draw.randint(1, stages - 1)))
    model = {
        'layers': layers,
        'hidden': heads * draw.choice([4, 8]),
        'heads': heads,
        'kv_heads': draw.choice([0, groups]),
        'ffn': draw.choice([0, 2 * tensor * 4, 10, 7]),
        'vocab': draw.choice([tensor * 12, 11, 13, 24]),
        'sequence': tensor * draw.choice([1, 2, 4]),
        'tied': draw.random() < 0.4,
        'attention': draw.choice(['flash', 'unfused']),
        'dropout': draw.choice([0.0, 0.0, 0.1]),
    }
    if plan['fusion'] == 'ids':
        plan['fusion_ids'] = [draw.choice([0, 1, 2]) for _ in range(layers + 3 + (not model['tied']))]
    return _tree(draw, {'transformer': model}, {}, plan, world)


def chained(draw):
    """Dense layers and relus with degrees; some widths do not divide."""
    plan, world = _plan(draw)
    plan['sequence_parallel'] = False
    tensor, stages = plan['tensor'], plan['pipeline'] * max(1, plan.get('chunks', 1))
    count = max(stages, draw.choice([2, 3, 4]))
    widths = [draw.choice([4 * tensor, 2 * tensor, 10, 7]) for _ in range(count + 1)]
    marks = draw.random() < 0.3 and stages > 1
    layers = [{'flatten': {}}] if draw.random() < 0.5 else []
    for place in range(count):
        dense = {'in': widths[place], 'out': widths[place + 1], 'bias': draw.random() < 0.7}
        dense |= {'pipeline_stage': min(place, stages - 1)} if marks else {}
        dense |= {'comm_fusion': draw.choice([0, 1, 2])} if plan['fusion'] == 'ids' and draw.random() < 0.8 else {}
        dense |= {'recompute': True} if draw.random() < 0.2 else {}
        layers.append({'dense': dense})
        layers += [{'relu': {'recompute': draw.random() < 0.3}}] if draw.random() < 0.6 else []
    plan['recompute'] = draw.choice(['none', 'none', ['dense*'], ['*']])
    return _tree(draw, {'network': layers}, {'loss': draw.choice(['cross-entropy', 'mse', 'mae'])}, plan, world)


def mixed(draw):
    """What the fuzz of training draws, orders that nobody would write among it."""
    case, _ = training_case(draw.randrange(10**6))
    plan = replace(case.plan, rows=rows_of(case.order)) if case.order is not None else case.plan
    return tree_of(draw, case.workload, plan, case.world)


def tiled(draw):
    """Products in tiles."""
    workload, plan, world, _ = tiled_case(draw.randrange(10**6))
    return tree_of(draw, workload, plan, world)


def strategic(draw):
    """Chains whose layers have strategies."""
    cases = combined_cases.combined_case if draw.random() < 0.7 else strategy_cases.random_case
    return tree_of(draw, *cases(draw.randrange(10**6)))


def graph(draw):
    """Graphs of operators, by batch and by strategies."""
    return tree_of(draw, *graph_cases.graph_case(draw.randrange(10**6)))


def _block_model(draw):
    return draw.choice([block_network, llama_network])(4, 16, 4, draw.choice([24, 32]), draw.choice([1, 2]))


def block(draw):
    """Transformer blocks as graphs, cut by batch or in Megatron's layout."""
    from simpar.resolve.choices import degree_strategies

    model, (data, tensor) = _block_model(draw), draw.choice([(2, 1), (3, 1), (4, 1), (2, 2), (1, 4), (4, 2), (2, 4)])
    copies, micro_batches, rows = draw.choice([1, 1, 2]), draw.choice([1, 2]), 4 * 4 * data
    workload = Workload(model=model, batch=rows * copies * micro_batches, loss='mse')
    if tensor > 1:
        found = degree_strategies(model.graph(rows), data, tensor)
        layers = tuple(replace(one, strategy=found[one.name]) if one.name in found else one for one in model.layers)
        workload = replace(workload, model=replace(model, layers=layers), loss_strategy=((data, 1),) * 2)
    plan = Plan(
        copies=copies,
        micro_batches=micro_batches,
        redistribution=draw.choice(['cheapest', 'mindspore-2.0', 'mindspore-2.10', 'predicted']),
        all_to_all=draw.random() < 0.5,
        dataset=draw.choice(['data-parallel', 'full-batch']),
        zero=draw.choice([0, 1, 3]),
        fusion=draw.choice(['layer', 'all', 'predicted']),
    )
    return tree_of(draw, workload, plan, data * tensor)


def _some(draw, axes):
    """Axes for one dim, joined, and what is left of them."""
    taken = draw.sample(axes, draw.choice([0, 1, 1, 2]) if len(axes) > 1 else draw.randint(0, len(axes)))
    return '+'.join(taken) or 'none', [axis for axis in axes if axis not in taken]


def layouts(draw):
    """Chains and blocks whose layouts name the axes of a device matrix."""
    matrix = draw.choice([{'dp': 2, 'mp': 2}, {'dp': 2, 'sp': 2, 'mp': 2}, {'mp': 4, 'dp': 2}, {'dp': 3, 'mp': 2}])
    plan = {
        'device_matrix': matrix,
        'redistribution': draw.choice(['cheapest', 'mindspore-2.0', 'mindspore-2.10']),
        'all_to_all': draw.random() < 0.5,
        'dataset': draw.choice(['data-parallel', 'full-batch']),
        'copies': draw.choice([1, 1, 2]),
        'zero': draw.choice([0, 0, 2, 3]),
        'micro_batches': draw.choice([1, 2]),
    }
    layers, width = [], 24
    for _ in range(draw.randint(2, 3)):
        rows, left = _some(draw, list(matrix))
        inner, left = _some(draw, left)
        outer, _ = _some(draw, left)
        dense = {'in': width, 'out': 24, 'layout': [[rows, inner], [inner, outer]]}
        if inner != 'none' and draw.random() < 0.4:
            scattered = inner if rows == 'none' else f'{rows}+{inner}'
            dense['out_layout'] = [scattered, outer]
        layers.append({'dense': dense})
        if draw.random() < 0.7:
            rows, left = _some(draw, list(matrix))
            layers.append({draw.choice(['relu', 'gelu', 'silu']): {'layout': [[rows, _some(draw, left)[0]]]}})
    batch = 24 * plan['copies'] * plan['micro_batches']
    model, loss = {'input': [24], 'layers': layers}, draw.choice(['cross-entropy', 'mse', 'mae'])
    cluster = cluster_tree(draw, prod(matrix.values()))
    workload = {'network': model, 'batch': batch, 'loss': loss}
    return {'simpar': 1, 'cluster': cluster, 'workload': workload, 'plan': plan, 'against': {}}


def searched(draw, search):
    """Small networks whose strategies are found."""
    plan = Plan(
        search=search,
        compat=draw.choice(['2.0', '2.10']),
        objective=draw.choice(['bytes', 'time']),
        dataset=draw.choice(['data-parallel', 'full-batch']),
        redistribution=draw.choice(['cheapest', 'mindspore-2.0', 'mindspore-2.10']),
        all_to_all=draw.random() < 0.5,
        hsdp=draw.choice(['off', 'level1']),
        shard_threshold=0.0,
        micro_batches=draw.choice([1, 2]),
    )
    world, batch = draw.choice([2, 4, 8]), 32 * plan.micro_batches
    tree = tree_of(draw, Workload(model=_block_model(draw), batch=batch, loss='mse'), plan, world)
    first = {'in': 16, 'out': 32, **({'strategy': draw.choice([[[2, 1], [1, 1]], [[1, 2], [2, 1]], [[1, 1], [1, 2]]])}
             if search == 'sharding-propagation' else {})}  # fmt: skip
    image = [{'conv2d': {'in': 2, 'out': 4, 'kernel': 3, 'padding': 1}}, {'relu': {}}, {'reduce': {'dims': [2, 3]}}]
    networks = [
        {'layers': [{'dense': first}, {'relu': {}}, {'dense': {'in': 32, 'out': 16}}]},
        {
            'layers': [{'dense': first}, {'gelu': {}}, {'layer_norm': {}}, {'dense': {'in': 32, 'out': 16}}],
            'input': [16],
        },
    ]
    if search != 'sharding-propagation':
        networks += [None, {'input': [2, 4, 4], 'layers': [*image, {'dense': {'in': 4, 'out': 8}}]}]
    network = draw.choice(networks)
    if network is not None:
        loss = draw.choice([{'loss': 'mse'}, {'loss': 'cross-entropy'}, {'loss_operators': 'mindspore-2.10'}])
        tree['workload'] = {'network': network, 'batch': batch, **loss}
    return tree


GENERATORS = {
    'transformer': transformer,
    'chain': chained,
    'mixed': mixed,
    'tiled': tiled,
    'strategies': strategic,
    'graph': graph,
    'block': block,
    'layout': layouts,
    'propagation': partial(searched, search='sharding-propagation'),
    'recursive': partial(searched, search='double-recursive'),
    'exact': partial(searched, search='exact'),
}
