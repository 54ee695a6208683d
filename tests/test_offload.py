"""Offload of activations: the same numbers from less memory of the device, over a link that may be too slow."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from every import some

from executor.inprocess import InProcess
from executor.numerics import check
from executor.validate import validate
from simpar import Plan, Program, cli, cluster, load_profile, price, simulate
from simpar.errors import Infeasible, RunFailed
from simpar.importing.read import imported
from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.predict import Prediction, predict
from simpar.workload import Adam, AdamW, Muon, Transformer, Workload

MODEL = Transformer(layers=4, hidden=16, heads=4, vocab=32, sequence=8)
TRAINING = Workload(model=MODEL, batch=8, precision='fp32', optimizer=Adam(learning_rate=1e-2))
MASTERS = replace(TRAINING, loss_scale=8.0, optimizer=AdamW(learning_rate=1e-2, master_weights=True))
OFF, PART = ('activations',), ('attention',)
Patterns = Literal['none'] | tuple[str, ...]
PLANS = {
    'data': (2, Plan(data=2)),
    'tensor': (2, Plan(tensor=2)),
    'sequence': (4, Plan(data=2, tensor=2, sequence_parallel=True)),
    'copies': (2, Plan(tensor=2, copies=2)),
    'one layer': (2, Plan(data=2, offload_layers=1)),
    'all layers': (2, Plan(data=2, micro_batches=2, offload_layers=4)),
    'zero 3': (2, Plan(data=2, zero=3)),
    'pipeline': (4, Plan(data=2, pipeline=2, micro_batches=4, offload_layers=2)),
    'fused': (2, Plan(pipeline=2, micro_batches=4, exchange='fused', offload_layers=1)),
    'chunks': (2, Plan(pipeline=2, micro_batches=4, chunks=2, order='interleaved-1f1b', offload_layers=1)),
    'split': (2, Plan(pipeline=2, micro_batches=4, order='zb-h1', offload_layers=2)),
    'single': (2, Plan(data=2, streams='single')),
    'context': (2, Plan(context=2)),
}
TILED = {'tiles': (4, Plan(tensor=2, sequence_parallel=True, tiles=2, data=2, micro_batches=2))}
STATES = {
    'full': (2, Plan(data=2), TRAINING),
    'zero 1': (2, Plan(data=2, zero=1, micro_batches=2), TRAINING),
    'zero 3': (2, Plan(data=2, zero=3), replace(TRAINING, clip_norm=0.1)),
    'masters': (4, Plan(data=2, pipeline=2, micro_batches=4, zero=1), MASTERS),
    'muon': (2, Plan(data=2, zero=1), replace(TRAINING, optimizer=Muon(learning_rate=1e-2))),
    'one part': (2, Plan(data=2, zero=1, offload_parts=1), MASTERS),
    'parts of stages': (4, Plan(data=2, pipeline=2, micro_batches=4, zero=1, offload_parts=3), MASTERS),
    'parts of shards': (2, Plan(data=2, zero=3, offload_parts=2), replace(TRAINING, clip_norm=0.1)),
}


@pytest.mark.parametrize(('world', 'plan'), some(PLANS.values()), ids=some(PLANS))
def test_what_leaves_and_comes_back_trains_to_the_same_bits(world: int, plan: Plan) -> None:
    plain, leaving = (lower(TRAINING, replace(plan, offload=offload), world) for offload in ((), OFF))
    validate(leaving)
    assert any(op.operator == 'copy' for op in leaving.op_classes)
    check(leaving, TRAINING, replace(plan, offload=OFF))
    ours, theirs = (InProcess(program, seed=3).run(2) for program in (leaving, plain))
    assert ours.losses == theirs.losses
    assert all(bool((ours.parameters[name] == theirs.parameters[name]).all()) for name in theirs.parameters)


PARTLY: list[tuple[str, Patterns]] = [
    (name, recompute)
    for name in ('data', 'tensor', 'all layers', 'pipeline', 'chunks', 'context', 'tiles')
    for recompute in ('none', ('layer*.fc1', 'layer*.gelu', 'layer*.fc2'))
]


def test_a_head_that_gathers_amid_a_module_of_further_tokens_is_no_layer_behind_it() -> None:
    training = replace(TRAINING, model=replace(MODEL, position='rotary', mtp_layers=2, mtp_loss=0.3))
    plan = Plan(tensor=2, sequence_parallel=True, pipeline=2, micro_batches=2, stages=(5, 1), offload=OFF)
    check(lower(training, plan, 4), training, plan)


@pytest.mark.parametrize(('name', 'recompute'), some(PARTLY))
def test_attention_alone_leaves_while_a_feed_forward_may_be_made_again(name: str, recompute: Patterns) -> None:
    world, plan = (PLANS | TILED)[name]
    plain, leaving = (lower(TRAINING, replace(plan, offload=of, recompute=recompute), world) for of in ((), PART))
    validate(leaving)
    ours, theirs = (InProcess(program, seed=3).run(2) for program in (leaving, plain))
    assert ours.losses == theirs.losses
    assert all(bool((ours.parameters[name] == theirs.parameters[name]).all()) for name in theirs.parameters)
    out = {name for op in leaving.op_classes if op.operator == 'copy' for name in op.reads if '.host' not in name}
    assert out
    assert not any(part in name for name in out for part in ('fc1', 'gelu', 'fc2', 'norm2', 'residual'))


@pytest.mark.parametrize(('world', 'plan', 'training'), some(STATES.values()), ids=some(STATES))
def test_states_that_come_for_the_update_train_to_the_same_bits(world: int, plan: Plan, training: Workload) -> None:
    plain, leaving = (lower(training, replace(plan, offload=offload), world) for offload in ((), ('optimizer',)))
    validate(leaving)
    ours, theirs = (InProcess(program, seed=3).run(3) for program in (leaving, plain))
    assert ours.losses == theirs.losses
    assert all(bool((ours.parameters[name] == theirs.parameters[name]).all()) for name in theirs.parameters)
    both = lower(training, replace(plan, offload=(*OFF, 'optimizer'), offload_layers=1), world)
    validate(both)
    full, less = (memory(sequential(program)).fullest for program in (plain, leaving))
    # Counts of updates, a number each, stay.
    counts = sum(leaving.local_bytes(one) for one in leaving.tensors if one.kind == 'state' and not one.host)
    assert less.peak_kinds.get('state', 0) <= counts < full.peak_kinds['state'] / 8


def test_a_device_that_is_too_small_for_all_is_large_enough_without_what_left() -> None:
    training, plan = replace(TRAINING, model=replace(MODEL, layers=8)), Plan(data=2)
    plain, leaving = (lower(training, replace(plan, offload=offload), 2) for offload in ((), OFF))
    (full,), (less,) = (memory(sequential(program)).ranks for program in (plain, leaving))
    # Copies in a clock's order may lie beside a little more than in issue order.
    room = int(1.01 * less.peak_bytes)
    assert room < 0.85 * full.peak_bytes
    with pytest.raises(RunFailed, match='out of memory'):
        InProcess(plain, dtype=None, room=room).run(2)
    ours, theirs = InProcess(leaving, dtype=None, room=room).run(2), InProcess(plain, dtype=None).run(2)
    assert ours.losses == theirs.losses


LARGE = replace(TRAINING, model=replace(MODEL, layers=6, hidden=2048, heads=16, sequence=2048), precision='bf16')


def sides(profile: str, plan: Plan) -> tuple[Prediction, Prediction]:
    """With and without offload, on four devices."""
    of = cluster(load_profile(profile), devices=4)
    return tuple(predict(lower(LARGE, replace(plan, offload=offload), 4), None, of) for offload in (OFF, ()))


def sent(program: Program) -> float:
    """Bytes of a rank's copies to the host."""
    return sum(op.bytes for op in program.op_classes if op.operator == 'copy' and op.partition == 'host.out')


