"""Values in notebooks: small on the screen, what-ifs by keyword, tables of pandas, sliders that are moved."""

import base64
import gzip
import re
from pathlib import Path

import pytest
from tables import load_table

import simpar
from simpar.errors import ScheduleError
from simpar.trace_files import save_trace

EXAMPLES = Path(__file__).parent.parent / 'examples'
TEXT = load_table(__file__, 'TEXT')


@pytest.fixture(scope='module')
def case():
    return simpar.load_case(TEXT)


def test_a_case_comes_from_a_path_a_text_or_a_dict(case, put):
    import yaml

    path = put('schedule.yaml', TEXT)
    assert simpar.load_case(path).program.hash == case.program.hash
    assert simpar.load_case(str(path)).program.hash == case.program.hash
    assert simpar.load_case(yaml.safe_load(TEXT)).program.hash == case.program.hash
    with pytest.raises(ScheduleError, match=r'schedule:8: plan.copeis: unknown key; did you mean copies'):
        simpar.load_case(TEXT.replace('copies', 'copeis'))


def test_what_if_is_the_file_with_other_values_against_the_file(case):
    other = case.what_if(copies=4)
    assert other.program.hash == simpar.load_case(TEXT, ['plan.copies=4']).program.hash
    assert other.baseline.program.hash == case.program.hash
    assert other.names == ('copies 4', 'copies 2')
    more = case.what_if(nodes=2, hidden=2048)
    assert (more.cluster.world, more.workload.model.hidden) == (16, 2048)


def test_what_if_says_what_is_wrong(case):
    for changes, told in (
        ({'copeis': 4}, 'did you mean copies'),
        ({'copies': 3}, 'write a multiple of'),
        ({}, 'no key was given'),
    ):
        with pytest.raises(ScheduleError, match=told):
            case.what_if(**changes)


def test_a_loop_may_pass_over_the_values_that_are_there(case):
    gains = [case.what_if(copies=count).predict().gain for count in (1, 2, 4)]
    assert gains[1] == 0
    assert gains[0] != 0 != gains[2]
    slower = case.what_if(**{'cluster.links.nvlink': 0.5})
    assert slower.names == ('cluster.links.nvlink 0.5', 'cluster.links.nvlink 1')


def test_cases_side_by_side_are_called_by_what_differs(case):
    def plain(**changes):
        found = [f'{key}={value}' for key, value in changes.items()]
        return simpar.load_case(TEXT, ['against={}', *(f'plan.{one}' for one in found)])

    table = str(simpar.compare(plain(copies=1), plain(copies=2), plain(copies=2)))
    assert 'copies 1' in table
    assert 'copies 2 (2)' in table
    assert 'copies 2 (3)' in table


def test_steps_of_other_batches_are_compared_by_sample(case):
    twice = case.what_if(batch=32).predict()
    assert twice.gain == pytest.approx((twice.baseline.step / 16) / (twice.step / 32) - 1, abs=1e-15)
    assert 'tokens a second' in twice._repr_html_()


def test_values_are_small_and_pictures_show_themselves(case):
    prediction = case.predict()
    values = (case, prediction, case.cluster.profile)
    assert all(len(repr(value)) < 200 for value in (*values, case.cluster, case.plan))
    # With what its framework has where the file is silent.
    assert repr(case.schedule.plan).startswith('Plan(tensor=8, ')
    assert 'copies=2' in repr(case.schedule.plan)
    cards = [value._repr_html_() for value in values]
    assert all(len(card) < 300_000 for card in cards)
    assert 'faster than copies 1' in cards[1] or 'slower than copies 1' in cards[1]
    assert 'data:image/png;base64,' in cards[1]
    assert prediction.timeline()._repr_png_().startswith(b'\x89PNG')
    answer = simpar.load_sweep(EXAMPLES / 'multi_copy.yaml', sweeps=['plan.copies=1,2']).predict()
    assert answer._repr_html_().count('<tr') == 3


