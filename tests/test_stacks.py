"""Stacks: read, found, and what each of their parts does to a prediction; every part can be switched off."""

import json
from dataclasses import replace

import pytest
import stack_table as tables_of
from every import some
from tables import load_table

from simpar import Plan, load_schedule, simulate
from simpar.cli import main
from simpar.cost.price import Effects, Pricer
from simpar.errors import ProfileError
from simpar.hardware import Launches
from simpar.importing.mapping import schedule_text
from simpar.importing.read import imported
from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.predict import OF_STACKS, predict, step_of
from simpar.profiles import DEFAULT, choices_in, cluster, load_profile, load_stack, stack_names, stack_of
from simpar.validate.anchor import BOUNDS
from simpar.workload import Adam, Transformer, Workload

MODEL = Transformer(layers=2, hidden=512, heads=8, vocab=1024, sequence=128)
WORK = Workload(model=MODEL, batch=8, precision='bf16', optimizer=Adam(), clip_norm=1.0)


SCHEDULE = load_table(__file__, 'SCHEDULE')


def on(stack, profile='a100-sxm-8', devices=1):
    return cluster(load_profile(profile), devices=devices, stack=stack)


EVERY = Effects()


def costs(program, hardware, effects=EVERY):
    return Pricer(program, hardware).costs(effects)


def place(program, name):
    return next(number for number, op in enumerate(program.op_classes) if op.name == name)


def test_every_stack_is_read_and_names_its_sources():
    for name in stack_names():
        stack = load_stack(name)
        assert stack.name == name
        assert all(launches.source for launches in stack.launches.values())


def test_every_stage_reads_a_batch_in_megatron_of_2021_and_the_first_and_last_alone_in_zero_bubble():
    """Where the forward of a later stage begins, its host has the calls that the embedding has on the first."""
    model = replace(MODEL, layers=4)
    program = lower(replace(WORK, model=model), Plan(pipeline=2, micro_batches=2), 2)
    begins, within = place(program, 'layer2.norm1.F'), place(program, 'layer3.norm1.F')
    base = load_stack('megatron-2021')
    host = costs(program, on(base, devices=2)).host
    forward, calls = base.host.forward.value, base.launches['embedding.F'].calls
    assert host[begins] - host[within] == pytest.approx(calls * forward, rel=1e-6)
    assert host[place(program, 'layer0.norm1.F')] == host[within]
    fork = costs(program, on(load_stack('zero-bubble'), devices=2)).host
    assert fork[begins] == fork[within]


def test_fitted_numbers_lie_within_their_stated_ranges():
    for name in stack_names():
        host = load_stack(name).host
        if host:
            for key in ('forward', 'backward', 'step'):
                low, high = BOUNDS[key]
                assert low <= getattr(host, key).value <= high
    for name in ('a100-sxm-8', 'h100-sxm-8', 'ascend910b-8'):
        low, high = BOUNDS['sustained']
        assert low < load_profile(name).device.sustained.value < high


@pytest.mark.parametrize(
    ('framework', 'hardware', 'year', 'stack'),
    [
        ('Megatron-LM', 'A100', 2021, 'megatron-2021'), ('Megatron-LM', 'A100', 2024, 'megatron-te-2024'),
        ('PyTorch FSDP + compile', 'H100', 2024, 'torch-compile-2024'),
        ('PyTorch FSDP1 + compile', 'H100', 2024, 'torch-compile-fsdp1'), ('torchtitan', 'H100', 9999, 'torch-eager'),
        ('torchtitan', 'H100', 2025, 'torch-eager-2025'),
        ('Composer+PyTorch FSDP1', 'H100-SXM', 9999, 'torch-fsdp-hopper'),
        ('DeepSpeed', 'A100', 2023, 'deepspeed'), ('DeepSpeed ZeRO-3', 'A100', 2021, 'deepspeed-2021'),
        ('nobody knows', 'A100', 2023, DEFAULT),
    ],
)  # fmt: skip
def test_one_table_tells_the_stack(framework, hardware, year, stack):
    assert stack_of(framework, hardware, year) == stack


