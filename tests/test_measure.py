"""``simpar measure`` and ``simpar compare``: one network and one statistic for both sides, and results in files."""

import contextlib
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simpar import cli, price
from simpar.case import load_case, on_net
from simpar.hardware.net import FRAME, PAYLOAD, parse_net
from simpar.numbers import pricing_by
from simpar.units import format_time

ROOT = Path(__file__).parent.parent
BYTES = 128 * 256 * 4
"""Of the only collective, in a copy."""


def measured_apart(*words):
    """``simpar measure`` in a process of its own: its exit code, output and errors."""
    command = [sys.executable, '-m', 'simpar', 'measure', *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def measured(monkeypatch, capsys):
    """The same, but that this process starts the ranks: torch is imported."""

    def start(verb, file, overrides, flags=(), *, silent=False):
        from executor.__main__ import main

        settings = [word for override in overrides for word in ('--set', override)]
        with contextlib.redirect_stdout(io.StringIO() if silent else sys.stdout):
            return main([verb, str(file), *settings, *flags])

    monkeypatch.setattr('simpar.commands.common.start', start)
    return lambda *words: (cli.main(['measure', *map(str, words)]), *capsys.readouterr())


@pytest.mark.parametrize(
    ('text', 'rate', 'latency'),
    [('paced:100mbit,2ms', 12.5e6, 2e-3), ('paced:4 MB/s', 4e6, 0.0), ('netns:80mbit', 1e7 * PAYLOAD / FRAME, 0.0)],
)
def test_what_net_shapes_is_what_is_predicted(job, text, rate, latency):
    """A ring of two ranks takes two steps, and each rank sends as many bytes as the tensor has."""
    case = on_net(load_case(job), parse_net(text))
    for one in (case, case.baseline):
        costs = price(one.program, one.cluster)
        (sizes,) = ({op.bytes for op in one.program.op_classes if op.kind == 'collective'},)
        ((index, (cost,)),) = [(index, entries) for index, entries in costs.communication.items()]
        assert sizes == {one.program.op_classes[index].bytes}
        assert cost.alpha == pytest.approx(case.cluster.profile.library.start.value + 2 * latency, rel=1e-6)
        assert cost.transfer == pytest.approx(one.program.op_classes[index].bytes / rate, rel=1e-6)
        assert {demand for _, demand in cost.links} == {1.0}
    assert case.predict().step >= 2 * (BYTES / rate)


def test_a_profile_that_was_calibrated_on_the_network_keeps_its_links(job):
    case = load_case(job)
    profile = replace(case.cluster.profile, net='paced:12.5 MB/s,2000us')
    case = replace(case, cluster=replace(case.cluster, profile=profile))
    assert on_net(case, parse_net('paced:100mbit,2ms')) is case
    assert on_net(case, parse_net('paced:100mbit,1ms')) is not case


def test_measure_and_compare_tell_one_statistic_of_one_network_and_the_state_is_saved(job, tmp_path, json_of, printed):
    """The prediction was once that of the profile's links: −99.8 % on a slow network, without a word."""
    import torch

    from executor.inprocess import InProcess

    trace, state = tmp_path / 'measured.json', tmp_path / 'deep' / 'state.pt'
    words = ['--net', 'paced:40mbit,2ms', '--steps', 4, '--save', trace, '--save-state', state]
    code, out, error = measured_apart(job, *words)
    assert code == 0, error
    assert 'Network: paced at 5 MB/s with 2 ms a message, both measured and predicted.' in out
    told = 'Compared: the last predicted step with the 10th percentile of 4 measured steps; ops by their medians.'
    assert told in out
    predicted = tmp_path / 'p.json'
    printed('run', str(job), '--net', 'paced:40mbit,2ms', '--save', str(predicted))
    facts = json_of('compare', predicted, trace)
    assert facts['statistic'] == {'percentile': 10.0, 'of_steps': 4, 'ops': 'median'}
    # The very numbers that `measure` has shown, of plan and of baseline.
    assert abs(facts['step']['error']) < 0.5
    steps = (facts['step'], facts['baseline']['step'])
    shown = [format_time(one[how]) for one in steps for how in ('predicted', 'measured')]
    assert re.split('  +', re.search('^step +(.+)$', out, re.MULTILINE)[1]) == shown
    gain = facts['baseline']['step']['measured'] / facts['step']['measured'] - 1
    assert facts['gain']['measured'] == pytest.approx(gain, abs=1e-12)
    assert re.search(r'^gain.*?([-+][0-9.]+) % +([-+][0-9.]+) %$', out, re.MULTILINE)[2] == f'{gain * 100:+.1f}'
    wanted = InProcess(load_case(job).program, 0, None).run(6)
    found = torch.load(state, weights_only=True)
    assert found['losses'] == pytest.approx(list(wanted.losses), rel=1e-5)
    for mine, theirs in ((found['parameters'], wanted.parameters), (found['gradients'], wanted.gradients)):
        assert mine.keys() == theirs.keys()
        for name in theirs:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=1e-5)


