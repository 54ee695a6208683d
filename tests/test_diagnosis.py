"""The diagnosis: own times by hand, the causes of drawn sabotage, sentences, and predictions that bring their costs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from every import some
from prove_culprit import PLANS, Bed
from sabotage_kinds import KINDS
from tables import load_table
from test_compare import measured
from worked import worked_costs, worked_program

from simpar import load_case, simulate
from simpar.comparison import compare, comparison_to_dict, render_comparison
from simpar.diagnosis import Cause, Diagnosis, diagnose, sentence
from simpar.diagnosis.places import Place, own_times, sites_of
from simpar.trace_files import load_trace, save_trace, to_saved

PROGRAM = worked_program()
SITES = sites_of(PROGRAM)


def predicted(**costs):
    return simulate(PROGRAM, worked_costs(PROGRAM, **costs), steps=4)


def test_own_times_are_those_of_the_op_alone():
    """On the page, with rank 1 at half speed: it computes FA.0 for 8 s; rank 0's wait of 4 s at RA.0 is not its own."""
    own = own_times(predicted(slow={1: 0.5}), SITES)
    fa, ra = 0, 1
    first, second = (SITES.first[rank] for rank in (0, 1))
    assert (own.run[1, first + fa], own.run[1, second + fa]) == (4, 8)
    assert (own.run[1, first + ra], own.run[1, second + ra]) == (4, 4)
    assert own.delay[1:].max() == 0


def test_a_host_that_issues_late_is_a_delay():
    """The host takes 4 s an op, so each op of 4 s or less begins when it is issued; the step lasts 19 ops × 4 s."""
    trace = predicted(host=4.0, beside_communication=1.0)
    assert trace.step == 76
    assert own_times(trace, SITES).delay[2].sum() > 0


@pytest.mark.parametrize(
    ('changed', 'kind', 'ranks', 'words'),
    [
        ({'slow': {1: 1 / 1.5}}, 'compute', (1,), 'rank 1 computes 1.50 times as long as predicted, all others wait'),
        ({'beside_communication': 0.25}, 'compute beside communication', (), 'compute beside communication takes 2.00'),
        ({'host': 5.0}, 'host', (), 'hosts issue ops late'),
    ],
)
def test_a_change_of_the_costs_is_named(changed, kind, ranks, words):
    found = diagnose(PROGRAM, worked_costs(PROGRAM), measured(predicted(**changed)))
    assert (found.causes[0].kind, found.causes[0].place.ranks) == (kind, ranks)
    assert sentence(found).startswith(words)
    assert found.explained == pytest.approx(1, abs=0.02)


def test_longer_messages_are_named_by_their_op():
    costs = worked_costs(PROGRAM)
    index = [op.name for op in PROGRAM.op_classes].index('RB')
    (message,) = costs.communication[index]
    slow = replace(costs, communication={**costs.communication, index: (replace(message, transfer=5.0),)})
    found = diagnose(PROGRAM, costs, measured(simulate(PROGRAM, slow, steps=4)))
    assert (found.causes[0].kind, found.causes[0].place.op) == ('communication', 'RB')
    # 1 s of latency and 5 instead of 3 s of transfer.
    assert found.causes[0].amount == pytest.approx(6 / 4)


def test_what_is_as_predicted_has_no_cause():
    found = diagnose(PROGRAM, worked_costs(PROGRAM), measured(predicted()))
    assert found.causes == ()
    assert sentence(found).startswith('no cause stands out')
    longer = replace(found, measured=1.2 * found.predicted)
    assert sentence(longer) == 'no single cause stands out, though the step takes 1.20 times as long as predicted'


def test_a_victim_is_never_named():
    """Rank 0 only waits for rank 1: whatever the strength, no cause is on rank 0."""
    for factor in (1.1, 1.3, 2.0):
        found = diagnose(PROGRAM, worked_costs(PROGRAM), measured(predicted(slow={1: 1 / factor})))
        assert {rank for rank, _ in found.marks} == {1}


@pytest.fixture(scope='module')
def bed():
    return Bed(next(iter(PLANS)))


@pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.__name__)
def test_sabotage_of_a_noisy_run_is_named(bed, kind):
    """One of a single op may be within the noise. `make prove-culprit` draws many."""
    drawn = [bed.run(kind, np.random.default_rng(seed)) for seed in some((3, 4), 2)]
    wrong = [(truth.what, sentence(found)) for truth, _, found in drawn if not bed.right(truth, found)]
    assert len(wrong) <= (kind.__name__ == 'slow_op'), wrong


SLOW_LINK = load_table(__file__, 'SLOW_LINK')


