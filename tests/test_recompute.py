"""What a plan recomputes: which ops run again, where, and what they cost."""

import pytest
from tables import load_table

from simpar import Plan, Transformer, Workload, load_schedule
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Network, Relu

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


def test_what_the_loss_reads_is_never_run_again():
    assert 'head' not in again(lowered(Plan(data=1, recompute=('*',))))
    assert again(of_network(Plan(data=1, recompute=('*',)))) == ['dense0', 'relu0', 'middle', 'act']


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


FILE = load_table(__file__, 'FILE')
GPT = 'transformer: {layers: 2, hidden: 64, heads: 4, vocab: 128, sequence: 32}'
NET = 'network: [{dense: {in: 8, out: 8}}, {relu: {recompute: true}}, {dense: {in: 8, out: 4}}]'


def read(tmp_path, model, plan):
    path = tmp_path / 'schedule.yaml'
    loss = 'mse' if model is NET else 'cross-entropy'
    path.write_text(FILE.format(model=model, plan=plan, loss=loss), encoding='utf-8')
    return load_schedule(path)


@pytest.mark.parametrize(('text', 'value'), load_table(__file__, 'test_it_is_read_from_a_file'))
def test_it_is_read_from_a_file(tmp_path, text, value):
    assert read(tmp_path, GPT, f'recompute: {text}').plan.recompute == value


def test_marks_are_read_from_a_file(tmp_path):
    assert read(tmp_path, NET, '').workload.model.layers[1] == Relu(recompute=True)