@pytest.mark.parametrize(('profile', 'rate', 'loses'), [('h100-sxm-8', 63e9 * 0.88, True), ('gh200-4', 297e9, False)])
def test_a_slow_link_to_the_host_loses_and_a_quick_one_hides_its_copies(profile: str, rate: float, loses: bool) -> None:
    leaving, plain = sides(profile, Plan(data=4))
    # All copies one way queue on one stream, which a step cannot be shorter than.
    assert leaving.step > sent(leaving.program) / rate
    assert (leaving.step > 1.3 * plain.step) is loses
    assert leaving.step < (plain.step + 2 * sent(leaving.program) / rate if loses else 1.05 * plain.step)
    assert leaving.memory.peak < 0.9 * plain.memory.peak
    # Behind the forward everything that left is there.
    assert (leaving.memory.host, plain.memory.host) == (sent(leaving.program), 0)


def in_parts(parts: int) -> Prediction:
    """States of one device on the host; the batch is so small that the update holds most."""
    plan = Plan(offload=('optimizer',) if parts else (), offload_parts=parts)
    training = replace(LARGE, batch=1, optimizer=AdamW(master_weights=True))
    return predict(lower(training, plan, 1), None, cluster(load_profile('h100-sxm-8'), devices=1))


def test_parts_of_states_wait_for_one_another_and_are_there_as_a_whole() -> None:
    """Both ways take turns where each update is a part; of one part they overlap, and all states are there at once."""
    plain, *swapped = map(in_parts, (0, 4096, 2, 1))
    alone, halves, full = (one.step - plain.step for one in swapped)
    states = sent(swapped[0].program)
    assert {sent(one.program) for one in swapped} == {states}
    way = states / (63e9 * 0.88)
    assert 2 * way < alone < 2.1 * way
    assert 0.95 * way < full < halves < alone
    largest = max(op.bytes for op in swapped[0].program.op_classes if op.operator == 'copy')
    held = [one.memory.fullest.peak_kinds.get('gathered', 0) for one in swapped]
    assert held[0] <= largest
    assert states / 2 - largest <= held[1] <= states / 2 + largest
    # Gradients go where their weights are updated, which the last states come behind.
    assert states - largest < held[2] <= states


