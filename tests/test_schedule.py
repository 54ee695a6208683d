"""Schedules: what is read, the baseline, and whether it fits the cluster."""

import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from every import some
from good_schedules import GRAPH, NETWORK, TRANSFORMER
from graph_cases import graph_case, random_graph

from simpar import model as ops
from simpar.errors import Infeasible, ScheduleError
from simpar.lower import lower
from simpar.plans import Plan
from simpar.schedule import ClusterReference, Schedule, check_against_cluster, load_schedule
from simpar.schedule.checks import check
from simpar.schedule.contents import Contents
from simpar.workload import Adam, Sgd, Transformer, Workload

DOCUMENTATION = Path(__file__).parent.parent / 'docs' / 'keys.md'


def read(tmp_path: Path, text: str, *overrides: str) -> Schedule:
    path = tmp_path / 'schedule.yaml'
    path.write_text(text, encoding='utf-8')
    return load_schedule(path, overrides)


# What is read


def test_a_transformer(tmp_path):
    model = Transformer(layers=32, hidden=2560, heads=32, ffn=10240, vocab=40000, sequence=1024)
    assert read(tmp_path, TRANSFORMER) == Schedule(
        simpar=1,
        cluster=ClusterReference(profile='ascend910a-8', stack='mindspore-graph'),
        workload=Workload(model=model, batch=32, precision='fp16', optimizer=Sgd(learning_rate=0.01)),
        # What MindSpore has where the file is silent.
        plan=Plan(data=2, tensor=4, copies=2, reduce='late', overlap=()),
    )


def test_a_network_and_a_cluster_changed(tmp_path):
    layers = (
        ops.Flatten(),
        ops.Dense(inputs=784, outputs=512, bias=False, name='matmul'),
        ops.Relu(),
        ops.Dense(inputs=512, outputs=10),
    )
    adam = Adam(learning_rate=1e-3)
    assert read(tmp_path, NETWORK, 'cluster.stack=none') == Schedule(
        simpar=1,
        cluster=ClusterReference(profile='h100-sxm-8', nodes=2, slow={3: 0.9}, devices=4, stack='none'),
        workload=Workload(model=ops.Network(layers=layers), batch=32, data='mnist', optimizer=adam),
        plan=Plan(tensor=4, copies=4),
        against={'plan.copies': 2},
    )


def test_a_network_that_is_a_graph_of_operators(tmp_path):
    model = read(tmp_path, GRAPH).workload.model
    assert (model.is_graph, model.input, len(model.layers)) == (True, (8,), 17)
    assert model.layers[0] == ops.Embedding(vocab=32, width=16, name='words', strategy=((4, 1), (2, 1)))
    assert model.layers[1] == ops.Reshape(shape=(-1, 16), name='rows')
    assert model.layers[2] == ops.LayerNorm(strategy=((8, 1), (1,), (1,)), recompute=True)
    assert model.layers[5] == ops.Transpose(permutation=(0, 2, 1, 3), name='heads', strategy=((2, 1, 4, 1),))
    assert model.layers[6:10] == (
        ops.MatMul(of=('heads', 'heads'), transpose_b=True, strategy=((2, 4, 1, 1), (2, 4, 1, 1))),
        ops.Mul(factor=0.5),
        ops.Softmax(strategy=((2, 4, 1, 1),)),
        ops.MatMul(of=('softmax0', 'heads')),
    )
    assert model.layers[13] == ops.Add(of=('rows', 'proj'), name='sum', strategy=((8, 1), (8, 1)))
    assert model.layers[14:16] == (ops.Gelu(strategy=((2, 4),)), ops.Relu(of='sum'))


@pytest.mark.parametrize('text', re.findall('```yaml\n(.*?)```', DOCUMENTATION.read_text(encoding='utf-8'), re.DOTALL))
def test_the_documentations_examples_are_schedules(text, tmp_path):
    assert read(tmp_path, text).simpar == 1


