"""The picture of a pipeline: what it shows, read from the view and from the figure itself."""

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from pipeline_traces import B, F, plan_of, trace_of

from simpar.interval_sets import length, minus, union
from simpar.lower.lower import order_of
from simpar.metrics import metrics
from simpar.plot import timeline
from simpar.plot.pipeline_panel import COLOURS, LANE, pipeline_view

NAMES = ('plan', 'baseline')


def traced(order='1f1b', **more):
    costs = {name: more.pop(name) for name in ('send', 'collective', 'update') if name in more}
    return trace_of(plan_of(order, **more), **costs)[0]


def faces(axes, colour):
    """(begin, end, bottom, top) of what an axes shows in a colour, in its units."""
    found = []
    for collection in axes.collections:
        if isinstance(collection, PolyCollection):
            paths = collection.get_paths()
            colours = np.resize(collection.get_facecolor(), (len(paths), 4))
            for path, face in zip(paths, colours, strict=True):
                if face == pytest.approx(to_rgba(colour)):
                    (left, low), (right, high) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                    found.append((left, right, low, high))
    return sorted(found)


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_boxes_stand_where_they_do_in_the_papers():
    """GPipe on two ranks, two micro-batches, messages that take no time: by hand."""
    rows = pipeline_view(traced('gpipe'), 'plan').rows
    labels = [[box.labels[0][:3] for box in row.boxes] for row in rows]
    times = [[time for box in row.boxes for time in (box.begin, box.end)] for row in rows]
    for stage in (0, 1):
        assert labels[stage] == [(stage, 'F', 0), (stage, 'F', 1), (stage, 'B', 0), (stage, 'B', 1)]
    turned = 3 * F
    assert times[0] == pytest.approx(
        [0, F, F, 2 * F, turned + B, turned + 2 * B, turned + 2 * B, turned + 3 * B], abs=1e-9
    )
    assert times[1] == pytest.approx([F, 2 * F, 2 * F, turned, turned, turned + B, turned + B, turned + 2 * B])


@pytest.mark.parametrize('order', ['1f1b', 'interleaved-1f1b', 'zb-h1', 'zb-v', 'dualpipe-v'])
def test_a_row_has_the_actions_of_its_pipeline_rank_in_order(order):
    plan = plan_of(order, ranks=2, micro_batches=4, chunks=2 if order == 'interleaved-1f1b' else 0, tensor=2)
    view = pipeline_view(trace_of(plan, collective=0.125)[0], 'plan')
    for row, actions in zip(view.rows, order_of(plan).actions, strict=True):
        shown = [[(label.stage, label.kind, label.micro_batch) for label in box.labels] for box in row.boxes]
        wanted = [[(part.stage, part.kind, part.micro_batch) for part in action.parts] for action in actions]
        if shown[-1] == shown[0]:  # cut at the end of the window
            shown.pop()
        first = wanted.index(shown[0])
        assert shown == wanted[first:] + wanted[:first]


pictures = st.fixed_dictionaries(
    {
        'order': st.sampled_from(['gpipe', '1f1b', 'interleaved-1f1b', 'zb-h1', 'zb-v', 'dualpipe-v']),
        'micro_batches': st.sampled_from([4, 6]),
        'tensor': st.sampled_from([1, 2]),
        'copies': st.sampled_from([1, 2]),
        'send': st.sampled_from([0.0, 1.0]),
        'collective': st.sampled_from([0.0, 0.25]),
        'update': st.sampled_from([0.0, 0.5]),
    }
)


@draws(25)
@given(pictures)
def test_parts_are_the_seconds_of_the_metrics(picture):
    """Of every rank: parts hold all computing of the actions and no pause that could be seen; the rest is exposed,
    an update, or nothing."""
    trace = traced(**picture)
    steady = metrics(trace).steady
    for row in pipeline_view(trace, 'plan').rows:
        rank = steady.rank(row.metrics.rank)
        parts = [part for box in row.boxes for part in box.parts]
        for part in parts:
            assert sum(layer.share for layer in part.layers) == pytest.approx(1)
        stretches = union(np.array([part[:2] for part in parts]).reshape(-1, 2))
        actions = union(np.concatenate([mine for kind, mine in row.computing.items() if kind != 'U']))
        assert length(minus(actions, stretches)) == 0
        pauses = minus(stretches, actions)
        assert all(end - begin <= trace.step / 400 for begin, end in pauses.tolist())
        assert sum(length(mine) for mine in row.computing.values()) == pytest.approx(rank.compute)
        assert length(row.exposed) == rank.exposed
        assert all(one.end <= two.begin for one, two in zip(row.boxes[:-1], row.boxes[1:], strict=True))


def test_recomputing_waiting_and_gradients_are_parts_of_a_backward():
    """Of a box of 4 s of recomputing, a wait, and 8 s of gradients, only what is computed has a colour."""
    trace = traced(micro_batches=1, recompute='full', tensor=2, collective=4.0)
    backward = next(box for box in pipeline_view(trace, 'plan').rows[0].boxes if box.labels[0].kind == 'B')
    kinds = [layer.kind for part in backward.parts for layer in part.layers]
    assert {'R', 'B'} == set(kinds)
    computed = sum(part.end - part.begin for part in backward.parts)
    assert computed < 0.8 * (backward.end - backward.begin)
    axes = timeline(trace).axes[0]
    assert faces(axes, COLOURS['R'])
    legend = [text.get_text() for text in timeline(trace).legends[0].get_texts()]
    assert 'recomputed' in legend
    assert 'waits in its action' in legend