@pytest.mark.parametrize(
    ('flags', 'stack'),
    [('use-flash-attn', 'mindspeed-unfused'), ('', 'mindspeed-unfused'), ('use-mc2', 'mindspeed'), (None, 'mindspeed')],
)
def test_flags_that_are_known_tell_scripts_that_do_not_fuse(flags, stack):
    assert stack_of('MindSpeed-LLM Legacy', 'Ascend 910B', flags=flags) == stack


@pytest.mark.parametrize(('words', 'stack'), load_table(__file__, 'test_words_on_captured_graphs_tell_the_stack'))
def test_words_on_captured_graphs_tell_the_stack(words, stack):
    assert stack_of('NeMo 25.09' + choices_in(words), 'H100') == stack


def test_captured_graphs_are_issued_at_once_and_leave_what_they_do_not_hold():
    model = replace(MODEL, experts=Experts(count=4, top_k=2, ffn=128))
    program = lower(replace(WORK, model=model), Plan(), 1)
    host = {
        name: costs(program, on(load_stack(name))).host
        for name in ('megatron-te', 'megatron-te-graphs', 'megatron-te-layer-graphs', 'megatron-te-attention-graphs')
    }
    qkv, experts, head, update = (
        place(program, name) for name in ('layer0.qkv.F', 'layer0.experts.fc1.F', 'head.F', 'layer0.update.U')
    )
    assert all(host[name][qkv] < host['megatron-te'][qkv] / 5 for name in list(host)[1:])
    captured = {
        name: [bool(mine[op] < host['megatron-te'][op]) for op in (experts, head, update)]
        for name, mine in host.items()
    }
    assert captured == {
        'megatron-te': [False] * 3,
        'megatron-te-graphs': [True, True, False],
        'megatron-te-layer-graphs': [True, False, False],
        'megatron-te-attention-graphs': [False] * 3,
    }
    step = {name: step_of(program, on(load_stack(name))) for name in host}
    assert step['megatron-te-graphs'] < step['megatron-te-layer-graphs'] < step['megatron-te']


def test_keys_of_a_case_hold_where_the_schedule_says_what_they_belong_to(put):
    """DeepSpeed gathers weight by weight in stage 3 alone; what a file says itself stays."""
    fusion = {}
    for plan in ('{data: 2, zero: 3}', '{data: 2, zero: 1}', '{data: 2, zero: 3, fusion: stage}'):
        file = put(
            'plan.yaml', SCHEDULE.replace('{CLUSTER}', '{profile: a100-sxm-8, stack: deepspeed}') + f'plan: {plan}\n'
        )
        fusion[plan] = load_schedule(file).plan.fusion
    assert list(fusion.values()) == ['none', 'layer', 'stage']


def test_an_unknown_stack_is_told_with_the_nearest(put, refused):
    with pytest.raises(ProfileError, match='did you mean torch-fsdp'):
        load_stack('torch_fsdp')
    file = put('plan.yaml', SCHEDULE.replace('{CLUSTER}', '{profile: a100-sxm-8, stack: megatron}'))
    assert 'unknown stack' in refused('run', file)


def test_a_wrong_stack_is_told_with_its_line(tmp_path):
    file = tmp_path / 'mine.yaml'
    text = 'format: 1\nname: mine\ndescription: d\nsource: s\nlaunches:\n  norm: {kernels: 1, source: s}\n'
    file.write_text(text)
    with pytest.raises(ProfileError, match=r'mine.yaml:6: launches.norm: no operator and phase'):
        load_stack(str(file))


def test_without_a_stack_nothing_changes():
    program = lower(WORK, Plan(), 1)
    plain = costs(program, on(None))
    assert plain.waits == ()
    assert plain.host_step == 0.0
    # The clock under load holds only where a stack is named.
    sustained = load_profile('a100-sxm-8').device.sustained.value
    fc1 = place(program, 'layer0.fc1.F')
    stacked = costs(program, on(load_stack('eager')))
    assert stacked.compute[fc1] <= plain.compute[fc1] / sustained * (1 + 1e-6)
    assert stacked.compute[fc1] >= plain.compute[fc1]