def test_overrides_win_in_their_order(tmp_path):
    schedule = read(
        tmp_path, TRANSFORMER, 'plan.copies=4', 'plan.copies=8', 'cluster.nodes=2', 'workload.optimizer={adam: {}}'
    )
    assert schedule.plan.copies == 8
    assert schedule.cluster == ClusterReference(profile='ascend910a-8', nodes=2, stack='mindspore-graph')
    assert schedule.workload.optimizer == Adam()


def test_a_path_to_a_profile_starts_from_the_file(tmp_path):
    assert read(tmp_path, NETWORK.replace('h100-sxm-8', 'mine/h100.yaml')).cluster.profile == str(
        tmp_path / 'mine/h100.yaml'
    )
    assert read(tmp_path, TRANSFORMER, 'cluster=mine/h100.yaml').cluster.profile == 'mine/h100.yaml'
    assert read(tmp_path, NETWORK.replace('h100-sxm-8', '/mine/h100.yaml')).cluster.profile == '/mine/h100.yaml'


def test_every_key_knows_its_line(tmp_path):
    schedule = read(tmp_path, NETWORK, 'plan.reduce=late')
    assert schedule.where('cluster.profile') == f'{tmp_path}/schedule.yaml:2'
    assert schedule.where('workload.network.3.dense.out') == f'{tmp_path}/schedule.yaml:8'
    assert schedule.where('against.plan.copies') == f'{tmp_path}/schedule.yaml:15'
    assert schedule.where('plan.reduce') == '--set plan.reduce=late'
    assert schedule.where('workload.precision') == f'{tmp_path}/schedule.yaml:3'


# The baseline


def test_the_baseline_has_one_copy_unless_said_otherwise(tmp_path):
    schedule = read(tmp_path, TRANSFORMER)
    assert schedule.baseline() == replace(schedule, plan=replace(schedule.plan, copies=1), against={})
    assert read(tmp_path, TRANSFORMER, 'plan.copies=1').baseline() is None
    assert read(tmp_path, TRANSFORMER, 'against={}').baseline() is None


def test_the_baseline_differs_where_against_says(tmp_path):
    schedule = read(tmp_path, NETWORK, 'against={cluster.nodes: 1, workload.network.1.dense.bias: true}')
    baseline = schedule.baseline()
    assert baseline is not None
    assert baseline.cluster == replace(schedule.cluster, nodes=1)
    assert baseline.workload.model.layers[1] == ops.Dense(inputs=784, outputs=512, name='matmul')
    assert baseline.plan == schedule.plan
    assert baseline.baseline() is None


def test_a_baseline_on_another_profile_starts_from_the_file(tmp_path):
    baseline = read(tmp_path, TRANSFORMER, 'against={cluster: other.yaml}').baseline()
    assert baseline is not None
    assert baseline.cluster.profile == str(tmp_path / 'other.yaml')


def test_the_baseline_follows_a_schedule_that_was_changed_in_python(tmp_path):
    schedule = read(tmp_path, TRANSFORMER)
    changed = replace(schedule, plan=replace(schedule.plan, copies=8, reduce='late'))
    baseline = changed.baseline()
    assert baseline is not None
    assert baseline.plan == replace(changed.plan, copies=1)
    broken = replace(schedule, against={'plan.copies': 3})
    with pytest.raises(ScheduleError, match=r'against: workload\.batch: 32 samples'):
        broken.baseline()


# The cluster


def problems_on(schedule: Schedule, world: int) -> str:
    with pytest.raises(ScheduleError) as caught:
        check_against_cluster(schedule, world)
    return str(caught.value)


def test_data_takes_the_ranks_that_are_left(tmp_path):
    schedule = read(tmp_path, TRANSFORMER, 'plan.data=0', 'plan.tensor=2')
    assert check_against_cluster(schedule, 8) == replace(schedule, plan=replace(schedule.plan, data=4))
    assert check_against_cluster(read(tmp_path, TRANSFORMER), 8).plan.data == 2


