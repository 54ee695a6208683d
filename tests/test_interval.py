"""80 % intervals: by kind of step, of rows for fitting alone, and told with every answer."""

import math
from dataclasses import replace

import pytest
from equipment.residuals import fitted_streaming, half_width, left_out, spreads_of, written

from simpar import interval as intervals
from simpar.cost.compute import MATRIX
from simpar.lower import lower
from simpar.plans import Plan
from simpar.predict import predict, step_and_costs
from simpar.profiles import cluster, load_profile, load_stack, profile_folder, stack_names
from simpar.report import interval_lines, to_dict
from simpar.validate.rows import Row
from simpar.validate.run import Pair, covered
from simpar.workload import Transformer, Workload

A100 = load_profile('a100-sxm-8')


def pair(model, factor, stack='torch-fsdp', bound=intervals.DEVICE, streaming=0.0, batch='8'):
    cells = {'model': model, 'n_layers': '1', 'hidden': '8', 'global_batch': batch}
    return Pair(Row(of='mine', cells=cells, seconds=factor), 1.0, 1.0, stack, 'A100 SXM', bound, streaming)


def of_one_rank(hidden=4096):
    """A program of one rank, and its device."""
    model = Transformer(layers=2, hidden=hidden, heads=8, vocab=512, sequence=512)
    work = Workload(model=model, batch=8, precision='bf16')
    return lower(work, Plan(), 1), cluster(A100, devices=1, stack=load_stack('megatron-2021'))


def replace_set(one, of):
    return replace(one, row=replace(one.row, of=of))


def spread(step, streaming=0.0):
    return intervals.Spread(
        device='A100 SXM', bound=intervals.DEVICE, stacks=('eager',), rows=9, models=3, step=step, streaming=streaming,
        pairs=1, gain=step,
    )  # fmt: skip


def test_a_half_width_is_the_smallest_that_four_of_five_further_errors_stay_below():
    """Of 9 errors the 8th: 8 of 10 equally likely ranks of a further one lie at or below it."""
    assert half_width([0.1 * n for n in range(1, 10)]) == pytest.approx(0.8)
    assert half_width([-0.3, 0.1, 0.2, -0.4]) == pytest.approx(0.4)
    assert half_width([]) == 0.0


def test_a_model_with_many_rows_counts_no_more_than_one_with_a_single_row():
    """Nine models with a row each, and one with 91 rows that all fit: each is a tenth, so the width stays theirs."""
    errors, weights = [0.1 * n for n in range(1, 10)] + [0.0] * 91, [1.0] * 9 + [1 / 91] * 91
    assert half_width(errors, weights) == pytest.approx(0.8)
    assert half_width(errors) == 0.0


def test_a_kind_is_a_class_of_devices_and_what_bounds_the_step_of_three_models_or_more():
    rows = [pair(f'm{n}', 1.1, 'megatron-2021') for n in range(3)] + [pair('z', 1.5, 'zero-bubble')]
    known = spreads_of([*rows, pair('h', 2.0, bound=intervals.HOST)])
    found, _ = known
    assert (found.stacks, found.rows, found.models) == (('megatron-2021', 'zero-bubble'), 4, 4)
    assert intervals.spread_among(known, 'A100 SXM', intervals.DEVICE) is found
    assert intervals.spread_among(known, 'A100 SXM', intervals.HOST) is None
    assert intervals.spread_among(known, 'H100 SXM', intervals.DEVICE) is None


def test_the_more_of_a_step_streams_the_wider_is_its_interval_where_rows_for_fitting_say_so():
    """Errors that grow as the law with ρ = 8 has them give that ρ; errors that do not grow give none."""
    shares = [0.02 * n for n in range(20)]

    def rows(streaming):
        sizes = [0.05 * math.hypot(1, streaming * share) for share in shares]
        each = zip(shares, sizes, strict=True)
        return [pair(f'm{n}', math.exp(size * (-1) ** n), streaming=share) for n, (share, size) in enumerate(each)]

    assert fitted_streaming(rows(8)) == pytest.approx(8)
    assert fitted_streaming(rows(0)) == 0
    (found, _) = spreads_of(rows(8))
    assert found.half_width(0.0) == pytest.approx(0.05)
    assert found.half_width(0.5) == pytest.approx(0.05 * math.hypot(1, 4))


def test_rows_that_were_kept_aside_are_counted_within_their_interval():
    known = [spread(math.log(1.2))]
    told, within, width = covered(
        [pair('a', 1.19), pair('b', 1 / 1.19), pair('c', 1.3), pair('d', 1, bound=intervals.HOST)], known
    )
    assert (told, within) == (3, 2)
    assert width == pytest.approx((1.2 - 1 / 1.2) / 2)
    # Where it streams, its interval is twice as wide.
    assert covered([pair('c', 1.3, streaming=3**0.5 / 8)], [spread(math.log(1.2), 8.0)])[1] == 1


def test_of_gains_the_common_error_of_two_plans_is_no_error():
    """Both are 10 % slow: the ratio is right. Then one is 5 % more so."""
    found, _ = spreads_of([pair(f'm{n}', 1.1) for n in range(3) for _ in (0, 1)])
    assert (found.pairs, found.gain) == (3, 0.0)
    rows = [pair(f'm{n}', factor) for n in range(3) for factor in (1.1, 1.1 * 1.05)]
    assert spreads_of(rows)[0].gain == pytest.approx(math.log(1.05))