def test_further_kernels_add_their_time_their_bytes_and_launches():
    """By hand: 3 kernels that move the bytes 2.5 times, of a streaming operator."""
    program = lower(WORK, Plan(), 1)
    bare = load_stack('eager')
    more = replace(bare, launches={'norm.F': Launches(kernels=3, passes=2.5, calls=2, source='test')})
    norm = place(program, 'layer0.norm1.F')
    one, other = (costs(program, on(stack)) for stack in (bare, more))
    device = load_profile('a100-sxm-8').device
    moved = 1.5 * program.op_classes[norm].bytes / (device.memory.bandwidth.value * device.memory.share.value)
    assert other.compute[norm] - one.compute[norm] == pytest.approx(2 * device.kernel.memory.value + moved, rel=1e-4)
    assert other.host[norm] == pytest.approx(5 * one.host[norm], rel=1e-4)
    assert '3 kernels in eager' in other.why[norm]


@pytest.mark.parametrize(('heads', 'batch', 'extra'), [(8, 1, 0), (2, 2, 0), (2, 1, 4), (6, 1, 4), (1, 3, 4)])
def test_a_softmax_is_fused_for_a_multiple_of_four_heads_times_samples(heads, batch, extra):
    """Megatron-LM's fused_softmax.py; else cast, scale, mask, softmax and cast in five kernels, their gradients too."""
    transformer = Transformer(layers=1, hidden=384, heads=heads, vocab=1024, sequence=128, attention='unfused')
    program = lower(Workload(model=transformer, batch=batch, precision='fp16'), Plan(), 1)
    stack = load_stack('megatron-2021')
    found = costs(program, on(stack))
    for phase, kernel, more in (('F', 1, extra), ('I', 4, extra + (extra > 0))):
        launched = kernel + more
        host = stack.host.forward.value if phase == 'F' else stack.host.backward.value
        assert found.host[place(program, f'layer0.attention.scores.{phase}')] == pytest.approx(
            launched * host, rel=1e-6
        )
    # The switch: a stack that says nothing of odd ones.
    launches = {key: one for key, one in stack.launches.items() if not key.endswith('.odd')}
    plain = costs(program, on(replace(stack, launches=launches)))
    forward = place(program, 'layer0.attention.scores.F')
    assert (found.compute[forward] > plain.compute[forward]) == (extra > 0)
    assert ('5 kernels in megatron-2021' in found.why[forward]) == (extra > 0)


@pytest.mark.parametrize(
    ('name', 'profile', 'share'), load_table(__file__, 'test_attention_of_torch_is_that_of_its_year_and_device')
)
def test_attention_of_torch_is_that_of_its_year_and_device(name, profile, share):
    """FlashAttention-2 on Hopper until cuDNN came first; elsewhere the table of the device."""
    program = lower(replace(WORK, model=replace(MODEL, sequence=4096)), Plan(), 1)
    attention = place(program, 'layer0.attention.F')
    bare = replace(load_stack(name), launches={})
    found, plain = (costs(program, on(stack, profile)) for stack in (bare, None))
    if share is None:
        assert 'attention table' in found.why[attention]
        assert found.compute[attention] >= plain.compute[attention]
    else:
        seconds = program.op_classes[attention].flops / (share * load_profile(profile).device.matrix['bf16'].value)
        assert found.compute[attention] == pytest.approx(seconds, rel=0.05)


def test_collectives_of_tensor_ranks_copy_what_they_carry_and_those_of_fsdp_do_not():
    """By hand: what came is read and written once more, at the rate of streaming kernels."""
    device = load_profile('a100-sxm-8').device
    rate = device.memory.bandwidth.value * device.memory.share.value
    for plan, name, times in (
        (Plan(tensor=2, sequence_parallel=True), 'layer0.norm1.whole.all_gather.F', 2),
        (Plan(data=2, zero=3), 'layer0.weights.data.all_gather.F', 0),
    ):
        program = lower(WORK, plan, 2)
        hardware = on(load_stack('torch-eager'), devices=2)
        message = place(program, name)
        copied, plain = (
            costs(program, hardware, Effects(framework=on_)).communication[message][0].alpha for on_ in (True, False)
        )
        assert copied - plain == pytest.approx(times * program.op_classes[message].bytes / rate, rel=1e-6)


