"""The timeline: what it shows, read from the figure itself."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from pictures import check
from worked import worked_costs, worked_program

from simpar import Plan, Transformer, Workload, simulate
from simpar.cost.costs import Communication
from simpar.headline import headline
from simpar.interval_sets import length, union
from simpar.lower import lower
from simpar.metrics import metrics
from simpar.plot import timeline, write_figure
from simpar.plot.panel import COLOURS, KINDS, share, view

PROGRAM = worked_program()
NAMES = ('copies 2', 'one stream')


def worked(**costs):
    return simulate(PROGRAM, worked_costs(PROGRAM, **costs))


def large():
    """A step of more ops than a row has room for."""
    workload = Workload(model=Transformer(layers=24, hidden=8, heads=2, vocab=16, sequence=4), batch=8)
    program = lower(workload, Plan(tensor=2, copies=2), 2)
    costs = worked_costs(program)
    message = (Communication(alpha=1.0, transfer=2.0),)
    ops = program.op_classes
    return simulate(
        program,
        replace(
            costs,
            compute=np.array([1.0 if op.kind == 'compute' else 0.0 for op in ops]),
            communication={index: message for index, op in enumerate(ops) if op.kind == 'collective'},
        ),
        steps=2,
    )


def bars(axes, colour):
    """(begin, end) of what an axes shows in a colour, in its units."""
    found = []
    for collection in axes.collections:
        if isinstance(collection, PolyCollection):
            paths = collection.get_paths()
            faces = np.resize(collection.get_facecolor(), (len(paths), 4)).tolist()
            shown = [path.vertices[:, 0] for path, face in zip(paths, faces, strict=True) if face == [*to_rgba(colour)]]
            found += [(times.min(), times.max()) for times in shown]
    return sorted(found)


def test_bars_stand_where_the_page_has_them():
    """Step 3 is step 1, less the host's 0.125 s; the first copy has the full colour."""
    axes = timeline(worked()).axes[0]
    assert bars(axes, COLOURS['F']) == [(0, 4), (10, 16), (22, 24)]
    assert bars(axes, COLOURS['W']) == [(36, 42), (42, 46)]
    assert bars(axes, COLOURS['U']) == [(54, 56)]
    assert bars(axes, COLOURS['hidden']) == [(4, 8), (16, 20), (29, 33)]
    assert bars(axes, COLOURS['exposed']) == []


def test_exposed_communication_is_marked():
    """On the page with rank 1 at half speed: rank 0's bars marked as exposed last as long as its metric says."""
    trace = worked(slow={1: 0.5})
    exposed = bars(timeline(trace, rank=0).axes[0], COLOURS['exposed'])
    assert sum(end - begin for begin, end in exposed) == 55
    assert view(trace, 'plan').rank == 1  # unless asked, the rank that ends last


def test_plan_and_baseline_share_one_scale():
    fast, slow = worked(beside_communication=1.0), worked()
    figure = timeline(fast, slow, names=NAMES)
    assert [axes.get_xlim() for axes in figure.axes] == [(0, 56), (0, 56)]
    assert [axes.get_title(loc='left').partition(':')[0] for axes in figure.axes] == ['one stream', 'copies 2']
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert '12 s less' in texts
    assert figure.texts[0].get_text() == 'copies 2: 44 s a step, 27 % faster than one stream (56 s)'


def test_labels_stand_where_they_fit():
    texts = {text.get_text() for text in timeline(worked()).axes[0].texts}
    assert {'FA c0', 'FA c1', 'all-reduce c0', 'L c0'} <= texts


@pytest.mark.parametrize(
    ('plan', 'baseline', 'words'),
    [
        (1.0, None, 'a: 1 s a step'),
        (1.0, 1.5, 'a: 1 s a step, 50.0 % faster than b (1.5 s)'),
        (2.0, 1.0, 'a: 2 s a step, 100.0 % slower than b (1 s)'),
        (5.0, 1.0, 'a: 5 s a step, 5.0 times as slow as b (1 s)'),
        (1.0, 30.0, 'a: 1 s a step, 30.0 times as fast as b (30 s)'),
        (1.0, 1.0001, 'a: 1 s a step, as fast as b (1 s)'),
    ],
)
def test_the_headline_is_the_answer(plan, baseline, words):
    assert headline(('a', plan), None if baseline is None else ('b', baseline)) == words


