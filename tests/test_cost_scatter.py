"""Scatter: products near measured ones that form no grid, and a device that is known by its class and a sweep."""

import csv
from dataclasses import replace
from statistics import median

import pytest
from tables import load_table

from simpar.cost.compute import DeviceCompute, by_products, waves
from simpar.cost.tables import Scatter
from simpar.profiles import load_profile, read_table
from simpar.program import OpClass

A100 = load_profile('a100-sxm-8')
BY_CLASS = load_table(__file__, 'BY_CLASS')


def power(x, y):
    return 1e-9 * x**0.7 * y**1.2


def rows_of(name):
    """Products in an order that no size tells."""
    rows = [row for row in read_table(load_profile(name).tables.matmul, 'matmul') if min(row[1], row[2]) >= 256]
    return [rows[place * 1021 % len(rows)] for place in range(len(rows))]


def missed(seconds, rows):
    return median(abs(seconds(*row[:3]) / row[3] - 1) for row in rows)


def formula(device):
    def seconds(m, n, k):
        return by_products(device, device.matrix['bf16'], (m, n, k), 2.0 * (m * n + n * k + m * k)).seconds

    return seconds


def test_scattered_points_are_exact_and_lend_their_factor_to_near_ones():
    scatter = Scatter([(10, 10, 3 * power(10, 10)), (1000, 20, 0.5 * power(1000, 20))], power)
    assert scatter(10, 10) == 3 * power(10, 10)
    assert 2 < scatter(11, 10) / power(11, 10) < 3
    assert 0.5 < scatter(900, 20) / power(900, 20) < 0.6


def test_one_point_tells_the_factor_of_all():
    scatter = Scatter([(10, 10, 2 * power(10, 10))], power)
    assert scatter(10**4, 10**4) / power(10**4, 10**4) == pytest.approx(2, rel=0.05)


def test_scattered_matmuls_near_measured_ones(record_property):
    """Rows in no grid, as a calibration of one workload's shapes gives: every fifth row of a table held out."""
    profile = load_profile('h100-sxm-8')
    model = formula(profile.device)
    rows = [r for r in read_table(profile.tables.matmul, 'matmul') if min(r[1], r[2]) >= 1024 and r[0] >= 256][::9]
    scatter = Scatter([row for place, row in enumerate(rows) if place % 5], model)
    errors = [abs(scatter(*row[:3]) / row[3] - 1) for row in rows[::5]]
    alone = [abs(model(*row[:3]) / row[3] - 1) for row in rows[::5]]
    record_property('median', median(errors))
    assert median(errors) < 0.06
    assert median(errors) <= median(alone)


def test_waves():
    known = waves(A100.device)
    assert known(128 * 108, 128, 4096)[0] == 0, 'a tile for each of 108 multiprocessors'
    half, _, _ = known(128 * 108 + 1, 128, 4096)
    assert half == pytest.approx(0.693, abs=1e-3), 'one tile more, and the last wave is empty but for it'
    assert waves(replace(A100.device, multiprocessors=None))(64, 64, 64) == ()


def test_products_that_fill_a_device_alike_lend_their_factors():
    """On A100 times step with the waves of tiles; of 300 products they tell what sizes alone do not."""
    rows = rows_of('a100-sxm-8')
    sweep, rest = rows[:300], rows[300:700]
    plain = missed(Scatter(sweep, formula(A100.device)), rest)
    by_waves = missed(Scatter(sweep, formula(A100.device), waves(A100.device)), rest)
    assert by_waves < 0.045
    assert by_waves < 0.9 * plain


def test_a_device_by_its_class_and_a_sweep(tmp_path, put):
    """A profile of an A100 that extends an H100's: its sheet, and 300 of its products in a table of its own."""
    rows = rows_of('a100-sxm-8')
    with (tmp_path / 'sweep.csv').open('w', newline='') as file:
        csv.writer(file).writerows([('m', 'n', 'k', 'seconds'), *rows[:300]])
    path = put('mine.yaml', BY_CLASS)
    profile = load_profile(str(path))
    compute = DeviceCompute(profile)

    def seconds(*size):
        m, n, k = map(int, size)
        op = OpClass('product', 'compute', 'matmul', 'F', {'m': m, 'n': n, 'k': k}, 2.0 * m * n * k,
                     2.0 * (m * n + n * k + m * k), 'bf16')  # fmt: skip
        return compute.seconds(op).seconds

    assert missed(seconds, rows[300:700]) < 0.05
    assert missed(formula(profile.device), rows[300:700]) > 0.07