def test_windows_of_two_plans_begin_at_the_same_micro_batch():
    plan, baseline = (traced(order, ranks=4, micro_batches=80, send=1.0) for order in ('1f1b', 'gpipe'))
    figure = timeline(plan, baseline, names=NAMES)
    assert len(figure.axes) == 4
    theirs, mine = (axes.get_xlim()[0] for axes in figure.axes[2:])
    box = next(box for box in pipeline_view(plan, '').rows[0].boxes if box.begin >= mine)
    same = next(one for one in pipeline_view(baseline, '').rows[0].boxes if one.labels == box.labels)
    assert same.begin - theirs == pytest.approx(box.begin - mine)


def test_a_window_that_would_repeat_most_of_the_step_is_not_shown():
    assert len(timeline(traced('interleaved-1f1b', ranks=4, micro_batches=8, chunks=2)).axes) == 1


def test_plan_stands_below_its_baseline_on_one_scale():
    figure = timeline(traced(micro_batches=4), traced('gpipe', ranks=4, micro_batches=4), names=NAMES)
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    assert [axes.get_title(loc='left').partition(':')[0] for axes in figure.axes] == ['baseline', 'plan']
    assert [label.get_text() for label in below.get_yticklabels()] == ['pipeline 0\nstage 0', 'pipeline 1\nstage 1']
    assert len(above.get_yticklabels()) == 4
    assert figure.texts[0].get_text().startswith('plan: 60 s a step, ')


def test_boxes_have_the_numbers_of_their_micro_batches_in_letters_that_can_be_read():
    few = timeline(traced(micro_batches=2)).axes[0]
    assert [words(few).count(number) for number in '01'] == [4, 4]
    many = timeline(traced(ranks=4, micro_batches=24)).axes[0]
    assert {str(number) for number in range(24)} <= set(words(many))
    for text in (*few.texts, *many.texts):
        assert text.get_fontsize() >= 6


def test_colours_tell_forward_backward_and_weights():
    whole = timeline(traced(micro_batches=2)).axes[0]
    assert len(faces(whole, COLOURS['F'])) == len(faces(whole, COLOURS['B'])) == 4
    apart = timeline(traced('zb-h1', micro_batches=2, update=0.5)).axes[0]
    assert len(faces(apart, COLOURS['I'])) == len(faces(apart, COLOURS['W'])) == 4
    assert faces(apart, COLOURS['U'])
    legend = [text.get_text() for text in timeline(traced('zb-h1')).legends[0].get_texts()]
    assert legend == ['F forward', 'I gradient of the input', 'W gradient of the weights']


def test_later_stages_of_a_rank_are_lighter_and_copies_lie_below_one_another():
    view = timeline(traced('interleaved-1f1b', micro_batches=2, chunks=2)).axes[0]
    assert len(faces(view, COLOURS['F'])) == 4
    figure = timeline(traced(micro_batches=2, copies=2))
    full = faces(figure.axes[0], COLOURS['F'])
    assert len(full) == 4
    heights = {round(high - low, 6) for _, _, low, high in full}
    assert round((0.84 - LANE) / 2, 6) in heights
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-1] == 'layers in a box: copies'


def test_exposed_communication_is_seen_between_boxes():
    """Messages of 2 s."""
    axes = timeline(traced(micro_batches=1, send=2.0)).axes[0]
    between = faces(axes, COLOURS['exposed'])
    assert len(between) == 4
    assert {round(end - begin, 6) for begin, end, _, _ in between} == {2}


def test_overlapped_actions_share_a_box_and_have_a_label_each():
    trace = traced('dualpipe-v', ranks=2, micro_batches=6, tensor=2, collective=0.5)
    doubles = [box for row in pipeline_view(trace, 'plan').rows for box in row.boxes if len(box.labels) == 2]
    assert doubles
    for box in doubles:
        forward, backward = box.labels
        assert (forward.kind, backward.kind) == ('F', 'B')
        shares = [box.place(label).share for label in (forward, backward)]
        assert 0 < sum(shares) <= 1
    # In a part where both are computed throughout, they fill it by their seconds.
    both = [box for box in doubles if len(box.parts) == 1 and box.begin > 0 and box.end < trace.step]
    assert both
    for box in both:
        forward, backward = (box.place(label).share for label in box.labels)
        assert backward / forward == pytest.approx(B / F)


def test_bubble_and_exposed_communication_stand_at_every_row():
    """Two ranks, one micro-batch: half of the time of 24 s is bubble."""
    axes = timeline(traced(micro_batches=1)).axes[0]
    assert words(axes).count('50 %') == 2
    assert 'bubble 50 %, exposed communication 0 %' in axes.get_title(loc='left')


def test_many_micro_batches_are_shown_as_shares_and_a_window_of_boxes():
    figure = timeline(traced(ranks=2, micro_batches=300))
    whole, window = figure.axes
    begin, end = window.get_xlim()
    assert whole.get_xlim()[0] <= begin < end <= whole.get_xlim()[1]
    assert 'shares of time' in whole.get_title(loc='left')
    assert len([text for text in words(window) if text]) > 20
    assert len(whole.collections) < 20


def test_one_rank_is_shown_with_its_streams_if_asked_for():
    axes = timeline(traced(ranks=3, micro_batches=2, send=1.0), rank=1).axes[0]
    assert sorted(label.get_text() for label in axes.get_yticklabels()) == ['compute', 'receives', 'sends']


def test_a_baseline_without_a_pipeline_is_a_row_of_its_own():
    figure = timeline(traced(micro_batches=2), traced(ranks=1, micro_batches=2), names=NAMES)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ['every rank']
