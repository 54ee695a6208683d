"""Expansion: what collectives take of a device by the mode of the library, and what that makes of a gain."""

import json
from dataclasses import replace

import pytest
from every import some
from tables import load_table

from simpar import Plan, Transformer, Workload
from simpar.cli import main
from simpar.cost.compute import MATRIX
from simpar.cost.price import Pricer, cores_taken, speeds_beside
from simpar.errors import ProfileError
from simpar.hardware import ExpansionMode
from simpar.hardware.profile import ShareFigure
from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.profiles import cluster, load_profile, load_stack, profile_names

WORK = Workload(model=Transformer(layers=2, hidden=512, heads=8, vocab=1024, sequence=128), batch=8, precision='bf16')
SUMS = Plan(tensor=8, copies=2)

PLAN = load_table(__file__, 'PLAN')


def ran(tmp_path, capsys, mode, *words, profile='ascend910b-8', code=0, plan=PLAN):
    file = tmp_path / 'plan.yaml'
    line = '' if mode else '  expansion_mode: MODE\n'
    file.write_text(plan.replace('PROFILE', profile).replace(line, '').replace('MODE', mode))
    assert main(['run', str(file), *words]) == code
    return capsys.readouterr()


def on(mode='', profile='ascend910b-8', **changes):
    return cluster(load_profile(profile), expansion_mode=mode, **changes)


def test_copies_gain_less_where_sums_take_the_vector_cores_of_what_runs_beside_them(tmp_path, capsys):
    default, aiv = (json.loads(ran(tmp_path, capsys, mode, '--json').out) for mode in ('', 'aiv'))
    assert 0 < aiv['gain'] < default['gain']
    slowed = [{row['effect']: row['seconds'] for row in one['explanation']} for one in (default, aiv)]
    assert slowed[1]['slow-down under overlap'] < slowed[0]['slow-down under overlap'] < 0
    # What does not run at once is as it was.
    for effect in ('ideal overlap', 'small operators'):
        assert slowed[1][effect] == slowed[0][effect]


@pytest.mark.parametrize('name', some(profile_names()))
def test_in_the_default_mode_kernels_run_as_slow_down_says_to_the_bit(name):
    profile = load_profile(name)
    devices = min(8, profile.devices)
    program = lower(replace(WORK, precision='fp32'), Plan(tensor=devices, copies=2), devices)
    costs = Pricer(program, cluster(profile, devices=devices)).costs()
    slow_down = profile.slow_down
    for number, op in enumerate(program.op_classes):
        computes = op.kind == 'compute'
        kernel = slow_down.matrix if op.operator in MATRIX else slow_down.memory
        assert costs.beside_communication[number] == (kernel.value if computes else 1.0)
        assert costs.beside_compute[number] == (1.0 if computes else slow_down.collective.value)


def test_vector_kernels_have_the_cores_that_are_left_and_products_keep_their_speed():
    program = lower(WORK, SUMS, 8)
    default, aiv = (Pricer(program, on(mode)).costs().beside_communication for mode in ('', 'aiv'))
    for number, op in enumerate(program.op_classes):
        if op.kind == 'compute' and op.operator not in MATRIX:
            assert (default[number], aiv[number]) == (0.85, 1 - 24 / 48)
        else:
            assert aiv[number] == default[number]


@pytest.mark.parametrize(
    ('plan', 'cores'),
    [
        # Ulysses exchanges heads, sums of gradients are left out by a forward; the operator that takes most counts.
        (Plan(context=8, context_kind='all_to_all'), 16),
        (Plan(tensor=8), 24),
        (Plan(pipeline=2, stages=(1, 1), micro_batches=2), 0),
    ],
)
def test_of_the_operators_of_a_program_the_one_that_takes_most_counts(plan, cores):
    program = lower(replace(WORK, phase='forward'), plan, plan.context * plan.tensor * plan.pipeline)
    assert cores_taken(on('aiv'), program) == cores
    assert cores_taken(on('host'), program) == 0


@pytest.mark.parametrize(('ranks', 'cores'), [(2, 2), (40, 2), (41, 3), (768, 39), (1200, 60)])
def test_on_an_a3_large_groups_take_more_cores(ranks, cores):
    """By hand: max(2, ceil(ranks / 20))."""
    assert on('aiv', 'ascend910c-16').taken.cores_of('all_reduce', ranks) == cores
    assert on('aiv', 'ascend910c-16').taken.cores_of('send', ranks) == 0


def test_what_is_scarcer_counts_cores_or_bandwidth():
    program = lower(WORK, SUMS, 8)
    profile = load_profile('ascend910b-8')

    def speed(share, mode):
        figure = ShareFigure(value=share, source='test', grade='estimate')
        modes = {name: replace(one, bandwidth=figure) for name, one in profile.expansion.modes.items()}
        made = replace(profile, expansion=replace(profile.expansion, modes=modes))
        return speeds_beside(cluster(made, expansion_mode=mode), program)[1]

    assert speed(0.25, 'ai_cpu') == 0.75
    assert speed(0.25, 'aiv') == 0.5
    assert speed(0.75, 'aiv') == 0.25


