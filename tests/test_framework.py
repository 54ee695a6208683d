"""A schedule runs under a framework: the one that it names, or one by rule; what it is silent on that framework has."""

import json

import pytest
from every import some
from tables import load_table

from simpar.case import load_case
from simpar.profiles import load_stack, stack_names, stack_of
from simpar.schedule import load_rows, load_schedule

MODEL = {
    'layers': 16, 'hidden': 512, 'heads': 8, 'vocab': 1024, 'sequence': 256, 'activation': 'swiglu', 'norm': 'rms_norm',
}  # fmt: skip


def schedule(profile='h100-sxm-8', *, stack=None, plan=None, workload=None, **others):
    cluster = {'profile': profile, 'nodes': 2, **({'stack': stack} if stack else {})}
    work = {'transformer': MODEL, 'batch': 64, 'precision': 'bf16', **(workload or {})}
    return {'simpar': 1, 'cluster': cluster, 'workload': work, 'plan': plan or {}, **others}


@pytest.mark.parametrize(
    ('profile', 'plan', 'workload', 'stack'),
    load_table(__file__, 'test_the_framework_of_a_silent_file_is_the_one_that_its_devices_are_used_with'),
)
def test_the_framework_of_a_silent_file_is_the_one_that_its_devices_are_used_with(profile, plan, workload, stack):
    made = load_schedule(schedule(profile, plan=plan, workload=workload))
    assert made.cluster.stack == stack
    assert made.framework_is_default


def test_a_network_of_mindspores_layers_runs_under_mindspore():
    layers = [{'dense': {'in': 64, 'out': 64}}]
    file = {'simpar': 1, 'cluster': 'ascend910a-8', 'workload': {'network': layers, 'batch': 64}}
    assert load_schedule(file).cluster.stack == 'mindspore-graph'


def test_what_the_file_says_goes_before_what_the_framework_has():
    silent = load_schedule(schedule(plan={'pipeline': 4, 'micro_batches': 8}))
    assert (silent.plan.exchange, silent.plan.receive) == ('fused', 'late')
    assert (silent.workload.clip_norm, silent.workload.gradients) == (1.0, 'fp32')
    plan = {'pipeline': 4, 'micro_batches': 8, 'exchange': 'separate'}
    own = load_schedule(schedule(plan=plan, workload={'optimizer': 'sgd', 'clip_norm': 0}))
    assert (own.plan.exchange, own.workload.clip_norm) == ('separate', 0)
    assert type(own.workload.optimizer).__name__ == 'Sgd'
    assert ('plan', 'exchange') not in own.of_stack


def test_none_is_the_device_alone_with_no_frameworks_keys():
    bare = load_schedule(schedule(stack='none', plan={'pipeline': 4, 'micro_batches': 8}))
    assert bare.plan.exchange == 'separate'
    assert bare.of_stack == frozenset()
    assert load_case(schedule(stack='none')).cluster.stack is None


def test_a_forward_pass_alone_has_no_optimizer_of_its_framework():
    assert type(load_schedule(schedule(workload={'phase': 'forward'})).workload.optimizer).__name__ == 'Sgd'


@pytest.mark.parametrize('stack', some(['none', *stack_names()]))
def test_no_framework_changes_how_many_weights_a_model_has(stack):
    assert load_case(schedule(stack=stack)).parameters == load_case(schedule()).parameters


def test_a_baseline_of_another_framework_has_that_ones_keys_where_the_file_is_silent():
    plan = {'pipeline': 4, 'micro_batches': 8, 'fusion': 'layer'}
    made = load_schedule(schedule(plan=plan, against={'cluster.stack': 'megatron-2021'}))
    other = made.baseline()
    assert (made.plan.streams, other.plan.streams) == ('group', 'messages')
    # What the file says is the same in both, whatever its framework would do.
    assert (made.plan.fusion, other.plan.fusion) == ('layer', 'layer')
    back = load_schedule(schedule(stack='megatron-2021', plan=plan, against={'cluster.stack': 'none'}))
    assert (back.plan.scatter_gather, back.baseline().plan.scatter_gather) == (True, False)
    assert back.baseline().plan.exchange == 'separate'


def test_rows_of_a_sweep_run_under_one_framework_unless_it_is_swept():
    rows = load_rows(schedule('ascend910b-8'), sweeps=['plan.copies=1,2'])
    assert {row.schedule.cluster.stack for row in rows} == {'mindspore-graph'}
    plan = {'pipeline': 4, 'micro_batches': 8}
    rows = load_rows(schedule(plan=plan), sweeps=['cluster.stack=megatron-te,torch-fsdp,none'])
    assert [row.schedule.plan.exchange for row in rows] == ['fused', 'separate', 'separate']
    assert [row.schedule.workload.clip_norm for row in rows] == [1.0, 1.0, 0.0]


def test_the_headline_says_whose_step_it_is(put, printed):
    file = put('plan.yaml', json.dumps(schedule()))
    told = ' '.join(printed('run', file, '--full').split())
    assert 'as Megatron Core with Transformer Engine, without CUDA graphs, runs it' in told
    assert 'The file names no framework: megatron-te is the default here (cluster.stack).' in told
    assert 'if the framework cost nothing (measured steps are 10 to 36 % longer)' in ' '.join(
        printed('run', file, '--set', 'cluster.stack=none').split()
    )


