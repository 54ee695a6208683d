"""MindSpore's compiler inserts the same messages for optimizer parallelism and fusion: sizes, ranks and fusion ids."""

import json

import pytest
from golden_shapes import FOLDER

from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.workload import Adam, Workload

GROUPS = ('opt', 'fusion')
RECORDED = {
    path.stem: json.loads(path.read_text(encoding='utf-8'))
    for group in GROUPS
    for path in sorted(FOLDER.rglob(f'v2.10.0/{group}/*.json'))
}
LATER = {
    'fusion_allreduce_index': 'all have id 1 where the front end ends; the back end splits them',
    'fusion_allreduce_off': 'all have id 1 where the front end ends; the back end leaves them apart',
}
"""Cases whose ids say nothing yet of what travels together: all but ids is compared."""


def workload(case):
    net = case['net_args']
    if case['net'] == 'MatMulChain':
        widths, ids = net['dims'], net.get('comm_fusion', [None] * 6)
        pairs = zip(widths, widths[1:], ids, strict=False)
        layers = [Dense(inputs=i, outputs=o, bias=False, comm_fusion=mark) for i, o, mark in pairs]
    else:
        first, second = (net['in_dim'], net['hidden_dim']), (net['hidden_dim'], net['out_dim'])
        layers = [
            Dense(inputs=first[0], outputs=first[1], bias=False),
            Relu(),
            Dense(inputs=second[0], outputs=second[1], bias=False),
        ]
    return Workload(model=Network(layers=tuple(layers)), batch=64, loss='mse', optimizer=Adam())


def plan(case):
    """The plan that says what the case's context says."""
    context, net = case['ctx'], case['net_args']
    tensor = net['s1'][1][1] if 's1' in net else 1
    options = context.get('parallel_optimizer_config', {})
    level = options.get('optimizer_level', 'level1') if context.get('enable_parallel_optimizer') else 'off'
    fusion = context.get('comm_fusion', {})
    mode = next((fusion[kind] for kind in ('allreduce', 'allgather') if kind in fusion), {})
    return Plan(
        data=8 // tensor,
        tensor=tensor,
        micro_batches=(case.get('wrap') or {}).get('grad_accum', 1),
        hsdp=level,
        shard_group=options.get('optimizer_weight_shard_size', 0),
        accumulate='sharded' if options.get('gradient_accumulation_shard') else 'full',
        fusion=by_mode(mode, net) if fusion.get('openstate', True) else 'none',
    )


def by_mode(mode, net):
    if not mode:
        return 'ids' if 'comm_fusion' in net else 'all'
    if mode['mode'] == 'auto':
        return 'auto'
    return tuple(mode['config']) if mode['mode'] == 'index' else mode['config'] * 2.0**20


def recorded(golden):
    """Messages of parameters and gradients: (collective, elements in and out, ranks), and the id of each."""
    for op in golden['final_comm']:
        if 'forward_op' not in op['instance']:
            (taken,), (given,) = op['in_shapes'], op['out_shapes']
            name = {'AllReduce': 'all_reduce', 'AllGather': 'all_gather', 'ReduceScatter': 'reduce_scatter'}[op['op']]
            ranks = tuple(range(8)) if op['ranks'] == 'world' else tuple(op['ranks'])
            yield (name, product(taken), product(given), ranks), op['fusion']


def product(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def ours(program):
    """The same of a program, each message with its own name as the id."""
    for op in program.op_classes:
        if op.kind == 'collective' and ('.weights.' in op.name or '.gradients.' in op.name):
            ranks = program.partitions[op.partition].members(0)
            for source, target in zip(op.reads, op.writes + op.accumulates, strict=True):
                sizes = (product(program.local_shape(program.tensor[name])) for name in (source, target))
                yield (op.operator, *sizes, ranks), op.name


def together(messages):
    """Multisets of messages by collective and id: what travels together."""
    found = {}
    for message, identity in messages:
        found.setdefault((message[0], identity), []).append(message)
    return sorted(sorted(group) for group in found.values())


def test_there_are_cases():
    assert {name.partition('_')[0] for name in RECORDED} == set(GROUPS)
    assert LATER.keys() <= RECORDED.keys()


@pytest.mark.parametrize('name', RECORDED)
def test_messages_are_those_of_the_compiler(name):
    golden = RECORDED[name]
    program = lower(workload(golden['case']), plan(golden['case']), 8)
    mine, theirs = list(ours(program)), list(recorded(golden))
    assert sorted(message for message, _ in mine) == sorted(message for message, _ in theirs)
    if name not in LATER:
        assert together(mine) == together(theirs)


@pytest.mark.parametrize('name', [name for name in RECORDED if name.startswith('opt')])
def test_parameters_and_states_are_cut_alike(name):
    """As many elements of each parameter and moment on a rank; MindSpore's weights are the transposed of ours."""
    golden = RECORDED[name]
    program = lower(workload(golden['case']), plan(golden['case']), 8)
    kept = [tensor for tensor in program.tensors if tensor.kind in ('parameter', 'state')]
    mine = sorted(product(program.local_shape(tensor)) for tensor in kept)
    shapes = [
        text.split(', ') for parameter, text in golden['parameters_after'] if ',' in text and 'accu' not in parameter
    ]
    assert mine == sorted(product(map(int, shape)) for shape in shapes)