def test_blocks_of_a_shared_sequence_are_joined_and_repeated_keys_are_sent():
    """By hand: 50 bytes an element for each of three further ranks; four query heads share a key head."""
    model = replace(MODEL, heads=8, kv_heads=2, sequence=4096, position='rotary')
    program = lower(replace(WORK, model=model), Plan(context=4, context_kind='all_gather'), 4)
    stack, device = load_stack('torch-eager-2025'), load_profile('a100-sxm-8').device
    attention, gather = (place(program, f'layer0.attention{part}.F') for part in ('', '.kv.whole.all_gather'))
    less = {**stack.launches, 'context_attention.F': replace(stack.launches['context_attention.F'], blocks=0)}
    found, plain = (costs(program, on(one, devices=4)) for one in (stack, replace(stack, launches=less)))
    rate = device.memory.bandwidth.value * device.memory.share.value
    joined = 50 * 3 * 8 * 1024 * 512 / rate
    assert found.compute[attention] - plain.compute[attention] == pytest.approx(joined, rel=1e-6)
    alone = costs(program, on(load_stack('eager'), devices=4)).communication[gather][0].transfer
    assert found.communication[gather][0].transfer > 2 * alone


@pytest.mark.parametrize('ranks', [2, 4])
def test_deepspeed_of_2021_hands_over_a_piece_of_each_weight_for_every_rank(ranks):
    program = lower(WORK, Plan(data=ranks, zero=3), ranks)
    gather = next(index for index, op in enumerate(program.op_classes) if 'weights.data.all_gather.F' in op.name)
    stack = load_stack('deepspeed-2021')
    found = costs(program, on(stack, devices=ranks))
    assert found.host[gather] == pytest.approx((1 + ranks) * stack.host.forward.value, rel=1e-6)


@pytest.mark.parametrize('effect', ['framework', 'launch', 'host_waits'])
def test_each_effect_can_be_switched_and_makes_a_step_slower(effect):
    work = replace(WORK, model=replace(MODEL, attention='unfused'))
    program = lower(work, Plan(pipeline=2, micro_batches=8, receive='late', exchange='fused'), 2)
    hardware = on(load_stack('megatron-2021'), devices=2)
    every, without = (costs(program, hardware, Effects(**{effect: on_})) for on_ in (True, False))
    assert simulate(program, every).step > simulate(program, without).step


def test_why_tells_what_the_stack_costs():
    hardware = on(load_stack('megatron-2021'), devices=2)
    programs = [lower(WORK, Plan(data=2, copies=copies), 2) for copies in (2, 1)]
    told = predict(programs[0], programs[1], hardware)
    assert {row.effect for row in told.explanation} >= OF_STACKS
    assert sum(row.seconds for row in told.explanation) == told.baseline.step - told.step
    plain = predict(*programs, on(None, devices=2))
    assert not OF_STACKS & {row.effect for row in plain.explanation}


QUEUED = load_table(__file__, 'QUEUED')


def queued(tmp_path, capsys, queues, *words, code=0):
    file = tmp_path / 'plan.yaml'
    file.write_text(QUEUED.replace('QUEUES', queues))
    assert main(['run', str(file), *words]) == code
    return capsys.readouterr()


def test_one_work_queue_makes_sums_of_gradients_hold_up_the_backward(tmp_path, capsys):
    answer = json.loads(queued(tmp_path, capsys, '1', '--json').out)
    (row,) = [row for row in answer['explanation'] if row['effect'] == 'work queues']
    assert row['seconds'] < 0
    assert answer['step'] > answer['baseline']['step']
    told = ' '.join(queued(tmp_path, capsys, '1', '--full').out.split())
    assert '2 streams of a device share 1 work queue: an op that waits holds up what is issued behind it' in told
    assert 'in a work queue, ' in told


def test_a_device_has_no_more_work_queues_than_its_profile_says(tmp_path, capsys):
    told = queued(tmp_path, capsys, '33', code=2).err
    written = (tmp_path / 'plan.yaml').read_text().splitlines()
    line = next(number for number, text in enumerate(written, 1) if 'work_queues' in text)
    assert f'plan.yaml:{line}: cluster.work_queues: H100 SXM 80 GB has 32, not 33' in told