def test_the_shipped_table_is_read_as_it_is_written():
    path = profile_folder() / intervals.TABLE
    assert written(intervals.spreads()) == path.read_text(encoding='utf-8')
    assert all(one.models >= 3 and {*one.stacks} <= {*stack_names()} for one in intervals.spreads())
    assert intervals.device_class('A100 SXM 40 GB') == intervals.device_class('A100 SXM 80 GB') == 'A100 SXM'


def test_the_streaming_share_is_of_the_rank_that_computes_most_and_none_where_the_host_bounds():
    """A device-bound step of one rank without messages: what is no product fills what products leave."""
    program, hardware = of_one_rank()
    step, costs = step_and_costs(program, hardware)
    (role,) = program.roles
    products = sum(costs.compute[index] for index in role.op_class if program.op_classes[index].operator in MATRIX)
    idle = step - costs.compute[role.op_class].sum()
    share = intervals.streaming_share(program, costs, step, intervals.DEVICE)
    assert 0.05 < share < 0.5
    assert share == pytest.approx(1 - (products + idle) / step)
    assert intervals.streaming_share(program, costs, step, intervals.HOST) == 0.0


@pytest.mark.parametrize(('hidden', 'bound'), [(64, intervals.HOST), (4096, intervals.DEVICE)])
def test_what_bounds_a_step_is_the_host_where_it_issues_for_half_of_it(hidden, bound):
    program, hardware = of_one_rank(hidden)
    step, costs = step_and_costs(program, hardware)
    assert intervals.bound_by(program, costs, step) == bound
    answer = predict(program, None, hardware)
    low, high = answer.interval.low, answer.interval.high
    assert low < answer.step < high
    assert low * high == pytest.approx(answer.step**2)
    (line,) = interval_lines(answer)
    assert f'bound by the {bound}' in line
    assert to_dict(answer)['interval']['low'] == low


def test_a_stack_that_nobody_measured_has_the_interval_of_all_and_a_device_a_wider_one():
    """And the answer says what is lacking; of a device alone there is none."""
    work = Workload(model=Transformer(layers=1, hidden=64, heads=8, vocab=512, sequence=64), batch=8, precision='bf16')
    own = replace(load_stack('deepspeed'), name='my-own', extends='')
    program = lower(work, Plan(), 1)
    answer, other = (
        predict(program, None, cluster(profile, devices=1, stack=own)) for profile in (A100, load_profile('h200-sxm-8'))
    )
    every = intervals.spread_among(intervals.spreads(), intervals.ANY, intervals.ANY)
    assert (answer.spread.lacking, answer.spread.step) == (('framework',), every.step)
    assert (other.spread.lacking, other.spread.step) == (('framework', 'device'), every.step * intervals.WIDER)
    assert list(interval_lines(answer))[1].startswith('No published step of my-own was scored')
    assert 'No published step of my-own, and none of H200' in list(interval_lines(other))[1]
    assert not list(interval_lines(predict(program, None, cluster(A100, devices=1))))


def test_steps_of_several_others_on_a_device_and_bound_tell_of_a_framework_and_those_of_one_do_not():
    """Frameworks are 10 and 20 % off on A100, and a third 50 % off on H100, which are the worst of all together."""
    mine = [pair(f'm{n}', 1.1) for n in range(3)]
    other = [replace_set(pair(f'n{n}', 1.2, 'deepspeed'), 'other') for n in range(3)]
    third = [replace(replace_set(pair(f'o{n}', 1.5, 'domino'), 'third'), device='H100 SXM') for n in range(3)]
    several, one = (
        intervals.spread_for(spreads_of(rows), 'nobody', 'A100 SXM', intervals.DEVICE)
        for rows in (mine + other + third, mine + third)
    )
    assert (several.step, several.lacking) == (pytest.approx(math.log(1.2)), ('framework',))
    assert several.words == '6 published steps of 6 models (deepspeed, torch-fsdp) on A100 SXM, bound by the device'
    assert (one.step, one.lacking) == (pytest.approx(math.log(1.5)), ('framework',))
    assert one.words.startswith('6 published steps of other kinds')


def test_parts_of_unlike_speed_under_one_name_make_an_interval_by_rule_wider():
    """By hand: four fifths of half the logarithm of 1.21, in squares. Rows on such parts hold it already."""
    known = [spread(0.1), replace(spread(0.3), device=intervals.ANY, bound=intervals.ANY)]
    one, unlike = (intervals.spread_for(known, 'nobody', 'A100 SXM', intervals.DEVICE, bins) for bins in (1.0, 1.21))
    assert unlike.half_width(0.0) == pytest.approx(math.hypot(one.half_width(0.0), 0.8 * math.log(1.1)))
    assert 'sold under one name' in unlike.words
    assert intervals.spread_for(known, 'eager', 'A100 SXM', intervals.DEVICE, 1.21) is known[0]


def test_of_all_kinds_together_each_framework_counts_once():
    """Nine rows of one that are 10 % off, and one of another that is 30 % off: half of all is of each."""
    rows = [pair('m', 1.1)] * 9 + [replace_set(pair('n', 1.3), 'other')]
    assert spreads_of(rows)[-1].step == pytest.approx(math.log(1.3))
    assert left_out(rows, rows, 'other')[:2] == (1, 0)


def test_a_gain_below_what_two_such_plans_are_known_to_is_within_noise():
    program, hardware = of_one_rank()
    answer = predict(program, program, hardware)
    assert answer.gain == 0
    assert any('within noise' in line for line in interval_lines(answer))


def test_an_interval_is_even_in_ratios():
    found = intervals.interval(2.0, spread(math.log(2)))
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(4.0))