def test_a_large_step_is_shown_as_shares_and_a_window_op_by_op():
    trace = large()
    assert view(trace, 'plan').most_bars > 320
    whole, window = timeline(trace).axes
    begin, end = window.get_xlim()
    assert 0 < begin < end < trace.step
    assert 'shares of time' in whole.get_title(loc='left')
    assert 20 < len(window.texts) < 200
    assert len(whole.texts) == 0
    assert sum(len(collection.get_paths()) for collection in whole.collections) < 50


def test_windows_of_plan_and_baseline_show_the_same_op_and_no_words_are_cut_or_overlap():
    """The baseline waits before its first op, so that the same op comes later in it."""
    plan = large()
    later = replace(
        plan,
        representatives=tuple(
            replace(one, arrive_KS=one.arrive_KS * 1.5, start_KS=one.start_KS * 1.5, end_KS=one.end_KS * 1.5)
            for one in plan.representatives
        ),
    )
    figure = timeline(plan, later, names=('the plan', 'the baseline'))
    *_, baseline, own = figure.axes
    assert baseline.get_xlim()[0] == pytest.approx(1.5 * own.get_xlim()[0], rel=0.015)
    check(figure)


@pytest.mark.parametrize('slow', [{}, {1: 0.5}])
def test_rows_show_what_the_metrics_count(slow):
    trace = worked(slow=slow)
    rank = metrics(trace).steady.ranks[0]
    shown = view(trace, 'plan', rank=0)
    assert length(shown.computing) == rank.compute
    assert sum(length(shown.intervals('exposed', row)) for row in range(2)) == rank.exposed
    for phase in 'FIWU':
        assert length(shown.intervals(phase, 0)) == rank.phases[phase]


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), max_size=8)


@given(spans)
def test_shares_over_time_are_the_covered_part_of_each_window(pairs):
    """Against counting quarters of a second; a window of 4 s around each moment, cut off at the ends."""
    merged = union(np.array(pairs, dtype=np.float64).reshape(-1, 2))
    times = np.arange(0.0, 41.0)
    quarters = np.arange(0.125, 40, 0.25)
    inside = np.array([any(a < q < b for a, b in pairs) for q in quarters], dtype=float)
    for time, value in zip(times, share(merged, times, 4.0), strict=True):
        near = abs(quarters - time) < 2
        assert value == pytest.approx(inside[near].mean(), abs=1e-9)


def test_exposed_communication_is_told_apart_without_colours():
    """It is hatched; nothing else is."""
    collections = timeline(worked(slow={1: 0.5}), rank=0).axes[0].collections
    hatched = {
        tuple(face) for collection in collections if collection.get_hatch() for face in collection.get_facecolor()
    }
    assert hatched == {to_rgba(COLOURS['exposed'])}
    assert list(COLOURS) == list(KINDS)


@pytest.mark.parametrize('suffix', ['png', 'svg', 'pdf'])
def test_the_same_figure_gives_the_same_bytes(tmp_path, suffix):
    paths = [tmp_path / f'{name}.{suffix}' for name in 'ab']
    for path in paths:
        write_figure(path, timeline(worked(), worked(host=8.0), names=NAMES))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len(paths[0].read_bytes()) > 1000


def test_an_unknown_format_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match='xyz'):
        write_figure(tmp_path / 'plot.xyz', timeline(worked()))
    assert list(tmp_path.iterdir()) == []


def test_drawing_leaves_the_global_state_alone():
    before = dict(mpl.rcParams)
    timeline(worked())
    assert dict(mpl.rcParams) == before


def test_a_name_that_ends_in_dark_gives_a_dark_ground_with_light_letters(tmp_path):
    import matplotlib.image

    figures = [timeline(simulate(worked_program(), worked_costs(worked_program()))) for _ in range(2)]
    for figure, name, least, most in zip(figures, ('out.png', 'out.dark.png'), (0.9, 0.0), (1.0, 0.15), strict=True):
        write_figure(tmp_path / name, figure)
        picture = matplotlib.image.imread(tmp_path / name)[..., :3]
        assert least <= float(picture[0, 0].mean()) <= most
        # The title's letters are the furthest from the ground.
        title = picture[:60, : picture.shape[1] // 2].mean(axis=2)
        assert float(title.max() - title.min()) > 0.7