def test_a_step_of_one_device_is_that_of_its_prediction():
    program = lower(WORK, Plan(), 1)
    hardware = on(load_stack('megatron-2021'))
    assert step_of(program, hardware, steps=3) == predict(program, None, hardware).step


def test_a_stack_whose_host_waits_is_not_measured(put, refused):
    """The executor issues without ever waiting, so it would measure another step than was predicted."""
    path = put('plan.yaml', SCHEDULE.replace('{CLUSTER}', '{profile: cpu-gloo, devices: 2, stack: megatron-2021}'))
    told = refused('measure', path, '--compute', 'emulated')
    assert 'the host of megatron-2021 waits for the device (receive, pass, norm, step)' in told
    assert 'leave the stack out' in told
    # Nor is a baseline that has such a stack, which would be run without it.
    path.write_text(SCHEDULE.replace('{CLUSTER}', '{profile: cpu-gloo, devices: 2}'))
    assert 'the host of megatron-2021 waits for the device' in refused(
        'measure', path, '--compute', 'emulated', '--set', 'against={cluster.stack: megatron-2021}'
    )


def test_a_stack_that_was_edited_is_read_again(tmp_path):
    """A notebook that goes on answers with the file as it is: also with one that the stack extends."""
    base, mine = tmp_path / 'base.yaml', tmp_path / 'mine.yaml'
    base.write_text('{format: 1, name: base, description: it, source: here, schedule: {plan.prefetch: 1}}')
    mine.write_text(f'{{format: 1, name: mine, description: it, source: here, extends: {base}}}')
    first = load_stack(str(mine))
    assert first.schedule == {'plan.prefetch': 1}
    assert load_stack(str(mine)) is first
    base.write_text(base.read_text().replace('prefetch: 1', 'prefetch: 2'))
    assert load_stack(str(mine)).schedule == {'plan.prefetch': 2}
    schedule = f"""
simpar: 1
cluster: {{profile: h100-sxm-8, stack: {mine}}}
workload: {{transformer: {{layers: 2, hidden: 64, heads: 4, vocab: 64, sequence: 32}}, batch: 8}}
"""
    assert load_schedule(schedule).plan.prefetch == 2
    base.write_text(base.read_text().replace('prefetch: 2', 'prefetch: 3'))
    assert load_schedule(schedule).plan.prefetch == 3
    mine.write_text(mine.read_text().replace('name: mine', 'name: yours'))
    assert load_stack(str(mine)).name == 'yours'


# Tables of docs/proofs/stacks.md say what the code says; `python -m tests.stack_table` writes them


SMALL = ('llama_degrees', 'mixtral_8x7b_h100', 'multi_copy', 'tiles', 'transformer_h100', 'transformer_910b_7b')
"""Examples that take less than a second."""


@pytest.mark.parametrize(
    ('first', 'made'),
    [
        (tables_of.RULE, tables_of.rule_table),
        (tables_of.FILLED, tables_of.filled_table),
        (tables_of.PUBLISHED, tables_of.published_table),
        (tables_of.WHICH, tables_of.which_table),
    ],
)
def test_a_table_is_what_it_is_made_from(first, made):
    assert tables_of.held(first) == list(made())


@pytest.mark.parametrize('name', SMALL)
def test_a_row_is_what_the_example_answers(name):
    assert tables_of.example_row(name) in tables_of.held(tables_of.EXAMPLE)


def test_every_example_under_a_framework_has_a_row():
    assert [line.split('`')[1] for line in tables_of.held(tables_of.EXAMPLE)[2:]] == tables_of.example_names()


def test_who_is_much_slower_than_the_device_alone_has_its_reason():
    for line in tables_of.held(tables_of.EXAMPLE)[2:]:
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        assert float(cells[4]) <= tables_of.SLOWER or cells[-1], line


# A stack whose framework does more with a plan than the schedule says: notes, and one exchange between two stages


SCRIPT = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --bf16 \\
  --seq-length 1024 --vocab-size 1024 --micro-batch-size 2 --global-batch-size 64 --pipeline-model-parallel-size 4
