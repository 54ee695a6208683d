"""Interpolation: exact on rows, rising where the rows rise, close on rows that were held out."""

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.cost.tables import Axis, Curve, Grid, is_grid
from simpar.profiles import load_profile, read_table

SIZES = st.floats(1, 1e6)


def power(x, y):
    return 1e-9 * x**0.7 * y**1.2


def test_a_power_law_is_met_everywhere_between_rows():
    grid = Grid([Axis('x'), Axis('y')], [(x, y, power(x, y)) for x in (1, 10, 70) for y in (2, 9)])
    assert grid(33, 5) == pytest.approx(power(33, 5))


def test_edges():
    grid = Grid([Axis('x'), Axis('y', 0.5, 2)], [(x, y, 1e-6 * x * y) for x in (4, 8) for y in (4, 8)])
    assert grid(1, 4) == pytest.approx(grid(4, 4)), 'a smaller size takes as long as the smallest'
    assert grid(80, 4) == pytest.approx(10 * grid(8, 4)), 'a larger one takes its share more'
    assert grid(4, 1) == pytest.approx(grid(4, 4) / 2)
    assert grid(4, 32) == pytest.approx(16 * grid(4, 8))


def test_a_ragged_grid():
    grid = Grid([Axis('x'), Axis('y')], [(1, 1, 1e-6), (1, 2, 2e-6), (2, 1, 2e-6)])
    assert grid(1, 2) == pytest.approx(2e-6)
    assert grid(2, 2) == pytest.approx(4e-6), 'beyond the only row of x = 2'


def test_a_point_measured_twice_counts_once():
    assert Grid([Axis('x')], [(1, 3e-6), (1, 2e-6)])(1) == pytest.approx(3e-6)


@given(rows=st.dictionaries(st.integers(1, 10**9), st.floats(1e-7, 10), min_size=1, max_size=12))
def test_a_curve_is_exact_on_its_rows(rows):
    curve = Curve(rows.items())
    for size, seconds in rows.items():
        assert curve(size) == pytest.approx(seconds, rel=1e-9)
    assert curve.alpha == min(rows.values())


@given(
    sizes=st.sets(st.integers(1, 10**6), min_size=1, max_size=8),
    steps=st.lists(st.floats(0, 1), min_size=8, max_size=8),
    one=SIZES,
    other=SIZES,
)
def test_a_curve_of_rising_rows_rises_and_best_bounds_it(sizes, steps, one, other):
    rows, seconds = [], 1e-6
    for size, step in zip(sorted(sizes), steps, strict=False):
        seconds += step
        rows.append((size, seconds))
    curve = Curve(rows)
    low, high = sorted((one, other))
    assert curve(low) <= curve(high) * (1 + 1e-12)
    assert curve.best * high <= curve(high) * (1 + 1e-9)


@given(
    table=st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=3, max_size=3),
    a=st.tuples(SIZES, SIZES),
    b=st.tuples(SIZES, SIZES),
)
def test_a_grid_of_rising_rows_rises(table, a, b):
    axis = [1, 100, 10_000]
    seconds = [
        [1e-6 * math.exp(sum(map(sum, (r[: j + 1] for r in table[: i + 1])))) for j in range(3)] for i in range(3)
    ]
    grid = Grid([Axis('x'), Axis('y')], [(axis[i], axis[j], seconds[i][j]) for i in range(3) for j in range(3)])
    low = tuple(map(min, a, b))
    high = tuple(map(max, a, b))
    assert grid(*low) <= grid(*high) * (1 + 1e-12)


def test_is_grid():
    rows = [(x, y, 1.0) for x in (1, 2) for y in (3, 4)]
    assert is_grid(rows)
    assert not is_grid(rows[:-1])


def held_out(rows, places, build):
    """Median and 90th percentile of the error on rows, every other inner value of an axis held out."""
    values = sorted({row[places] for row in rows})
    out = set(values[1:-1:2])
    model = build([row for row in rows if row[places] not in out])
    errors = sorted(abs(model(*row[:-1]) / row[-1] - 1) for row in rows if row[places] in out)
    return median(errors), errors[len(errors) * 9 // 10]


MATMUL = [Axis('m'), Axis('n'), Axis('k')]


@pytest.mark.parametrize(
    ('name', 'axis', 'bound'),
    [
        ('h100-sxm-8', 0, 0.06),
        ('h100-sxm-8', 1, 0.06),
        ('h100-sxm-8', 2, 0.06),
        ('a100-sxm-8', 0, 0.10),
        ('h200-sxm-8', 0, 0.06),
    ],
)
def test_matmuls_that_were_held_out(name, axis, bound, record_property):
    rows = [row for row in read_table(load_profile(name).tables.matmul, 'matmul') if min(row[1], row[2]) >= 256]
    middle, most = held_out(rows, axis, lambda kept: Grid(MATMUL, kept))
    record_property('median', middle)
    record_property('p90', most)
    assert middle < bound
    assert most < 0.3


@pytest.mark.parametrize(('name', 'bound'), [('h100-sxm-8', 0.08), ('a100-sxm-8', 0.08), ('h200-sxm-8', 0.08)])
def test_attention_that_was_held_out(name, bound, record_property):
    axes = [Axis('queries', 0, 0), Axis('head_dim', 0.5), Axis('sequence', 0, 2), Axis('pairs')]
    rows = read_table(load_profile(name).tables.attention, 'attention')
    middle, most = held_out(rows, 3, lambda kept: Grid(axes, kept))
    record_property('median', middle)
    record_property('p90', most)
    assert middle < bound
    assert most < 0.3


@pytest.mark.parametrize(('name', 'bound'), [('h100-sxm-8', 0.08), ('a100-sxm-8', 0.12), ('h200-sxm-8', 0.08)])
def test_messages_that_were_held_out(name, bound, record_property):
    rows = read_table(load_profile(name).tables.collective, 'collective')
    errors = []
    for group in {row[:3] for row in rows if row[2] == 1}:
        curve = [row[3:] for row in rows if row[:3] == group]
        kept = Curve(point for place, point in enumerate(curve) if place % 2 == 0)
        errors += [abs(kept(size) / seconds - 1) for size, seconds in curve[1::2]]
    record_property('median', median(errors))
    assert median(errors) < bound
    assert max(errors) < 0.6
