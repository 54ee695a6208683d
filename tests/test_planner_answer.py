"""What the planner answers: classes within noise, why the runner-up loses, what is worse, and numbers of devices."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import simpar
from simpar import Plan, case_of, load_schedule
from simpar.cli import main
from simpar.planner import load_planning
from simpar.planner.answer import measured, robust, with_noise, worse
from simpar.planner.plan import Size, Sizes
from simpar.planner.space import KEYS
from simpar.sweep.answer import predicted
from simpar.throughput import Budget
from tests import planner_cases as spaces
from tests.planner_cases import FILE


@pytest.fixture(scope='module')
def planned():
    """The same space as of the planner's own tests, answered from Python."""
    return spaces.planned()


def test_a_plan_is_found_from_python_and_is_a_schedule_like_any_other(planned):
    from simpar.plans import Plan

    assert simpar.Plan is Plan
    assert planned.gap == 0
    # What it chose is a schedule like any other.
    assert case_of(planned.schedule).predict().step == planned.step


def test_plans_within_noise_are_one_class_and_the_simplest_of_it_is_chosen(planned):
    ranking = planned.answer.ranking
    wide = with_noise(planned.answer, ranking[-1].step / ranking[0].step - 1)
    assert wide.alike == ranking
    assert wide.runner_up is None
    assert wide.choice.parts == min(one.parts for one in ranking)
    narrow = with_noise(planned.answer, 0.0)
    assert narrow.choice is narrow.best
    assert narrow.runner_up.step > narrow.best.step


def test_noise_is_what_measured_pairs_of_the_stack_and_device_spread():
    document = yaml.safe_load(FILE)
    assert measured(load_schedule(document)) is None
    document['cluster'] = {'profile': 'a100-sxm-8', 'stack': 'torch-fsdp'}
    document['plan'] = {'data': 8}
    schedule = load_schedule(document)
    share, words = measured(schedule)
    prediction = case_of(replace(schedule, against={'plan.zero': 1})).predict()
    # The noise of a gain, as `simpar run` tells it of two plans there.
    assert share == pytest.approx(prediction.gain_noise)
    assert 'A100' in words


def test_why_the_runner_up_loses_adds_up_to_what_it_loses(planned):
    loses = planned.answer.runner_up.step - planned.choice.step
    assert sum(row.seconds for row in planned.why.explanation) == loses
    assert planned.why.baseline.step == planned.answer.runner_up.step
    assert f'{loses / planned.choice.step * 100:.1f} % slower' in str(planned)


def test_the_choice_is_tried_with_slower_links_a_slow_rank_and_a_fuller_expert(planned):
    found = planned.robustness
    assert [trial.name for trial in found.trials] == ['as it is', 'nvlink at half its rate', 'rank 0 1.25 × slower']
    again = yaml.safe_load(FILE)
    again['plan'] = {key.removeprefix('plan.'): value for key, value in planned.choice.settings.items()}
    del again['planner']
    for trial, worse_cluster in zip(found.trials[1:], ({'links': {'nvlink': 0.5}}, {'slow': {0: 0.8}}), strict=True):
        again['cluster'] = {'profile': 'a100-sxm-8', 'stack': 'none', **worse_cluster}
        assert trial.steps[0] == predicted(load_schedule(again)).figures.step
    mixture = {**again, 'cluster': {'profile': 'a100-sxm-8', 'stack': 'none'}, 'plan': {'expert': 8}}
    mixture['workload']['transformer'] |= {'experts': {'count': 8, 'top_k': 2, 'ffn': 512}, 'bias': []}
    schedule = load_schedule(mixture)
    name, fuller = list(worse(schedule))[-1]
    assert name == 'the fullest expert with 1.5 × the mean'
    assert predicted(fuller).figures.step > predicted(schedule).figures.step


def test_a_choice_that_another_plan_overtakes_says_so(planned):
    # A cluster with links of a thousandth: what sends least wins there, whatever the choice here.
    ranking = planned.answer.ranking
    slow = robust(replace(planned.answer, ranking=(ranking[-1], *ranking[:-1]), margin=0.0))
    assert not any(slow.holds(trial) for trial in slow.trials)


