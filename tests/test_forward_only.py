"""``phase: forward``: the forward of every model and order alone, its memory and time, and keys without effect."""

from dataclasses import replace

import pytest
from every import some
from tables import load_table
from trains import plans, trains

from simpar import Plan, load_case
from simpar.errors import ScheduleError
from simpar.lower import lower
from simpar.pipeline.orders import ORDERS
from simpar.workload import AdamW, Muon, Transformer, Workload

SIZES = {'layers': 4, 'hidden': 16, 'heads': 4, 'vocab': 24, 'sequence': 8, 'init_std': 0.3, 'ffn': 24}
LLAMA = Transformer(**SIZES, kv_heads=2, norm='rms_norm', activation='swiglu', bias=(), position='rotary', tied=True)
PLANS = plans(__file__, 'PLANS')


def workload(model=LLAMA, **more):
    return Workload(model=model, batch=16, phase='forward', **{'optimizer': AdamW(learning_rate=0.01), **more})


@pytest.mark.parametrize('plan', PLANS)
def test_losses_are_those_of_the_unsharded_model_and_nothing_is_trained(plan):
    from executor.inprocess import InProcess

    chosen, ranks = PLANS[plan]
    case = workload(optimizer=Muon(), clip_norm=1.0, loss_scale=2.0) if plan == 'zero 1' else workload()
    program = trains(case, chosen, ranks, steps=2)
    assert {op.phase for op in program.op_classes} == {'F'}
    assert {tensor.kind for tensor in program.tensors} <= {'parameter', 'activation', 'input', 'gathered'}
    found = InProcess(program, 7).run(2)
    assert not found.gradients
    # The same weights and other samples: the loss is another.
    assert found.losses[0] != found.losses[1]
    trained = InProcess(lower(replace(case, phase='train', loss_scale=1.0), chosen, ranks), 7).run(1)
    assert found.losses[0] == pytest.approx(trained.losses[0], rel=1e-12)


@pytest.mark.parametrize('order', some(sorted(ORDERS), 2))
def test_every_order_goes_forward_alone(order):
    plan = Plan(pipeline=2, micro_batches=4, order=order, chunks=0)
    try:
        trained = lower(replace(workload(), phase='train'), plan, 2)
    except ScheduleError as error:
        pytest.skip(str(error))
    program = lower(workload(), plan, 2)
    for role, whole in zip(program.roles, trained.roles, strict=True):
        # The forwards of training, in the same order on every rank.
        wanted = [
            (trained.op_classes[index].name, micro_batch)
            for index, micro_batch in zip(whole.op_class.tolist(), whole.micro_batch.tolist(), strict=True)
            if trained.op_classes[index].phase == 'F' and trained.op_classes[index].kind == 'compute'
        ]
        found = [
            (program.op_classes[index].name, micro_batch)
            for index, micro_batch in zip(role.op_class.tolist(), role.micro_batch.tolist(), strict=True)
            if program.op_classes[index].kind == 'compute'
        ]
        assert found == wanted


SCHEDULE = load_table(__file__, 'SCHEDULE')


def written(folder, phase='forward', text=SCHEDULE):
    path = folder / f'{phase}.yaml'
    path.write_text(text.replace('PHASE', phase))
    return path


def test_it_takes_about_a_third_of_the_work_and_the_memory_of_weights(tmp_path):
    forward, train = (load_case(written(tmp_path, phase)).predict() for phase in ('forward', 'train'))
    # 3 times the products, and once more what is recomputed.
    assert 3 < train.step / forward.step < 5
    held = forward.memory.peak
    weights = sum(
        forward.program.local_bytes(tensor) for tensor in forward.program.tensors if tensor.kind == 'parameter'
        and forward.program.holds(0, tensor.name)
    )  # fmt: skip
    assert weights < held < train.memory.peak / 2


def test_what_only_training_reads_is_said_to_be_without_effect(tmp_path, json_of):
    told = {one['key'] for one in json_of('run', str(written(tmp_path)))['without_effect']}
    assert {'plan.recompute', 'plan.zero', 'workload.optimizer'} <= {
        key.replace('.adamw.master_weights', '') for key in told
    }


def test_an_optimizer_is_said_to_change_nothing(tmp_path):
    assert any('workload.optimizer changes nothing' in note for note in load_case(written(tmp_path)).notes)
    assert not any('workload.optimizer' in note for note in load_case(written(tmp_path, 'train')).notes)


def test_nothing_is_dropped(tmp_path):
    with pytest.raises(ScheduleError, match=r'transformer\.dropout: nothing is dropped where nothing is trained'):
        load_case(written(tmp_path, text=SCHEDULE.replace('sequence: 2048', 'sequence: 2048, dropout: 0.1')))