def test_copies_slow_no_computation_whatever_engine_runs_them() -> None:
    program = lower(TRAINING, Plan(tensor=2, copies=2, offload=OFF), 2)
    costs = price(program, cluster(load_profile('h100-sxm-8'), devices=2))
    for waiting in (False, True):
        of = replace(costs, waiting_slows=waiting)
        one, other = (simulate(program, of, engine=engine) for engine in ('simpy', 'python'))
        assert (one.step_ends == other.step_ends).all()
    alone = lower(TRAINING, Plan(offload=OFF), 1)
    (times,) = simulate(alone, price(alone, cluster(load_profile('h100-sxm-8'), devices=1))).representatives
    lasts = {}
    for slot, name in enumerate(alone.op(alone.role(0), slot).name for slot in range(len(alone.role(0)))):
        lasts[name] = times.end_KS[-1, slot] - times.start_KS[-1, slot]
    assert lasts['layer0.fc1.F'] == pytest.approx(lasts['layer3.fc1.F'])


@pytest.mark.parametrize(
    ('plan', 'what'),
    [
        (Plan(recompute='full'), 'recompute: full'),
        (Plan(tensor=2, tiles=2), 'tiles: 2'),
        (Plan(sequence_chunks=2, pipeline=2, micro_batches=2), 'sequence_chunks: 2'),
        (Plan(pairs='overlap', micro_batches=2), 'pairs: overlap'),
    ],
)
def test_what_is_not_modelled_beside_it_is_refused_by_name(plan: Plan, what: str) -> None:
    with pytest.raises(Infeasible, match=what):
        lower(TRAINING, replace(plan, offload=OFF), plan.tensor * plan.pipeline)


def test_a_cluster_whose_link_to_the_host_nobody_knows_says_so() -> None:
    of = cluster(load_profile('h100-sxm-8'), devices=2)
    of = replace(of, profile=replace(of.profile, host_link=None))
    with pytest.raises(Infeasible, match='no host_link'):
        price(lower(TRAINING, Plan(data=2, offload=OFF), 2), of)


@pytest.mark.parametrize(
    ('framework', 'cluster_', 'said', 'flag'),
    [
        ('mindspeed', '{profile: ascend910b-8, stack: mindspeed}', {'offload': ['optimizer'], 'offload_parts': 16},
         '--swap-optimizer'),
        ('mindspeed', '{profile: ascend910b-8, stack: mindspeed}', {'offload': ['optimizer'], 'offload_parts': 4},
         '--swap-optimizer-times 4'),
        ('megatron', '{profile: h100-sxm-8, stack: megatron-te}', {'offload': ['activations'], 'offload_layers': 1},
         '--cpu-offloading-num-layers 1'),
        ('megatron', '{profile: h100-sxm-8, stack: megatron-te}', {'offload': ['activations']},
         '--cpu-offloading-num-layers 3'),
    ],
)  # fmt: skip
def test_words_of_frameworks_come_in_and_go_out(
    framework: str, cluster_: str, said: dict[str, object], flag: str, tmp_path: Path
) -> None:
    schedule, script = tmp_path / 'a.yaml', tmp_path / 'a.sh'
    schedule.write_text(
        f'simpar: 1\ncluster: {cluster_}\nworkload:\n'
        '  transformer: {layers: 4, hidden: 64, heads: 8, vocab: 64, sequence: 32}\n  batch: 8\n  precision: bf16\n'
        f'  optimizer: {{adamw: {{master_weights: true}}}}\nplan: {{data: 8, zero: 1, **}}\n'.replace(
            '**', ', '.join(f'{key}: {value}' for key, value in said.items())
        )
    )
    assert cli.main(['export', str(schedule), '--to', framework, '--output', str(script)]) == 0
    assert flag in script.read_text()
    back = imported(script, given={}).values
    assert {key: back.get(f'plan.{key}') for key in said} == said
    assert ('plan.offload_layers' in back) is ('offload_layers' in said)


def test_a_pipeline_beside_it_is_told_as_megatron_refuses_it(tmp_path: Path) -> None:
    script = tmp_path / 'a.sh'
    script.write_text(
        'torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 8 '
        '--seq-length 32 --max-position-embeddings 32 --vocab-size 64 --micro-batch-size 1 --global-batch-size 8 '
        '--pipeline-model-parallel-size 2 --cpu-offloading-num-layers 1\n'
    )
    made = imported(script, given={})
    assert 'plan.offload' not in made.values
    assert any('cpu-offloading-num-layers' in str(line) and 'it refuses' in line.note for line in made.lines)
