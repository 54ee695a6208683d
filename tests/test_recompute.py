"""What a plan recomputes: which ops run again, where, and what they cost."""

from dataclasses import replace

import pytest

from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.lower.roles import segments
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.program import OpClass
from simpar.schedule import load_schedule
from simpar.workload import Transformer, Workload

L, S, B, H, A, V = 2, 16, 4, 32, 4, 64
"""Layers, sequence, batch, hidden width, heads, vocabulary."""
MLP = (
    Dense(inputs=8, outputs=8),
    Relu(recompute=True),
    Dense(inputs=8, outputs=8, name='middle'),
    Relu(recompute=True, name='act'),
    Dense(inputs=8, outputs=4),
)


def lowered(plan, *, layers=L, batch=B, **model):
    model = {'attention': 'unfused', **model}
    workload = Workload(model=Transformer(layers=layers, hidden=H, heads=A, vocab=V, sequence=S, **model), batch=batch)
    return lower(workload, plan, max(1, plan.data) * plan.tensor * plan.pipeline)


def of_network(plan, layers=MLP):
    workload = Workload(model=Network(layers=layers), batch=B, loss='mse')
    return lower(workload, plan, max(1, plan.data) * plan.tensor * plan.pipeline)


def names(program, role=0):
    """Op classes in issue order."""
    role = program.roles[role]
    return [program.op(role, slot).name for slot in range(len(role))]


def again(program, role=0):
    """Those that run again, without what tells so."""
    return [name.removesuffix('.F.recompute') for name in names(program, role) if name.endswith('.F.recompute')]


def products(program, *, recomputed=None):
    """Operations of matrix products on all ranks in one step."""
    role = program.roles[0]
    ops = [program.op(role, slot) for slot in range(len(role))]
    chosen = [op for op in ops if recomputed is None or ('recompute' in op.attributes) is recomputed]
    of_products = ('matmul', 'attention_scores', 'attention_values')
    return program.world * sum(op.flops for op in chosen if op.operator in of_products)


# The count of operations is the published one.


@pytest.mark.parametrize('plan', [{}, {'tensor': 2}, {'tensor': 4, 'sequence_parallel': True, 'copies': 2}])
def test_full_recomputation_runs_the_layers_forward_twice(plan):
    """96 B s l h² (1 + s / 6h + V / 16lh): Narayanan et al. 2021, equation 3, which assumes full recomputation."""
    found = products(lowered(Plan(data=1, recompute='full', **plan)))
    assert found == pytest.approx(96 * B * S * L * H**2 * (1 + S / (6 * H) + V / (16 * L * H)), rel=1e-12)


@pytest.mark.parametrize('tensor', [1, 2])
def test_selective_recomputation_runs_the_core_of_attention_twice(tensor):
    """Two products of 2 B s² h more a layer, to 72 B s l h² (1 + s / 6h + V / 12lh) (Korthikanti et al. 2022)."""
    selective, none = (products(lowered(Plan(data=1, tensor=tensor, recompute=how))) for how in ('selective', 'none'))
    assert none == pytest.approx(72 * B * S * L * H**2 * (1 + S / (6 * H) + V / (12 * L * H)), rel=1e-12)
    assert selective - none == 4 * B * S**2 * H * L


def test_an_op_costs_the_same_again():
    program = lowered(Plan(data=1, tensor=2, recompute='full'))
    classes = {op.name: op for op in program.op_classes}
    clones = [op for op in program.op_classes if 'recompute' in op.attributes]
    assert len(clones) == 2 * len([name for name in classes if name.startswith('layer0') and name.endswith('.F')])
    for op in clones:
        assert op.cost_key == classes[op.name.removesuffix('.recompute')].cost_key


# Which, and where


def test_nothing_is_run_again_unless_asked():
    assert again(lowered(Plan(data=1))) == []


def test_a_layer_is_run_again_before_its_backward_and_behind_the_next_layers():
    order = names(lowered(Plan(data=1, recompute='full'), dropout=0.1))
    first, last = (order.index(f'layer{layer}.norm1.F.recompute') for layer in (0, 1))
    assert order.index('norm.I') < last < order.index('layer1.residual2.I')
    assert order.index('layer1.norm1.I') < first < order.index('layer0.residual2.I')


def test_without_dropout_the_second_product_goes_backward_before_its_layer_is_run_again():
    """Its gradient of the input reads nothing of the forward."""
    order = names(lowered(Plan(data=1, recompute='full')))
    place = order.index('layer1.norm1.F.recompute')
    assert order[place - 1] == 'layer1.fc2.I'


def test_selectively_the_core_of_attention_is_run_again():
    core = ['scores', 'softmax', 'dropout']
    program = lowered(Plan(data=1, tensor=2, recompute='selective'), dropout=0.1)
    assert again(program) == [
        name for layer in ('layer1', 'layer0')
        for name in (*(f'{layer}.attention.{part}' for part in core), f'{layer}.attention')
    ]  # fmt: skip
    assert again(lowered(Plan(data=1, recompute='selective'), attention='flash')) == [
        'layer1.attention',
        'layer0.attention',
    ]


def test_masks_are_made_again_and_not_kept():
    program = lowered(Plan(data=1, recompute='full'), dropout=0.1)
    for op in program.op_classes:
        masks = [name for name in op.writes if name.startswith('layer') and name.endswith('.mask')]
        if op.phase == 'F' and masks:
            assert ('recompute' in op.attributes) is not set(masks).issubset(op.frees), op.name


