"""The gain, predicted and measured: plan and baseline in turns, one real step that counts, and networks that differ."""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worked import worked_costs, worked_program

from simpar import comparison, simulate
from simpar.case import load_case, on_net
from simpar.hardware.net import parse_net
from simpar.metrics import metrics
from simpar.trace import joined, step_that_counts
from simpar.trace_files import load_trace, to_saved

PROGRAM = worked_program()
SLOW = {'beside_communication': 1.0}
"""Nothing slows down: 44 s a step in place of 56 s."""


def run(steps, begin=0.0, **costs):
    """Steps of the worked program as a machine would record them, whose first step begins so much later."""
    trace = simulate(PROGRAM, worked_costs(PROGRAM, **costs), steps=steps)
    return replace(trace, origin='measured').later(begin)


def disturbed(trace, step, seconds):
    """The trace, one step of which ends so much later, and with it all that follow."""
    for times in trace.representatives:
        times.end_KS[step, -1] += seconds
        for table in (times.arrive_KS, times.start_KS, times.end_KS):
            table[step + 1 :] += seconds
    return trace


def test_the_step_that_counts_is_a_real_one():
    """Of ten steps one is shorter or as long as the 10th percentile; nothing is made up between two of them."""
    steps = np.array([9.0, 5.0, 3.0, 8.0, 4.0])
    assert step_that_counts(steps, slice(1, 5)) == 2
    assert step_that_counts(steps, slice(3, 5)) == 4
    assert step_that_counts(steps, slice(0, 5), 100.0) == 0
    ten = np.arange(10.0, 0.0, -1.0)
    assert [step_that_counts(ten, slice(0, 10), p) for p in (10.0, 10.1, 50.0)] == [9, 8, 5]


def test_runs_are_joined_at_the_ends_of_their_steps():
    """Each run is cold at first; the whole has the first cold step and the steps from the third on of each run."""
    one, other = run(5), run(4, begin=7.0)
    whole = joined([one, other], first=2)
    assert whole.step_times.tolist() == [*one.step_times[[0, 2, 3, 4]], *other.step_times[[2, 3]]]
    own, last = other.representatives[0], whole.representatives[0]
    # Within a step all distances stay as they were.
    apart = (last.end_KS[-1] - last.end_KS[-1, 0]) - (own.end_KS[-1] - own.end_KS[-1, 0])
    assert np.abs(apart).max() < 1e-9
    assert (last.arrive_KS <= last.end_KS).all()
    assert metrics(whole).steady.exposed == pytest.approx(metrics(other).steady.exposed, abs=1e-9)


def test_figures_of_a_measurement_are_those_of_the_step_that_counts():
    """Steps of 56 s but for two that others disturbed, the last one among them: no figure sees these."""
    told = simulate(PROGRAM, worked_costs(PROGRAM), steps=3)
    seen = disturbed(disturbed(run(7), 3, 5.0), 6, 9.0)
    assert seen.step == 65
    side = comparison.side_of('plan', told, seen, comparison.compare(told, seen))
    for figure in ('step', 'compute', 'exposed', 'idle', 'overlap'):
        assert getattr(side.measured, figure) == pytest.approx(getattr(side.predicted, figure), abs=1e-9), figure
    assert side.measured.compute + side.measured.exposed + side.measured.idle == pytest.approx(56, abs=1e-9)


def test_the_gain_is_of_the_same_steps_that_are_shown():
    """44 s against 56 s is 27.3 % faster; measured, the plan takes 48 s, which is 16.7 %."""
    told = {
        name: simulate(PROGRAM, worked_costs(PROGRAM, **costs), steps=3) for name, costs in (('new', SLOW), ('old', {}))
    }
    plan, seen = to_saved(told['new'], worked_costs(PROGRAM, **SLOW)), to_saved(disturbed_all(run(6, **SLOW), 4.0))
    old = to_saved(told['old'], worked_costs(PROGRAM))
    gain = comparison.gain_of(
        replace(plan, baseline=old), replace(seen, name='new', baseline=replace(to_saved(run(6)), name='old'))
    )
    assert gain.predicted == pytest.approx(56 / 44 - 1)
    assert gain.measured == pytest.approx(56 / 48 - 1)
    assert comparison.gain_line(gain) == 'new: measured 16.7 % faster than old, predicted 27.3 % faster'
    told = comparison.gain_to_dict(gain)
    assert told['gain']['points'] == pytest.approx(100 * (56 / 44 - 56 / 48))
    assert told['step']['measured'] == pytest.approx(48)
    assert told['baseline']['step']['measured'] == pytest.approx(56)
    rows = [line.split('  ')[0] for line in comparison.render_gain(gain, colour=False).splitlines()]
    assert {'gain: baseline / step - 1', 'step', 'overlap', 'exposed communication', 'computing'} <= set(rows)