def test_degrees_and_ranks_are_told_with_their_product(tmp_path):
    assert problems_on(read(tmp_path, TRANSFORMER), 16) == (
        f'{tmp_path}/schedule.yaml:7: plan.data: data 2 × tensor 4 = 8 ranks, but the cluster has 16; '
        'write data: 4, or 0 for all that tensor leaves'
    )
    assert problems_on(read(tmp_path, TRANSFORMER, 'plan.tensor=16', 'plan.data=0'), 8) == (
        '--set plan.tensor=16: plan.tensor: data 1 × tensor 16 = 16 ranks, but the cluster has 8; '
        'write a divisor of 8 as tensor: 1, 2, 4, 8'
    )


def test_the_batch_must_divide_by_the_ranks_that_are_left(tmp_path):
    assert problems_on(read(tmp_path, TRANSFORMER, 'plan.data=0', 'workload.batch=36'), 32) == (
        '--set workload.batch=36: workload.batch: 36 samples do not divide by data 8 × copies 2 = 16; '
        'write a multiple of 16, e.g. 32'
    )


def test_a_slow_rank_must_be_there(tmp_path):
    text = TRANSFORMER.replace('ascend910a-8', '{profile: ascend910a-8, slow: {7: 0.5, 8: 0.5}}')
    assert problems_on(read(tmp_path, text), 8) == (
        f'{tmp_path}/schedule.yaml:2: cluster.slow.8: there is no rank 8; write a rank below 8'
    )


def test_an_optimizer_with_its_defaults_is_a_name_alone(tmp_path):
    short, full = tmp_path / 'short.yaml', tmp_path / 'full.yaml'
    text = (Path(__file__).parent.parent / 'examples' / 'transformer_h100.yaml').read_text()
    written = '{adam: {learning_rate: 0.0001}}'
    assert written in text
    short.write_text(text.replace(written, 'adam'))
    full.write_text(text.replace(written, '{adam: {}}'))
    assert load_schedule(short).workload == load_schedule(full).workload
    short.write_text(text.replace(written, 'adma'))
    with pytest.raises(ScheduleError, match='did you mean adam'):
        load_schedule(short)


# Broken schedules: every fault is told at its line, with its key and a remedy, all at once and with exit code 2


BROKEN = Path(__file__).parent / 'broken'


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    overrides: tuple[str, ...]
    expected: tuple[tuple[str, str], ...]
    """Pairs of a line (or a setting) and the text of the problem, … for any text."""


def cases() -> list[Case]:
    texts = [path.read_text(encoding='utf-8') for path in sorted(BROKEN.glob('*.txt'))]
    return [case(part) for text in texts for part in text.split('=== ')[1:]]


def case(part: str) -> Case:
    name, _, rest = part.partition('\n')
    lines = rest.rstrip('\n').split('\n')
    overrides = tuple(line.removeprefix('--set ') for line in lines if line.startswith('--set '))
    expected = [
        (where.strip(), text.strip())
        for where, _, text in (line[2:].partition(': ') for line in lines if line.startswith('! '))
    ]
    file = [line for line in lines if not line.startswith(('--set ', '! '))]
    for number, line in enumerate(file, 1):
        expected += [(str(number), text.strip()) for text in line.split(' # ! ')[1:]]
    return Case(name, '\n'.join(file) + '\n', overrides, tuple(expected))


def fits(text: str, pattern: str) -> bool:
    return re.fullmatch('.*'.join(re.escape(piece) for piece in pattern.split('…')), text) is not None


@pytest.mark.parametrize('case', cases(), ids=lambda case: case.name)
def test_every_fault_is_told_at_its_line_with_a_remedy(case, put):
    path = put('schedule.yaml', case.text)
    with pytest.raises(ScheduleError) as caught:
        load_schedule(path, case.overrides)
    assert caught.value.exit_code == 2
    told = [(problem.where.removeprefix(f'{path}:'), str(problem)) for problem in caught.value.problems]
    left = list(told)
    for where, text in case.expected:
        found = [one for one in left if one[0] == where and fits(one[1].partition(f'{where}: ')[2], text)]
        assert found, f'no {where}: {text}\nin {told}'
        left.remove(found[0])
    assert not left
    assert all(problem.instead for problem in caught.value.problems)