def test_kept_communication_is_not_run_again():
    """Nor what it alone needs: both row-cut products, and with the second the end of the layer."""
    plan = Plan(data=1, tensor=2, sequence_parallel=True, recompute='full')
    everything, kept = (
        {name for name in again(lowered(replace(plan, recompute_communication=on))) if name.startswith('layer0.')}
        for on in (True, False)
    )
    collectives = {'norm1.whole.all_gather', 'norm2.whole.all_gather', 'proj.reduce_scatter', 'fc2.reduce_scatter'}
    assert everything - kept == {f'layer0.{name}' for name in (*collectives, 'proj', 'fc2', 'residual2')}


def test_named_operators_only():
    assert again(lowered(Plan(data=1, recompute=('layer*.gelu', 'layer1.fc1')))) == [
        'layer1.fc1',
        'layer1.gelu',
        'layer0.gelu',
    ]


def test_what_the_loss_reads_is_never_run_again():
    assert 'head' not in again(lowered(Plan(data=1, recompute=('*',))))
    assert again(of_network(Plan(data=1, recompute=('*',)))) == ['dense0', 'relu0', 'middle', 'act']


def test_marked_layers_of_a_network():
    """As the relus of MindSpore's hybrid tutorial; in its backward each is made again from the product before it."""
    program = of_network(Plan(data=1))
    assert again(program) == ['act', 'relu0']
    freed = {name: op.name for op in program.op_classes if op.phase == 'F' for name in op.frees}
    assert freed['relu0'] == 'middle.F'
    assert freed['dense0'] == 'relu0.F.recompute'


def test_some_stages_only():
    plan = Plan(data=1, pipeline=2, micro_batches=2, recompute='full', recompute_stages=(1,))
    program = lowered(plan, layers=4)
    assert again(program, 0) == []
    assert {name.partition('.')[0] for name in again(program, 1)} == {'layer2', 'layer3'}


def test_a_backward_in_two_parts_recomputes_in_the_first():
    """Whatever W reads of it lives on until then."""
    plan = Plan(data=1, pipeline=2, micro_batches=2, order='zb-h1', recompute='full')
    program = lowered(plan, layers=2)
    role = program.roles[0]
    rows = [(program.op(role, slot), int(role.micro_batch[slot])) for slot in range(len(role))]
    for micro_batch in (0, 1):
        mine = [op for op, of in rows if of == micro_batch and program.sliced(op)]
        last = max(
            place for place, op in enumerate(mine) if op.name.startswith('layer0.') and 'recompute' in op.attributes
        )
        first = min(place for place, op in enumerate(mine) if op.phase == 'W')
        assert last < first
        (ended,) = [op.name for op in mine[first:] if 'layer0.gelu' in op.frees]
        assert ended.startswith('layer0.fc2.W')


def test_recomputed_communication_hides_under_the_other_copy():
    """Each copy's sum is followed by the other's computing, up to the sum of its own."""
    program = lowered(Plan(data=1, tensor=2, copies=2, recompute='full'))
    role = program.roles[0]
    order = [(program.op(role, slot).name, int(role.copy[slot])) for slot in range(len(role))]
    name = 'layer0.proj.all_reduce.F.recompute'
    one, other = order.index((name, 0)), order.index((name, 1))
    behind = order.index(('layer0.residual1.F.recompute', 0))
    assert one < other < behind
    assert {copy for _, copy in order[one + 1 : other + 1]} == {1}


def test_segments_cut_recomputation_where_it_waits():
    ops = [
        OpClass('a', 'compute', 'matmul', 'F', writes=('x',), attributes={'recompute': True}),
        OpClass('b', 'collective', 'all_reduce', 'F', reads=('x',), writes=('y',), attributes={'recompute': True}),
        OpClass('c', 'compute', 'matmul', 'W', reads=('x',)),
        OpClass('d', 'compute', 'gelu', 'F', reads=('y',), writes=('z',), attributes={'recompute': True}),
    ]
    assert [[op.name for op in segment] for segment in segments(ops)] == [['a', 'b'], ['c', 'd']]


# What is refused


def test_a_name_that_is_none_is_refused():
    with pytest.raises(
        Infeasible, match=r'plan.recompute: layer9\.gelu names no operator to run again; there are embedding, position'
    ):
        lowered(Plan(data=1, recompute=('layer*.gelu', 'layer9.gelu')))


def test_a_stage_that_is_none_is_refused():
    with pytest.raises(Infeasible, match='recompute_stages lists 2, but the stages are 0 to 1'):
        lowered(Plan(data=1, pipeline=2, recompute='full', recompute_stages=(0, 2)))


def test_a_network_without_attention_has_none_to_recompute():
    with pytest.raises(Infeasible, match='selective runs attention again, and the model has none'):
        of_network(Plan(data=1, recompute='selective'))


FILE = """
simpar: 1
cluster: h100-sxm-8
workload:
  {model}
  batch: 16
  loss: {loss}
plan: {{{plan}}}
"""
GPT = 'transformer: {layers: 2, hidden: 64, heads: 4, vocab: 128, sequence: 32}'
NET = 'network: [{dense: {in: 8, out: 8}}, {relu: {recompute: true}}, {dense: {in: 8, out: 4}}]'


def read(tmp_path, model, plan):
    path = tmp_path / 'schedule.yaml'
    loss = 'mse' if model is NET else 'cross-entropy'
    path.write_text(FILE.format(model=model, plan=plan, loss=loss), encoding='utf-8')
    return load_schedule(path)


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('none', 'none'),
        ('full', 'full'),
        ('selective', 'selective'),
        ("['layer*.gelu', norm]", ('layer*.gelu', 'norm')),
    ],
)
def test_it_is_read_from_a_file(tmp_path, text, value):
    assert read(tmp_path, GPT, f'recompute: {text}').plan.recompute == value


def test_marks_are_read_from_a_file(tmp_path):
    assert read(tmp_path, NET, '').workload.model.layers[1] == Relu(recompute=True)