"""


@pytest.fixture
def answer(tmp_path, capsys):
    """The answer to an imported script, with further words of the command line."""
    script, file = tmp_path / 'train.sh', tmp_path / 'plan.yaml'
    script.write_text(SCRIPT)
    text = schedule_text(imported(script, given={}), script)
    # The plan alone, on the stack that a test names.
    file.write_text(''.join(line for line in text.splitlines(keepends=True) if '  stack: ' not in line))

    def told(*words):
        asked = [word for one in words for word in ('--set', one)]
        assert main(['run', str(file), '--json', *asked]) == 0
        return json.loads(capsys.readouterr().out)

    return told


def test_an_imported_pipeline_idles_as_its_stages_do_in_the_textbook(answer):
    """One exchange has the receives of the next computation alone: no stage waits for a forward that it needs later."""
    alone = 'cluster.stack=none'
    found = answer(alone)
    stages, micro_batches = 4, 64 // 2 // 2
    textbook = (stages - 1) / (micro_batches + stages - 1)
    assert found['steady']['bubble'] / found['step'] == pytest.approx(textbook, abs=0.06)
    assert answer(alone, 'plan.receive=late')['step'] == found['step']


def test_what_the_file_has_otherwise_than_its_framework_is_told(answer):
    def told(*words):
        return [line for line in answer('cluster.stack=megatron-te', *words)['beside_stack'] if 'by default' in line]

    assert told() == []
    (line,) = told('plan.exchange=separate', 'plan.receive=early')
    assert line == (
        'Your schedule is not as megatron-te is by default: '
        'plan.exchange is separate, not fused; plan.receive is early, not late.'
    )
    assert told('plan.exchange=separate', 'plan.pipeline=1', 'plan.micro_batches=8', 'plan.order=1f1b') == []


@pytest.mark.parametrize(('value', 'queues'), [('1', 1), ('8', 8), ('0', None), ('33', None), ('$UNSET', None)])
def test_queues_of_the_environment_are_those_of_the_schedule(put, value, queues):
    script = put('train.sh', SCRIPT.replace('CONNECTIONS=1', f'CONNECTIONS={value}'))
    found = imported(script, given={})
    assert found.values.get('cluster.work_queues') == queues
    (line,) = [line for line in found.lines if line.name == 'CUDA_DEVICE_MAX_CONNECTIONS']
    assert line.keys == (('cluster.work_queues',) if queues else ())
    elsewhere = imported(script, given={}, profile='ascend910b-8')
    assert 'cluster.work_queues' not in elsewhere.values


# Every stack on pipelines: that its host waits, and has few work queues, never brings ranks into lockstep


DEEP = Transformer(layers=16, hidden=4096, heads=32, vocab=4096, sequence=4096)
PROFILE = load_profile('h100-sxm-8')
MOST = 1.6
"""Times as long as the same framework takes whose host never waits, on as many work queues as the device has."""


def steps(name: str, plan: Plan, **without: None) -> tuple[float, float]:
    """Seconds of a step on a stack as it is, and without some of its parts."""
    work = Workload(model=DEEP, batch=plan.micro_batches, precision='bf16', optimizer=Adam())
    stack = load_stack(name)
    program, devices = lower(work, plan, plan.pipeline), min(plan.pipeline, PROFILE.devices)
    first, other = (
        step_of(program, cluster(PROFILE, plan.pipeline // devices, devices=devices, stack=one))
        for one in (stack, replace(stack, **without))
    )
    return first, other


def plan_of(pipeline: int, chunks: int, **keys: str) -> Plan:
    order = {'order': 'interleaved-1f1b', 'chunks': chunks} if chunks > 1 else {}
    return Plan(pipeline=pipeline, micro_batches=16, fusion='stage', **order, **keys)


def host_of(name: str) -> tuple[object, ...]:
    """All of a stack that its lockstep depends on."""
    stack = load_stack(name)
    exchange = [stack.schedule.get(key) for key in ('plan.exchange', 'plan.receive')]
    return repr(stack.waits), stack.work_queues, repr(stack.host), *exchange


OWN = [*{host_of(name): name for name in reversed(stack_names()) if load_stack(name).waits is not None}.values()]
"""Stacks whose host waits anywhere; of those whose hosts are alike one."""


@pytest.mark.parametrize(
    ('name', 'pipeline', 'chunks'), some([(name, *split) for name in OWN for split in ((4, 2), (1, 1), (4, 1))], 2)
)
def test_no_stack_is_brought_into_lockstep_by_what_its_host_waits_for(name, pipeline, chunks):
    """With the exchange that the stack has, and with messages that are issued one by one."""
    own = {
        key.removeprefix('plan.'): value
        for key, value in load_stack(name).schedule.items()
        if key in ('plan.exchange', 'plan.receive')
    }
    late = [{'exchange': 'separate', 'receive': 'late'}, {'exchange': 'fused', 'receive': 'late'}]
    # Timers of 2021 synchronise about each pass, with all messages on their way: nothing goes on beside computation.
    timed = 'pass' in load_stack(name).waits.at
    for keys in (own, *([] if timed else late)):
        stacked, free = steps(name, plan_of(pipeline, chunks, **keys), waits=None, work_queues=None)
        assert stacked <= MOST * free, keys
    if not timed:
        # Receives that are posted early hold up what one work queue has behind them, whoever waits.
        stacked, free = steps(name, plan_of(pipeline, chunks, exchange='separate', receive='early'), waits=None)
        assert stacked <= MOST * free


def test_a_token_goes_once_to_a_node_where_the_dispatcher_does_so():
    """By hand: 8 of 128 experts over 4 nodes lie on 4 (1 − 0.75⁸) of them, of which 3 in 4 are others."""
    experts = Experts(count=128, top_k=8, ffn=128)
    work = replace(WORK, model=replace(MODEL, experts=experts, sequence=4096), batch=32)
    program = lower(work, Plan(data=32, expert=32), 32)
    message = place(program, 'layer0.dispatch.slice.all_to_all.F')
    flex, plain = (
        costs(program, cluster(load_profile('h100-sxm-8'), nodes=4, devices=8, stack=load_stack(name)))
        for name in ('megatron-te-flex', 'megatron-te')
    )
    network = load_profile('h100-sxm-8').links[-1]
    tokens = 4096 * 512 * 2
    crossing = tokens * 4 * (1 - 0.75**8) * 3 / 4 / network.rate
    assert flex.communication[message][0].transfer == pytest.approx(crossing, rel=1e-6)
    assert plain.communication[message][0].transfer > 2 * crossing
    # Groups of experts that lie whole on nodes limit how many of these a token reaches.
    limited = replace(experts, groups=4, group_top_k=2)
    program = lower(replace(work, model=replace(work.model, experts=limited)), Plan(data=32, expert=32), 32)
    hardware = cluster(load_profile('h100-sxm-8'), nodes=4, devices=8, stack=load_stack('megatron-te-flex'))
    found = costs(program, hardware).communication[place(program, 'layer0.dispatch.slice.all_to_all.F')][0]
    assert found.transfer == pytest.approx(tokens * 2 * 3 / 4 / network.rate, rel=1e-6)


@pytest.mark.parametrize(('name', 'wait'), [('megatron-2021', 'pass'), ('zero-bubble', 'batch')])
def test_a_wait_of_a_stack_can_be_left_out_alone_and_makes_a_step_slower(name, wait):
    work = replace(WORK, model=replace(MODEL, attention='unfused'))
    program = lower(work, Plan(micro_batches=4), 1)
    stack = load_stack(name)
    less = replace(stack, waits=replace(stack.waits, at=tuple(one for one in stack.waits.at if one != wait)))
    every, without = (simulate(program, costs(program, on(one))).step for one in (stack, less))
    assert every > without


@pytest.mark.parametrize(
    'keys', [{'exchange': 'separate', 'receive': 'late'}, {'exchange': 'fused', 'receive': 'late'}]
)
def test_interleaved_stages_gain_with_megatron(keys):
    plain, _ = steps('megatron-te', plan_of(4, 1, exchange='fused', receive='late'))
    interleaved, _ = steps('megatron-te', plan_of(4, 2, **keys))
    assert interleaved < plain