def test_a_plan_is_measured_alone_or_against_itself_and_the_page_tells_it(job, tmp_path, measured):
    """The gain of a plan over itself is noise; without a baseline there is none."""
    page = tmp_path / 'deep' / 'answer.html'
    words = [job, '--net', 'paced:40mbit,2ms', '--compute', 'emulated', '--steps', 4]
    code, out, error = measured(*words, '--baseline', 'none', '--html', page)
    assert code == 0, error
    assert re.search('^predicted .+ a step, emulated .+: error .+ %$', out, re.MULTILINE)
    assert 'gain' not in out
    assert 'in turns' not in out
    shown = page.read_text()
    assert 'Predicted and measured' in shown
    assert re.search('<h1>predicted .+ a step, emulated', shown)
    code, out, error = measured(*words, '--baseline', 'itself', '--json')
    assert code == 0, error
    facts = json.loads(out)
    assert facts['gain']['predicted'] == 0
    assert abs(facts['gain']['measured']) < 0.1
    assert facts['baseline']['name'] == 'the same plan'


def test_ops_that_were_timed_are_priced_by_their_seconds(job):
    """On one device of two copies nothing overlaps: the step is the sum of its ops."""
    case = load_case(job, ['cluster.devices=1', 'plan.tensor=1'])
    seconds = {op.name: 0.001 * (1 + number) for number, op in enumerate(case.program.op_classes)}
    role = case.program.role(0)
    assert {case.program.op(role, slot).kind for slot in range(len(role))} == {'compute'}
    step = sum(seconds[case.program.op(role, slot).name] for slot in range(len(role)))
    assert case.predict(pricing=pricing_by({case.program.hash: seconds})).step == pytest.approx(step, rel=1e-6)
    assert case.predict(pricing=pricing_by({'another': seconds})).step == case.predict().step


def test_ops_are_timed_between_the_steps_of_real_ranks(job, measured):
    words = [job, '--net', 'paced:40mbit,2ms', '--time-ops', '--steps', 4, '--json']
    code, out, error = measured(*words)
    assert code == 0, error
    facts = json.loads(out)
    times = re.search(r'ops were timed between the steps: they take ([\d.]+) times', facts['note'])
    assert times
    assert 0.01 < float(times[1]) < 100
    code, _, error = measured(*words, '--compute', 'emulated')
    assert (code, '--time-ops: only ops that ranks of this machine compute' in error) == (2, True)


def test_a_state_is_not_asked_of_emulated_compute(job, tmp_path):
    from executor.__main__ import main

    words = ['run', str(job), '--compute', 'emulated', '--save-state', str(tmp_path / 's.pt')]
    assert main(words) == 2
    assert not (tmp_path / 's.pt').exists()


def test_training_is_one_call(job):
    import torch

    from executor.train import train

    alone = train(job, ['plan.copies=1'], steps=2, seed=3, dtype='fp64', processes=False)
    ranks = train(job, ['plan.copies=1'], steps=2, seed=3, dtype='fp64')
    assert alone.losses == pytest.approx(ranks.losses, rel=1e-12)
    assert {f'd:{name}' for name in alone.parameters} == set(ranks.gradients)
    assert all(torch.allclose(alone.parameters[name], ranks.parameters[name]) for name in alone.parameters)


def test_swapped_arguments_of_compare_are_refused(job, tmp_path, capsys, printed, refused):
    predicted, other = tmp_path / 'predicted.json', tmp_path / 'measured.json'
    assert cli.main(['run', str(job), '--save', str(predicted)]) == 0
    content = json.loads(predicted.read_text())
    other.write_text(json.dumps({**content, 'origin': 'measured'}))
    capsys.readouterr()
    assert 'Compared: the last predicted step with the 10th percentile of 2 measured steps' in printed(
        'compare', predicted, other
    )
    assert f'swap the two: simpar compare {predicted} {other}' in refused('compare', other, predicted)
    assert 'give the trace of `simpar run --save` first' in refused('compare', other, other)
