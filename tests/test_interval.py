"""80 % intervals: by kind of step, of rows for fitting alone, and told with every answer."""

import math

import pytest

from simpar.interval import DEVICE, HOST, Spread, bound_by, device_class, interval, lineage, spread_among, spreads
from simpar.lower import lower
from simpar.plan import Plan
from simpar.predict import predict, step_and_costs
from simpar.profiles import cluster, load_profile
from simpar.report import interval_lines, to_dict
from simpar.stacks import load_stack, stack_names
from simpar.validate.residuals import covered, half_width, spreads_of, written
from simpar.validate.rows import Row
from simpar.validate.scores import Pair
from simpar.workload import Transformer, Workload

A100 = load_profile('a100-sxm-8')


def pair(model, factor, stack='torch-fsdp', bound=DEVICE, batch='8'):
    cells = {'model': model, 'n_layers': '1', 'hidden': '8', 'global_batch': batch}
    return Pair(Row(of='mine', cells=cells, seconds=factor), 1.0, 1.0, stack, 'A100 SXM', bound)


def spread(stack, step, bound=DEVICE):
    return Spread(stack=stack, device='A100 SXM', bound=bound, rows=9, models=3, step=step, pairs=1, gain=step)


def test_a_half_width_is_the_smallest_that_four_of_five_further_errors_stay_below():
    """Of 9 errors the 8th: 8 of 10 equally likely ranks of a further one lie at or below it."""
    assert half_width([0.1 * n for n in range(1, 10)]) == pytest.approx(0.8)
    assert half_width([-0.3, 0.1, 0.2, -0.4]) == pytest.approx(0.4)
    assert half_width([]) == 0.0


def test_a_kind_with_too_few_models_has_the_spread_of_what_it_extends():
    rows = [pair(f'm{n}', 1.1, 'megatron-2021') for n in range(3)] + [pair('z', 1.5, 'zero-bubble')]
    known = spreads_of(rows)
    assert {one.stack for one in known} == {'eager', 'megatron-2021'}
    found = spread_among(known, 'zero-bubble-post', 'A100 SXM', DEVICE)
    # The rows of stacks that extend it are pooled with its own.
    assert (found.stack, found.rows, found.models) == ('megatron-2021', 4, 4)
    assert spread_among(known, 'zero-bubble', 'A100 SXM', HOST) is None
    assert spread_among(known, 'zero-bubble', 'H100 SXM', DEVICE) is None


def test_rows_that_were_kept_aside_are_counted_within_their_interval():
    known = [spread('eager', math.log(1.2))]
    told, within, width = covered(
        [pair('a', 1.19), pair('b', 1 / 1.19), pair('c', 1.3), pair('d', 1, bound=HOST)], known
    )
    assert (told, within) == (3, 2)
    assert width == pytest.approx((1.2 - 1 / 1.2) / 2)


def test_of_gains_the_common_error_of_two_plans_is_no_error():
    """Both are 10 % slow: the ratio is right. Then one is 5 % more so."""
    (found,) = [
        one for one in spreads_of([pair(f'm{n}', 1.1) for n in range(3) for _ in (0, 1)]) if one.stack == 'eager'
    ]
    assert (found.pairs, found.gain) == (3, 0.0)
    rows = [pair(f'm{n}', factor) for n in range(3) for factor in (1.1, 1.1 * 1.05)]
    assert spreads_of(rows)[0].gain == pytest.approx(math.log(1.05))


def test_the_shipped_table_is_read_as_it_is_written():
    assert written(spreads()).splitlines()[0] == 'stack,device,bound,rows,models,step,pairs,gain'
    assert all(one.stack in stack_names() and one.models >= 3 for one in spreads())
    assert list(lineage('zero-bubble-post')) == ['zero-bubble-post', 'zero-bubble', 'megatron-2021', 'eager']
    assert device_class('A100 SXM 40 GB') == device_class('A100 SXM 80 GB') == 'A100 SXM'


@pytest.mark.parametrize(('hidden', 'bound'), [(64, HOST), (4096, DEVICE)])
def test_what_bounds_a_step_is_the_host_where_it_issues_for_half_of_it(hidden, bound):
    work = Workload(
        model=Transformer(layers=2, hidden=hidden, heads=8, vocab=512, sequence=512), batch=8, precision='bf16'
    )
    program, hardware = lower(work, Plan(), 1), cluster(A100, devices=1, stack=load_stack('megatron-2021'))
    step, costs = step_and_costs(program, hardware)
    assert bound_by(program, costs, step) == bound
    answer = predict(program, None, hardware)
    low, high = answer.interval.low, answer.interval.high
    assert low < answer.step < high
    assert low * high == pytest.approx(answer.step**2)
    (line,) = interval_lines(answer)
    assert f'bound by the {bound}' in line
    assert to_dict(answer)['interval']['low'] == low


def test_a_stack_that_nobody_measured_on_a_device_says_so_and_no_stack_says_nothing():
    work = Workload(model=Transformer(layers=1, hidden=64, heads=8, vocab=512, sequence=64), batch=8, precision='bf16')
    program = lower(work, Plan(), 1)
    answer = predict(program, None, cluster(load_profile('h200-sxm-8'), devices=1, stack=load_stack('deepspeed')))
    assert answer.interval is None
    assert 'No interval: no published steps of deepspeed' in next(iter(interval_lines(answer)))
    assert not list(interval_lines(predict(program, None, cluster(A100, devices=1))))


def test_a_gain_below_what_two_such_plans_are_known_to_is_within_noise():
    work = Workload(
        model=Transformer(layers=2, hidden=4096, heads=8, vocab=512, sequence=512), batch=8, precision='bf16'
    )
    program, hardware = lower(work, Plan(), 1), cluster(A100, devices=1, stack=load_stack('megatron-2021'))
    answer = predict(program, program, hardware)
    assert answer.gain == 0
    assert any('within noise' in line for line in interval_lines(answer))


def test_an_interval_is_even_in_ratios():
    found = interval(2.0, spread('eager', math.log(2)))
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(4.0))