def test_the_command_plans_on_several_numbers_of_devices(tmp_path, put, json_of):
    file = put('plan.yaml', FILE)
    picture = tmp_path / 'sizes.png'
    flags = ['--devices', '4', '--train', 'tokens=1B', '--train', 'price=2', '--plot', str(picture)]
    told = json_of('plan', file, '--jobs', '1', *flags)
    for one in told['sizes']:
        tokens = 16 * 512
        hours = one['step'] * 1e9 / tokens * one['devices'] / 3600
        assert one['cost'] == pytest.approx(2 * hours)
    assert Budget(tokens=1e9, price=2).price == told['sizes'][0]['training']['price']
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_a_notebook_shows_table_front_and_why(planned):
    shown = planned._repr_html_()
    for text in ('<table>', 'data:image/png', 'ideal overlap', 'nvlink at half its rate', 'none of 128 plans'):
        assert text in shown
    assert planned.plot()._repr_png_().startswith(b'\x89PNG')
    frame = pytest.importorskip('pandas') and planned.to_dataframe()
    assert list(frame['step']) == [one.step for one in planned.answer.ranking]
    assert frame['choice'].sum() == 1


def test_the_executor_trains_the_winner_that_was_saved(tmp_path):
    from executor.numerics import check

    file, save = tmp_path / 'plan.yaml', tmp_path / 'best.yaml'
    document = yaml.safe_load(FILE)
    document['cluster'] = {'profile': 'a100-sxm-8', 'devices': 4}
    document['workload'] |= {
        'transformer': {'layers': 4, 'hidden': 16, 'heads': 2, 'vocab': 32, 'sequence': 8},
        'precision': 'fp64',
    }
    # More than one rank in every degree, so that there is something to train beside data parallelism.
    document['planner']['keys'] |= {'plan.tensor': [2], 'plan.pipeline': [2], 'plan.copies': [2]}
    file.write_text(yaml.safe_dump(document))
    assert main(['plan', str(file), '--jobs', '1', '--brief', '--save', str(save)]) == 0
    plan = yaml.safe_load(save.read_text())['plan']
    assert (plan['tensor'], plan['pipeline'], plan['copies']) == (2, 2, 2)
    case = simpar.load_case(save)
    # One step in one process; raises where a gradient is not that of the model that nothing splits.
    assert check(case.program, case.workload, case.plan, steps=1).deviations


OWN = """
# how we train
simpar: 1
cluster: {profile: a100-sxm-8, stack: none}  # eight
workload:
  transformer: {layers: 2, hidden: 1024, heads: 8, vocab: 8192, sequence: 512}
  batch: 16
  precision: bf16
  optimizer: adam
planner:
  keys: {plan.tensor: [1, 2], plan.micro_batches: [1, 2, 4], plan.zero: [0, 1], KEYS}
# our plan
plan: {data: 4, tensor: 2, zero: 1, micro_batches: 4}  # so far
against: {plan.zero: 0}
""".replace('KEYS', ', '.join(f'plan.{key}: fixed' for key in KEYS if key not in ('tensor', 'micro_batches', 'zero')))


@pytest.fixture
def own(put):
    return put('own.yaml', OWN)


def test_the_plan_of_the_file_is_the_first_answer_and_what_is_gained_over_it_is_told(own, capsys):
    told = []
    answer = load_planning(own).search(jobs=1, tell=told.append)
    mine = simpar.load_case(own).predict()
    # Before anything else is known.
    assert [one.step for one in told[0].ranking] == [mine.step]
    assert answer.own.ranked.step == mine.step
    assert answer.choice.step < mine.step
    assert main(['plan', str(own), '--jobs', '1', '--brief']) == 0
    screen = capsys.readouterr()
    head = screen.out.splitlines()[2]
    assert f'{(mine.step / answer.choice.step - 1) * 100:.1f} % faster' in head
    assert "than the file's own plan: data 4, tensor 2, micro-batches 4, zero 1" in head
    assert "The file's own plan takes" in screen.err


def test_a_plan_of_the_file_outside_of_the_space_is_the_first_answer_too():
    document = yaml.safe_load(OWN)
    document['planner']['keys']['plan.fusion'] = 'free'
    document['plan']['fusion'] = '3 MB'
    told = []
    load_planning(document).search(jobs=1, seconds=0.0, tell=told.append)
    assert [one.step for one in told[0].ranking] == [simpar.load_case(document).predict().step]


def test_no_plan_is_answered_that_is_slower_than_the_files_own_however_wide_noise_is(own):
    best = load_planning(own).search(jobs=1)
    # The fastest as the file's own, and noise that all plans are within.
    plan = {'data': 0, **{key.removeprefix('plan.'): value for key, value in best.best.settings.items()}}
    document = {**yaml.safe_load(OWN), 'plan': plan}
    document['planner']['margin'] = 0.9
    answer = load_planning(document).search(jobs=1)
    assert answer.choice.step <= answer.own.ranked.step == best.best.step
    assert len(answer.alike) == len(answer.ranking) > 1


