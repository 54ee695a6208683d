"""Quantities: text with a unit becomes an SI float; the grid of times."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import load_table

from simpar.units import EXAMPLES, UNITS, format_rate, format_size, format_time, parse, quantise


@pytest.mark.parametrize(('text', 'kind', 'value'), load_table(__file__, 'test_a_quantity_is_read_in_si'))
def test_a_quantity_is_read_in_si(text, kind, value):
    if value is None:
        with pytest.raises(ValueError, match='unknown unit'):
            parse(text, kind)
    else:
        assert parse(text, kind) == value


@pytest.mark.parametrize('kind', EXAMPLES)
@pytest.mark.parametrize(
    'wrong', [3, 3.5, True, None, [], '3', 'fast', '', '3 parsecs', '-3 s', 'nan s', '1e400 GB', 'GB']
)
def test_what_is_no_quantity_is_refused_with_an_example(kind, wrong):
    with pytest.raises(ValueError, match='write'):
        parse(wrong, kind)


@given(st.decimals(min_value='0.001', max_value=10**6, places=3), st.sampled_from(sorted(UNITS['time'])))
def test_times_are_read_to_the_nearest_float(number, unit):
    exact = {'s': 0, 'ms': -3, 'us': -6, 'µs': -6, 'ns': -9}[unit]
    assert parse(f'{number} {unit}', 'time') == float(number.scaleb(exact))


@given(st.floats(0, 1e3))
def test_the_grid_is_two_to_the_minus_forty_seconds(seconds):
    on_grid = quantise(seconds)
    assert (Decimal(on_grid) * 2**40) % 1 == 0
    assert abs(on_grid - seconds) <= 2.0**-41
    assert quantise(on_grid) == on_grid


def test_people_read_them_back():
    assert format_time(0) == '0 s'
    assert format_time(0.0125) == '12.5 ms'
    assert format_size(1.5e6) == '1.5 MB'
    assert format_rate(2e11) == '200 GB/s'
