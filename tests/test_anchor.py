"""`simpar run --anchor` and `--decides`: what one node tells of numbers, what it does not, what could turn a gain."""

import json
import math

import pytest
from every import some
from tables import load_table

import simpar
from simpar.cli import main
from simpar.numbers import RANGE, numbers_of, steps_of
from simpar.validate.anchor import BOUNDS, anchored

TWO_NODES = load_table(__file__, 'TWO_NODES')


def schedule(nodes):
    return TWO_NODES.replace('NODES', str(nodes)).replace('BATCH', str(8 * nodes))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """One node, whose products take 1.3 times as long as predicted, and that step as an anchor of two."""
    path = tmp_path_factory.mktemp('anchor')
    for nodes in (1, 2):
        (path / f'{nodes}.yaml').write_text(schedule(nodes))
    case = simpar.load_case(path / '1.yaml')
    seconds = steps_of(case.program, case.cluster)({'products': 1.3})
    (path / 'anchor.yaml').write_text(f'schedule: 1.yaml\nstep: {seconds * 1e3:.6f} ms\n')
    return path


def test_an_anchor_moves_the_larger_run_towards_the_truth_narrows_its_interval_and_says_what_it_cannot(folder):
    case = simpar.load_case(folder / '2.yaml')
    truth = steps_of(case.program, case.cluster)({'products': 1.3})
    plain = case.predict()
    moved, told = anchored(case, folder / 'anchor.yaml')
    answer = moved.predict()
    assert abs(math.log(answer.step / truth)) < 0.5 * abs(math.log(plain.step / truth))
    assert answer.interval.low < truth < answer.interval.high
    assert answer.interval.high / answer.interval.low < plain.interval.high / plain.interval.low
    assert next(one.factor for one in told.factors if one.number.name == 'products') > 1.05
    # The network between nodes moves the step of two, and one node says nothing of it.
    told_of = {one.number.name: one.is_told for one in told.factors}
    assert told_of['products']
    assert not told_of['infiniband']


def test_the_command_tells_what_was_anchored_and_what_decides(folder, json_of, printed):
    arguments = ['run', str(folder / '2.yaml'), '--anchor', str(folder / 'anchor.yaml'), '--decides']
    answer = json_of(*arguments)
    assert answer['anchor']['known'] < 0.2
    assert 0 < len(answer['decides']) <= 3
    screen = printed(*arguments)
    assert 'Anchored by a step (measured, predicted without and with it)' in screen
    assert 'What decides:' in screen


@pytest.mark.parametrize(('text', 'said'), load_table(__file__, 'test_a_wrong_anchor_is_refused_in_a_line'))
def test_a_wrong_anchor_is_refused_in_a_line(folder, refused, text, said):
    (folder / 'wrong.yaml').write_text(text)
    error = refused('run', folder / '2.yaml', '--anchor', folder / 'wrong.yaml')
    assert said in error
    assert 'Traceback' not in error


def test_a_number_that_could_turn_the_gain_is_told_first():
    case = simpar.load_case('examples/transformer_h100.yaml')
    first, *_ = found = case.what_decides()
    assert len(found) <= 3
    assert all(one.is_gain and RANGE[one.number.grade] == one.number.range for one in found)
    spans = [abs(one.high - one.low) for one in found]
    assert first.turns or spans == sorted(spans, reverse=True)
    assert {one.number.name for one in found} <= {one.name for one in numbers_of(case.cluster)}
    assert ' tells it.' in first.line


@pytest.mark.parametrize('name', some(['llama3_8b_h100', 'transformer_910b_7b', 'pipeline_h100']))
def test_what_is_told_of_a_link_comes_of_a_schedule_with_that_link(name):
    """The other numbers were moved by hand in five examples: docs/proofs/answers.md."""
    path = f'examples/{name}.yaml'
    case = simpar.load_case(path)
    links = {link.name for link in case.cluster.profile.links}
    told = [one for one in case.what_decides() if one.number.name in links]
    assert told
    for one in told:
        for seconds, gain in ((math.exp(-one.number.range), one.low), (math.exp(one.number.range), one.high)):
            moved = simpar.load_case(path, [f'cluster.links.{one.number.name}={1 / seconds}'])
            assert moved.predict(tell=False).gain == pytest.approx(gain, abs=1e-6)


# `simpar run --fit`: one number is scaled until the prediction meets an own measured step, within its bounds


SCHEDULE = load_table(__file__, 'SCHEDULE')


@pytest.fixture
def run(tmp_path, capsys):
    def answer(stack, hidden, step=None):
        schedule, own = tmp_path / 'plan.yaml', tmp_path / 'own.yaml'
        schedule.write_text(SCHEDULE.replace('STACK', stack).replace('HIDDEN', str(hidden)))
        own.write_text(f'step: {step}\n')
        code = main(['run', str(schedule), '--json', *(['--fit', str(own)] if step else [])])
        out, err = capsys.readouterr()
        return (json.loads(out) if code == 0 else code), err

    return answer


@pytest.mark.parametrize(('hidden', 'factor', 'number'), [(128, 1.03, 'host'), (4096, 1.03, 'clock')])
def test_what_bounds_the_step_is_scaled_until_it_meets_the_measured_one(run, hidden, factor, number):
    plain, _ = run('megatron-2021', hidden)
    wanted = plain['step'] * factor
    answer, _ = run('megatron-2021', hidden, f'{wanted * 1e6:.3f} us')
    assert answer['step'] == pytest.approx(wanted, rel=2e-3)
    told = answer['fitted']
    assert number in told['number']
    assert not told['bound']
    # The baseline is on the same stack, and so has the same number.
    assert answer['baseline']['step'] != plain['baseline']['step']


def test_a_step_out_of_reach_leaves_the_number_at_its_end_and_says_so(run):
    plain, _ = run('megatron-2021', 4096)
    answer, _ = run('megatron-2021', 4096, f'{plain["step"] * 9:.6f} s')
    assert answer['fitted']['bound']
    assert answer['fitted']['after'] == pytest.approx(BOUNDS['sustained'][0])
    assert answer['step'] < plain['step'] * 2


def test_what_is_wrong_with_the_file_is_told_with_its_place(run, tmp_path):
    code, err = run('eager', 128, '4')
    assert code == 2
    assert f'{tmp_path}/own.yaml:1: step' in err