def test_a_stack_may_ask_for_a_mode_unless_the_user_does(tmp_path):
    file = tmp_path / 'mine.yaml'
    mode = 'expansion_mode: {mode: aiv, source: test}'
    file.write_text(f'format: 1\nname: mine\nextends: eager\ndescription: d\nsource: s\n{mode}\n')
    stack = load_stack(str(file))
    assert stack.expansion_mode == ExpansionMode(mode='aiv', source='test')
    assert on(stack=stack).mode == 'aiv'
    assert on('ai_cpu', stack=stack).mode == 'ai_cpu'
    assert on().mode == 'host'
    program = lower(WORK, SUMS, 8)
    assert cores_taken(on(stack=stack), program) == 24
    with pytest.raises(ProfileError, match='a100-sxm-8 has no modes'):
        on(profile='a100-sxm-8', stack=stack)


@pytest.mark.parametrize(
    ('mode', 'profile', 'words'), load_table(__file__, 'test_a_mode_that_a_profile_has_not_is_told_at_its_line')
)
def test_a_mode_that_a_profile_has_not_is_told_at_its_line(tmp_path, capsys, mode, profile, words):
    told = ran(tmp_path, capsys, mode, profile=profile, code=2).err
    assert 'plan.yaml:5: cluster.expansion_mode: ' in told
    assert words in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(('mode', 'profile', 'why'), load_table(__file__, 'test_a_mode_that_changes_nothing_is_told'))
def test_a_mode_that_changes_nothing_is_told(tmp_path, capsys, mode, profile, why):
    told = ' '.join(ran(tmp_path, capsys, mode, '--full', profile=profile).out.split())
    assert f'without effect here: cluster.expansion_mode ({mode}): ' in told
    assert why in told


def test_collectives_of_few_multiprocessors_leave_products_the_rest():
    """An H100 has 132: of 16 blocks over eight ranks two are each one's; memory has 3.35 TB/s, a link 450 · 0.824."""
    program = lower(WORK, SUMS, 8)
    matrix, others, collective = speeds_beside(on('symmetric', 'h100-sxm-8'), program)
    assert matrix == pytest.approx(1 - 2 / 132)
    assert others == pytest.approx(1 - 2 * 450 * 0.824 / 3350)
    assert collective == speeds_beside(on('', 'h100-sxm-8'), program)[2]


def kinds_beside(cluster, program):
    """By operator of what communicates, the speed of a product beside it, and whether it holds units as it waits."""
    costs = Pricer(program, cluster).costs()
    product = next(index for index, op in enumerate(program.op_classes) if op.operator in MATRIX)
    return {
        op.name if 'dispatch' in op.name else op.operator: (costs.speeds[kind, product], costs.waiting[kind])
        for op, kind in zip(program.op_classes, costs.taking.tolist(), strict=True)
        if op.kind == 'collective'
    }


def test_copy_engines_gather_without_multiprocessors_and_sums_go_by_the_switch():
    """ZeRO-3 over eight: of 132 multiprocessors a sum takes ⌈16 / 8⌉."""
    found = kinds_beside(on('copy_engine', 'h100-sxm-8'), lower(WORK, Plan(data=8, zero=3), 8))
    assert found == {'all_gather': (1.0, False), 'reduce_scatter': (pytest.approx(1 - 2 / 132), True)}


def test_products_beside_a_dispatch_pay_for_it_and_beside_sums_for_these():
    experts = Experts(count=8, top_k=2, ffn=512)
    work = replace(WORK, model=replace(WORK.model, experts=experts, bias=(), activation='swiglu'))
    of = on(profile='h100-sxm-8', stack=load_stack('megatron-te-flex'))
    found = kinds_beside(of, lower(work, Plan(data=8, expert=8), 8))
    dispatched = {speed for name, speed in found.items() if 'dispatch' in name}
    assert (dispatched, found['all_reduce']) == ({(0.8, True)}, (of.profile.slow_down.matrix.value, False))


@pytest.mark.parametrize('waiting', [False, True, 'collectives', 'messages'])
def test_collectives_and_messages_that_wait_may_differ(waiting):
    profile = load_profile('h100-sxm-8')
    of = cluster(replace(profile, slow_down=replace(profile.slow_down, waiting=waiting)))
    program = lower(WORK, Plan(tensor=2, pipeline=2, micro_batches=2, data=2), 8)
    costs = Pricer(program, of).costs()
    found = {op.kind: costs.waiting[kind] for op, kind in zip(program.op_classes, costs.taking.tolist(), strict=True)}
    assert (found['collective'], found['send']) == (waiting in (True, 'collectives'), waiting in (True, 'messages'))
    assert found['recv'] == found['send']


def test_sums_between_nodes_take_what_slow_down_says():
    program = lower(replace(WORK, batch=16), Plan(data=16), 16)
    wide = cluster(load_profile('h100-sxm-8'), 2, expansion_mode='symmetric')
    assert speeds_beside(wide, program) == speeds_beside(replace(wide, expansion_mode=''), program)


def test_kernels_over_symmetric_memory_slow_products_less_and_a_step_is_over_sooner(tmp_path, capsys):
    large = PLAN.replace('hidden: 2048, heads: 16', 'hidden: 16384, heads: 128').replace('1024}', '4096}')
    answers = [
        ran(tmp_path, capsys, mode, '--json', profile='h100-sxm-8', plan=large).out for mode in ('', 'symmetric')
    ]
    usual, few = (json.loads(answer) for answer in answers)
    slowed = [{row['effect']: row['seconds'] for row in one['explanation']} for one in (usual, few)]
    assert slowed[0]['slow-down under overlap'] < slowed[1]['slow-down under overlap'] < 0
    assert few['step'] < usual['step']
    assert any('products run at 0.98 beside' in note for note in few['notes'])