def test_problems_stand_in_the_order_of_the_file_on_one_screen(tmp_path):
    text = TRANSFORMER + ''.join(f'wrong{number}: 1\n' for number in range(100))
    (tmp_path / 'schedule.yaml').write_text(text)
    with pytest.raises(ScheduleError) as caught:
        load_schedule(tmp_path / 'schedule.yaml')
    lines = str(caught.value).split('\n')
    assert [line.partition(': ')[2].partition(':')[0] for line in lines[:20]] == [f'wrong{n}' for n in range(20)]
    assert lines[20] == f'{tmp_path}/schedule.yaml:28: and 80 more'
    assert len(lines) == 21


# Random networks that are graphs: what is refused at the door is what lowering refuses, at a layer of the file


def complaints(workload: Workload, plan: Plan) -> list[tuple[object, ...]]:
    contents = Contents(simpar=1, cluster=ClusterReference(profile='h100-sxm-8'), workload=workload, plan=plan)
    return [complaint.key for complaint in check(contents)]


@pytest.mark.parametrize('seed', some(range(30)))
def test_what_can_be_lowered_is_not_refused(seed):
    workload, plan, _ = graph_case(seed)
    assert complaints(workload, plan) == []


def staged(seed: int) -> tuple[Workload, Plan]:
    """A random graph in a pipeline of stages that begin at any dense layers."""
    draw = random.Random(seed)
    while True:
        draft = random_graph(draw, 4, 1)
        dense = len(draft.network.dense)
        if dense >= 2:
            break
    stages = draw.randint(2, min(4, dense))
    begins = sorted(draw.sample(range(1, dense), stages - 1))
    counts = tuple(end - start for start, end in zip([0, *begins], [*begins, dense], strict=True))
    workload = Workload(model=draft.network, batch=2 * draft.rows, loss='mse')
    return workload, Plan(pipeline=stages, stages=counts, micro_batches=2)


def test_stages_begin_at_any_layer_whatever_later_ones_read():
    several = 0
    for seed in range(40):
        workload, plan = staged(seed)
        assert ('plan', 'stages') not in complaints(workload, plan), seed
        program = lower(workload, plan, 2 * plan.pipeline)
        several += any(len(op.reads) > 1 for op in program.op_classes if op.kind == 'send')
    assert 3 < several < 40


def spoiled(seed: int) -> Workload:
    """A random graph of which one layer is another, or out."""
    draw = random.Random(seed)
    workload, *_ = graph_case(seed)
    layers = list(workload.model.layers)
    place = draw.randrange(len(layers))
    layer = layers[place]
    if isinstance(layer, ops.Dense) and draw.random() < 0.5:
        layers[place] = replace(layer, inputs=layer.inputs + draw.choice([0, 1]))
    elif draw.random() < 0.5:
        del layers[place]
    else:
        layers.insert(place, draw.choice(layers[: place + 1]))
    model = replace(workload.model, layers=tuple(layers or [layer]))
    return replace(workload, model=model, loss='mse', loss_operators='one', loss_strategies={})


@pytest.mark.parametrize('seed', some(range(40)))
def test_networks_that_do_not_fit_are_refused_at_the_door_and_no_others(seed):
    workload = spoiled(seed)
    model = workload.model
    assert isinstance(model, ops.Network)
    named = [key for key in complaints(workload, Plan()) if key[-1] != 'name']
    clash = len(named) < len(complaints(workload, Plan()))
    if clash or not model.is_graph:
        return
    try:
        ops.network_shapes(model, workload.batch)
    except Infeasible:
        assert named
    else:
        assert not named