def test_no_value_prints_a_program():
    prediction = simpar.load_case(EXAMPLES / 'transformer_h100.yaml').predict()
    parts = ('trace', 'program', 'memory', 'metrics', 'critical_path')
    assert max(len(repr(getattr(prediction, part))) for part in parts) < 400
    assert {'load_case', 'compare', 'sliders'} <= set(dir(simpar))


def test_the_interactive_page_is_packed_and_shows_the_ranks_that_are_asked_for():
    slow = ['cluster={profile: h100-sxm-8, nodes: 8, slow: {0: 0.9, 9: 0.95, 63: 0.7}}', 'plan.data=8']
    prediction = simpar.load_case(EXAMPLES / 'transformer_h100.yaml', slow).predict()

    def page(*ranks):
        shown = prediction.interactive(*ranks)._repr_html_()
        assert len(shown) < 400_000
        return gzip.decompress(base64.b64decode(re.search(r"atob\('([^']+)'\)", shown)[1])).decode()

    assert re.findall(r'"label":"(rank \d+)', page(9, 63))[:2] == ['rank 9', 'rank 63']
    assert '"label":"rank 63' in page()
    with pytest.raises(ValueError, match='there is no rank 64; write ranks from 0 to 63'):
        prediction.interactive(64)


def test_a_case_stands_beside_a_measurement(case, tmp_path):
    prediction = case.predict()
    save_trace(tmp_path / 'measured.json', prediction.trace, prediction.costs)
    beside = simpar.compare(case, tmp_path / 'measured.json')
    assert beside.comparison.step.error == 0
    assert 'data:image/png;base64,' in beside._repr_html_()
    assert 'ops that err most' in str(beside)
    with pytest.raises(TypeError, match='beside one case'):
        simpar.compare(case, tmp_path / 'measured.json', case)


def test_cases_stand_side_by_side(case):
    table = simpar.compare(case, case.what_if(copies=1), case.what_if(copies=4))
    steps = [prediction.step for prediction in table.predictions]
    assert table.fastest.step == min(steps)
    assert len(re.findall('copies [124]', str(table).splitlines()[2])) == 3
    assert '<table>' in table._repr_html_()
    with pytest.raises(ValueError, match='nothing to compare'):
        simpar.compare_cases()


def test_tables_of_pandas_hold_what_the_prediction_says(case):
    prediction = case.predict()
    streams = simpar.to_dataframe(prediction)
    rank = prediction.metrics.steady.ranks[0]
    assert streams['busy'].tolist() == [stream.busy for stream in rank.streams]
    spans = simpar.to_dataframe(prediction, 'spans')
    assert spans['end'].max() == prediction.trace.step_ends[-1]
    memory = simpar.to_dataframe(prediction, 'memory')
    assert memory.drop(columns='time').sum(axis=1).max() == prediction.memory.peak
    with pytest.raises(ValueError, match='streams, spans or memory'):
        simpar.to_dataframe(prediction, 'ops')
    answer = simpar.load_sweep(EXAMPLES / 'multi_copy.yaml', sweeps=['plan.copies=1,2']).predict()
    assert simpar.to_dataframe(answer)['step'].tolist() == [result.step for result in answer.results]


def test_a_moved_slider_predicts_again_and_a_wrong_place_says_why(case):
    sliders = simpar.sliders(case, copies=[1, 2, 4, 3])
    assert sliders.chosen['copies'].value == 2
    before = sliders.step.value
    sliders.chosen['copies'].value = 4
    assert sliders.step.value != before
    wanted = simpar.load_case(TEXT, ['plan.copies=4', 'against={}']).predict().step
    assert simpar.units.format_time(wanted) in sliders.step.value
    sliders.explain()
    assert 'copies 2' in sliders.answer.value
    sliders.chosen['copies'].value = 3
    assert 'write a multiple of' in sliders.step.value