def test_where_few_causes_are_tried_late_hosts_do_not_keep_a_slow_link_from_it(monkeypatch):
    """As of many ranks: the host of rank 0 was blamed, which the link makes late."""
    monkeypatch.setattr('simpar.diagnosis.causes.SLOTS', 1)
    whole, half = (load_case(SLOW_LINK.format(share=share)).predict() for share in (1, 0.5))
    saved = replace(to_saved(half.trace), origin='measured')
    cause = compare(whole.trace, saved, costs=whole.costs).diagnosis.causes[0]
    assert (cause.kind, cause.place) == ('communication', Place(partition='tensor'))
    # Half the rate, and the same latency.
    assert 1.9 < cause.amount < 2.0


def test_noise_alone_is_not_named(bed):
    found = [bed.run(None, np.random.default_rng(seed))[2] for seed in some(range(5), 2)]
    assert [one.causes for one in found] == [()] * len(found)


def test_a_cause_says_where_and_how_much():
    def told(kind, amount=1.3, **place):
        cause = Cause(kind=kind, place=Place(**place), amount=amount, step=1.2)
        return sentence(Diagnosis(causes=(cause,), predicted=1.0, measured=1.25, world=4))

    share = ': 80 % of the difference'
    assert told('compute', ranks=(2,)) == f'rank 2 computes 1.30 times as long as predicted, all others wait{share}'
    assert told('compute', operator='matmul', phase='F') == (
        f'all ranks compute matmul of the forward 1.30 times as long as predicted{share}'
    )
    assert told('communication', partition='data', ranks=(0, 2)) == (
        f'communication over data between ranks 0 and 2 takes 1.30 times as long as predicted{share}'
    )
    assert told('latency', 0.002, partition='data') == (
        f'communication over data takes 2 ms longer an op than predicted, whatever its size{share}'
    )
    assert told('overlap', 1.0, ranks=(1,), streams=('compute', 'data')) == (
        f'streams compute and data of rank 1 run in turn, not at once as predicted{share}'
    )
    assert told('busy', 0.2, ranks=(3,)) == (
        'the machine of rank 3 is busy with something else, too: what it computes varies by 20 % from step to step'
    )


def test_the_cause_is_the_first_line_and_in_json():
    comparison = compare(predicted(), measured(predicted(slow={1: 0.5})), costs=worked_costs(PROGRAM))
    lines = render_comparison(comparison, colour=False).splitlines()
    assert lines[0].startswith('Rank 1 computes 2.00 times as long as predicted, all others wait')
    answer = json.loads(json.dumps(comparison_to_dict(comparison), allow_nan=False))
    assert answer['diagnosis']['causes'][0]['ranks'] == [1]
    assert answer['diagnosis']['sentence'].startswith('rank 1 computes')


def test_a_saved_prediction_brings_what_it_was_simulated_from(tmp_path):
    costs = worked_costs(PROGRAM)
    save_trace(tmp_path / 'p.json', predicted(), costs)
    loaded = load_trace(tmp_path / 'p.json')
    assert loaded.basis.program.hash == PROGRAM.hash
    again = simulate(loaded.basis.program, loaded.basis.costs, steps=4)
    assert np.array_equal(again.representatives[0].end_KS, predicted().representatives[0].end_KS)
    comparison = compare(loaded, measured(predicted(slow={1: 0.5})))
    assert comparison.diagnosis.causes[0].place.ranks == (1,)


@pytest.fixture
def files(tmp_path):
    """A saved prediction with its costs, one without, and a measurement in which rank 1 is slow."""
    save_trace(tmp_path / 'p.json', predicted(), worked_costs(PROGRAM))
    save_trace(tmp_path / 'old.json', predicted())
    save_trace(tmp_path / 'm.json', measured(predicted(slow={1: 1 / 1.5})))
    return tmp_path


def test_compare_names_the_cause_and_draws_it(files, printed, refused):
    words = ['compare', str(files / 'p.json'), str(files / 'm.json')]
    said = ' '.join(printed(*words, '--plot', files / 'new' / 'cause.svg').splitlines()[:3])
    assert said.startswith('The step (predicted 56 s, measured 78 s), the overlap')
    assert 'do not agree: rank 1 computes 1.50 times as long as predicted, all others wait' in said
    drawn = (files / 'new' / 'cause.svg').read_text(encoding='utf-8')
    assert drawn.startswith('<?xml')
    assert 'not a kind of picture' in refused(*words, '--plot', files / 'cause.bmp')


def test_a_prediction_without_costs_is_compared_without_a_cause(files, printed, refused):
    words = ['compare', str(files / 'old.json'), str(files / 'm.json')]
    assert printed(*words).startswith('predicted 56 s a step')
    assert 'simpar run --save' in refused(*words, '--plot', files / 'cause.png')
