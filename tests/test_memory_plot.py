"""Memory over time as a figure: read from the figure itself."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from worked import worked_costs, worked_program

from simpar.engine import simulate
from simpar.memory import memory
from simpar.plot import write_figure
from simpar.plot.memory import memory_over_time

PROGRAM = worked_program()
WORKED = memory(simulate(PROGRAM, worked_costs(PROGRAM), steps=3))
SLOW = memory(simulate(PROGRAM, worked_costs(PROGRAM, slow={1: 0.5}), steps=3))


def layer(axes, colour):
    """Height over time of what an axes shows in a colour: {second: units} where it changes."""
    for collection in axes.collections:
        if isinstance(collection, PolyCollection) and to_hex(collection.get_facecolor()[0]).upper() == colour:
            corners = collection.get_paths()[0].vertices
            middles = np.unique(corners[:, 0])
            return {
                (left + right) / 2: np.ptp(corners[(corners[:, 0] == left) | (corners[:, 0] == right), 1])
                for left, right in pairwise(middles)
            }
    raise AssertionError(f'nothing is {colour}')


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_outline_is_the_total_and_the_peak_is_marked_with_its_op():
    """The worked program: 1512 bytes from 42 to 46 s."""
    (axes,) = memory_over_time(WORKED).axes
    outline = axes.lines[0]
    held = dict(zip(outline.get_xdata().tolist(), outline.get_ydata().tolist(), strict=True))
    assert max(outline.get_ydata()) == pytest.approx(1.512)
    assert (held[0], held[56]) == (pytest.approx(1.32), pytest.approx(1.416))
    assert texts(axes) == ['WA.c0, 1.512 KB']
    assert [mark.get_xydata().tolist() for mark in axes.lines if mark.get_marker() == 'v'] == [[[42, 1.512]]]


def test_gradients_have_a_layer_of_their_own():
    """128 bytes from 36 s, 256 from 42 s on."""
    (axes,) = memory_over_time(WORKED).axes
    heights = layer(axes, '#CC79A7')
    assert [heights[time] for time in sorted(heights) if time > 46] == pytest.approx([0.256] * 3)


def test_plan_and_baseline_share_their_scales_and_a_rank_can_be_chosen():
    figure = memory_over_time(WORKED, SLOW, names=('even', 'slow'), rank=1, size=2000.0)
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim() == (0, 100)
    assert above.get_ylim() == below.get_ylim()
    assert above.get_title(loc='left').startswith('slow: peak 1.512 KB (75.6 % of the device)')
    assert below.get_title(loc='left').endswith('rank 1')
    assert 'device: 2 KB' in texts(above)
    assert figure.texts[0].get_text() == 'even: 1.512 KB at its peak; slow: 1.512 KB'


def test_the_device_is_left_out_where_it_would_press_the_rest_flat():
    (axes,) = memory_over_time(WORKED, size=32e9).axes
    assert not any('device' in text for text in texts(axes))
    assert axes.get_ylim()[1] < 2


def test_the_same_figure_gives_the_same_bytes(tmp_path):
    for name in ('one.png', 'two.png'):
        write_figure(tmp_path / name, memory_over_time(WORKED, SLOW))
    assert (tmp_path / 'one.png').read_bytes() == (tmp_path / 'two.png').read_bytes()