def test_a_plan_of_the_file_that_may_not_be_chosen_is_told_and_not_chosen(own):
    document = yaml.safe_load(OWN)
    document['planner']['keys']['plan.tensor'] = [4]
    answer = load_planning(document).search(jobs=1)
    assert not answer.own.allowed
    assert answer.own.ranked not in answer.ranking
    assert {one.settings['plan.tensor'] for one in answer.ranking} == {4}


def test_a_plan_that_was_saved_is_the_users_file_with_another_plan_and_takes_as_long(own, tmp_path, json_of):
    save = tmp_path / 'best.yaml'
    choice = json_of('plan', own, '--jobs', '1', '--save', save)['choice']
    mine, others = save.read_text().splitlines(), OWN.splitlines()
    assert [line for line in mine if not line.startswith('plan:')] == [
        line for line in others if not line.startswith(('plan:', 'planner:', '  keys:'))
    ]
    (plan,) = [yaml.safe_load(line)['plan'] for line in mine if line.startswith('plan:')]
    assert set(plan) <= {'data', *(key.removeprefix('plan.') for key in choice['settings'])}
    assert all(plan[key] != getattr(Plan(), key) for key in plan if key != 'data')
    ran = json_of('run', save)
    assert ran['step'] == choice['step']
    assert ran['baseline'] is not None


def test_sizes_that_are_slower_and_dearer_are_not_on_the_front(planned):
    def size(devices, step):
        best = replace(planned.answer.ranking[0], step=step)
        return Size(devices=devices, answer=replace(planned.answer, ranking=(best,), margin=0.0))

    # Eight devices twice as fast as four cost the same; sixteen are slower than eight.
    found = Sizes(found=(size(4, 2.0), size(8, 0.9), size(16, 1.0)), budget=None)
    assert [one.devices for one in found.front] == [8]
    assert [one.cost * 3600 for one in found.found] == pytest.approx([8.0, 7.2, 16.0])


@pytest.mark.parametrize(
    ('flags', 'told'),
    [
        (['--devices', '8,12'], '12 devices are no whole nodes of 8; write 16'),
        (['--devices', '8', '--save', 'best.yaml'], 'each number of devices has a plan of its own'),
        (['--train', 'tokens=1B'], 'changes nothing without --devices'),
        (['--plot', 'front.txt'], 'not a kind of picture'),
    ],
)
def test_flags_that_do_not_go_together_are_told(put, refused, flags, told):
    file = put('plan.yaml', FILE)
    assert told in ' '.join(refused('plan', file, *flags).split())


def test_a_plan_of_the_file_that_the_search_does_not_know_is_still_no_worse_than_the_answer(own):
    # An order that is found by resolving, whose plans nobody bounds.
    document = yaml.safe_load(OWN)
    document['plan'] = {'pipeline': 2, 'data': 4, 'micro_batches': 4, 'order': 'zb-1p'}
    document['planner'] = {'keys': {f'plan.{key}': 'fixed' for key in KEYS if key not in ('order', 'recompute')}}
    document['planner']['keys'] |= {'plan.recompute': ['none', 'full']}
    answer = load_planning(document).search(jobs=1)
    assert answer.own.fits
    assert answer.own.ranked in answer.ranking
    assert answer.choice.step <= answer.own.ranked.step


def test_a_plan_that_was_saved_with_settings_of_the_command_has_them(own, tmp_path, json_of, printed):
    save = tmp_path / 'best.yaml'
    flags = ['--jobs', '1', '--json', '--set', 'workload.batch=32', '--save', str(save)]
    step = json.loads(printed('plan', own, *flags))['choice']['step']
    document = yaml.safe_load(save.read_text())
    assert document['workload']['batch'] == 32
    assert document['against'] == {'plan.zero': 0}
    assert list(document) == ['simpar', 'cluster', 'workload', 'plan', 'against']
    assert json_of('run', save)['step'] == step


def test_a_plan_that_is_saved_elsewhere_still_finds_the_users_own_stack(tmp_path, json_of, monkeypatch):
    # Paths that are typed from where the user is, not whole ones.
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'slow.yaml').write_text(
        'format: 1\nname: slow\nextends: eager\ndescription: d\nsource: s\nschedule:\n  workload.clip_norm: 2.0\n'
    )
    file, save = Path('own.yaml'), Path('plans', 'best.yaml')
    file.write_text(OWN.replace('stack: none', 'stack: ./slow.yaml'))
    choice = json_of('plan', file, '--jobs', '1', '--save', save)['choice']
    ran = json_of('run', save)
    assert (ran['step'], ran['stack']) == (choice['step'], 'slow')
