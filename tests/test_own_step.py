"""`simpar run --fit`: one number is scaled until the prediction meets an own measured step, within its bounds."""

import json

import pytest
from tables import load_table

from simpar.cli import main
from simpar.validate.fit import BOUNDS

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