def judged(told, seen, costs=None):
    return comparison.verdict(
        comparison.Gain(plan=comparison.side_of('plan', told, seen, comparison.compare(told, seen, costs=costs)))
    )


def test_the_verdict_says_what_agrees_what_does_not_and_why():
    """A rank that computes twice as long; then one prediction that is right, and one whose errors cancel."""
    costs = worked_costs(PROGRAM)
    told = simulate(PROGRAM, costs, steps=3)
    assert judged(told, run(5), costs) == 'The step, the overlap and exposed communication agree.'
    slow = judged(told, run(5, slow={1: 0.5}), costs)
    assert slow.startswith('The step (predicted 56 s, measured 100 s), the overlap (100 % and 52 %) and exposed')
    assert 'do not agree: rank 1 computes 2.00 times as long as predicted, all others wait' in slow
    side = comparison.side_of('plan', told, run(5), comparison.compare(told, run(5)))
    ranks = tuple(replace(one, compute=one.compute / 2, idle=one.idle + one.compute / 2) for one in side.measured.ranks)
    other = replace(side, measured=replace(side.measured, ranks=ranks))
    assert 'errors that cancel: computing is predicted' in comparison.verdict(comparison.Gain(plan=other))
    assert comparison.verdict(comparison.Gain(plan=side), 'another machine') == 'another machine'


def disturbed_all(trace, seconds):
    """The trace, every step of which takes so much longer."""
    for step in range(trace.steps):
        disturbed(trace, step, seconds)
    return trace


def test_a_baseline_of_another_batch_is_compared_by_the_sample():
    told = simulate(PROGRAM, worked_costs(PROGRAM), steps=3)
    seen = run(4)
    one = comparison.side_of('64', told, seen, comparison.compare(told, seen), samples=64)
    assert comparison.Gain(plan=one, baseline=replace(one, samples=32)).measured == pytest.approx(1.0)
    assert comparison.Gain(plan=one).measured is None


def test_networks_that_differ_are_said_first_and_nothing_is_blamed():
    """The diagnosis would find slow messages, and say nothing of the flag that was left out."""
    told = replace(to_saved(simulate(PROGRAM, worked_costs(PROGRAM), steps=3), worked_costs(PROGRAM)), net='none')
    seen = replace(to_saved(run(5, slow={1: 0.5})), net='paced:5 MB/s,2ms')
    found = comparison.compare(told, seen)
    assert found.diagnosis is None
    assert comparison.comparison_to_dict(found)['networks'] == {'predicted': 'none', 'measured': 'paced:5 MB/s,2ms'}
    first = ' '.join(comparison.render_gain(comparison.gain_of(told, seen), colour=False).splitlines()[:2])
    assert first.startswith('The networks differ: the prediction is for no shaped network')
    assert 'predict with `simpar run --net paced:5 MB/s,2ms`' in first
    # The same network in other words, and a file that does not say its own.
    for net in ('paced:40mbit,2000us', ''):
        assert comparison.compare(replace(told, net=net), seen).networks is None
        assert comparison.compare(replace(told, net=net), seen).diagnosis is not None


def test_run_predicts_on_the_network_that_measure_shapes(job, tmp_path, refused, json_of):
    saved, net = tmp_path / 'p.json', 'paced:40mbit,2ms'
    told = json_of('run', str(job), '--net', net, '--save', str(saved))
    wanted = on_net(load_case(job), parse_net(net)).predict()
    assert (told['step'], told['baseline']['step']) == (wanted.step, wanted.baseline.step)
    assert parse_net(load_trace(saved).net) == parse_net(net)
    assert load_trace(saved).baseline.step_times[-1] == wanted.baseline.step
    assert '--net: not a network' in refused('run', job, '--net', 'wifi')


def test_a_stack_that_nobody_wrote_is_left_out_of_what_is_measured(job):
    """The executor is no framework. A stack that stands in the file is the user's, and stays."""
    from simpar.commands import measure

    def asked(*words):
        return argparse.Namespace(
            file=Path(job), set=['cluster.profile=h100-sxm-8', *words], module='', op=[], limit=[]
        )

    options = asked()
    case, line = measure._without_framework(options)
    assert case.cluster.stack is None
    assert line == (
        'The executor runs kernels without a framework, so the prediction leaves the framework out (megatron-te).'
    )
    # The executor reads the same keys, also those that the framework fills in: `run` predicts this very program.
    assert options.set[:2] == ['cluster.profile=h100-sxm-8', 'cluster.stack=none']
    assert 'plan.reduce_gradients="end"' in options.set
    predicted = load_case(job, ['cluster.profile=h100-sxm-8'])
    executed = load_case(job, options.set)
    assert case.plan == executed.plan == predicted.plan
    assert case.program.hash == executed.program.hash == predicted.program.hash
    assert case.without_effect() == predicted.without_effect()
    case, line = measure._without_framework(asked('cluster.stack=eager'))
    assert (case.cluster.stack.name, line) == ('eager', '')