def test_an_interval_is_of_the_framework_that_is_asked_about():
    scored = load_case(schedule('a100-sxm-8', stack='megatron-2021')).predict()
    assert scored.interval
    assert 'megatron-2021' in scored.interval.spread.stacks
    assert 'framework' in load_case(schedule('a100-sxm-8', stack='megatron-te')).predict().spread.lacking


def test_a_misspelt_framework_is_told_its_own_stacks(put, refused):
    file = put('plan.yaml', json.dumps(schedule('ascend910b-8', stack='mindspore')))
    assert 'did you mean mindspore-graph?' in refused('run', file)


def own_stack(folder, key):
    """A file whose stack, beside it, gives this key of a schedule."""
    head = 'format: 1\nname: own\nextends: eager\ndescription: d\nsource: s\n'
    (folder / 'own.yaml').write_text(f'{head}schedule:\n  {key}\n')
    file = folder / 'plan.yaml'
    # The path of a stack starts in the folder of the file that names it, as all paths there do.
    file.write_text(json.dumps(schedule(stack='./own.yaml')))
    return file


def test_a_stack_may_not_say_what_the_users_model_is(tmp_path, refused):
    assert 'own.yaml:7: schedule.workload.batch: no key that a framework decides' in refused(
        'run', own_stack(tmp_path, 'workload.batch: 8')
    )


def test_a_stack_of_before_keeps_its_keys_of_a_model_for_published_rows_alone(tmp_path):
    file = own_stack(tmp_path, 'workload.transformer.tied: true')
    assert load_stack(str(tmp_path / 'own.yaml')).model == {'tied': True}
    assert load_schedule(file).workload == load_schedule(file, ['cluster.stack=eager']).workload


@pytest.mark.parametrize('pipeline', [1, 4, 16])
@pytest.mark.parametrize('order', ['1f1b', 'interleaved-1f1b'])
@pytest.mark.parametrize('stack', some(stack_names()))
def test_naming_a_stack_is_the_same_as_writing_all_that_it_has(stack, pipeline, order):
    if (pipeline, order) == (1, 'interleaved-1f1b'):
        order = '1f1b'
    chunks = {'chunks': 2} if order == 'interleaved-1f1b' else {}
    model = {**MODEL, 'layers': 32}
    plan = {'pipeline': pipeline, 'micro_batches': 16, 'order': order, **chunks}
    named = schedule(stack=stack, plan=plan, workload={'transformer': model, 'batch': 256})
    keys = load_stack(stack).keys_of({'plan.order': order}.get)
    whole = [f'{key}={json.dumps(value)}' for key, value in keys.items()]
    first, other = load_schedule(named), load_schedule(named, whole)
    assert (first.plan, first.workload) == (other.plan, other.workload)


def test_a_frameworks_word_finds_its_stack():
    assert stack_of('MindSpore', 'Ascend 910B') == 'mindspore-graph'
    assert stack_of('unknown', 'RCCL') == 'none'


def test_a_baseline_on_other_devices_runs_under_their_framework():
    made = load_schedule(schedule(against={'cluster.profile': 'ascend910b-8'}))
    assert (made.cluster.stack, made.baseline().cluster.stack) == ('megatron-te', 'mindspeed')
    named = load_schedule(schedule(stack='megatron-core', against={'cluster.profile': 'ascend910b-8'}))
    assert named.baseline().cluster.stack == 'megatron-core'


def test_what_contradicts_the_framework_is_told_before_the_figures(put, printed):
    file = put('plan.yaml', json.dumps(schedule(plan={'pipeline': 4, 'micro_batches': 8, 'exchange': 'separate'})))
    told = printed('run', file)
    assert 'Your schedule is not as megatron-te is by default: plan.exchange is separate, not fused' in told
    assert told.index('Your schedule is not') < told.index('computing')


@pytest.mark.parametrize(('size', 'unlike'), [('200 KB', False), ('0.2 MB', False), ('300 KB', True)])
def test_a_size_contradicts_the_framework_only_where_it_is_another_number_of_bytes(put, printed, size, unlike):
    file = put(
        'plan.yaml', json.dumps(schedule(stack='deepspeed', plan={'data': 16, 'zero': 3, 'shard_threshold': size}))
    )
    assert (f'plan.shard_threshold is {size}, not 200 KB' in printed('run', file)) == unlike


@pytest.mark.parametrize(('profile', 'quick'), [('h100-sxm-8', 'bf16'), ('v100-sxm2-8', 'fp16'), ('cpu-gloo', '')])
def test_an_answer_in_fp32_that_nobody_asked_for_says_so_first_where_16_bits_are_faster(profile, quick):
    file = {
        'simpar': 1,
        'cluster': {'profile': profile, 'devices': 1},
        'workload': {'network': [{'dense': {'in': 64, 'out': 64}}], 'loss': 'mse', 'batch': 8},
    }
    said = [note for note in load_case(file).left_out if note.startswith('no precision is given')]
    assert [note.rpartition(' ')[2] for note in said] == [quick] * bool(quick)
    told = {**file, 'workload': {**file['workload'], 'precision': 'fp32'}}
    assert not load_case(told).left_out
