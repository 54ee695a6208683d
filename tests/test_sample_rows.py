"""A sample of published rows is predicted no worse than recorded: ten rows; `make prove NAME=every` takes sixty.

Who changes an answer on purpose runs `python -m tests.accuracy_page --scores`, which records all rows anew and prints
what changed in each set; the commit says why.
"""

from hashlib import sha256
from statistics import fmean

import pytest
from every import EVERY

from simpar.files import read_csv
from simpar.shipped import measured_folder
from simpar.validate.rows import read_rows
from simpar.validate.run import outcomes
from tests.accuracy_page import CLOSE, KEPT

POINT = 0.01
"""The mean error of a set may be so much larger than recorded."""
SAMPLED, SMALL = 12 if EVERY == 1 else 2, 16
"""Rows of each set in the sample, on so many devices at most: the first by the sha256 of their id."""


def first(lines: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(lines, key=lambda line: sha256(line['id'].encode()).hexdigest())[:SAMPLED]


ALL = read_csv(KEPT)
SETS = sorted({line['set'] for line in ALL})
FEW = {row.name for row in read_rows(measured_folder()) if row.whole('n_gpus') <= SMALL}
RECORDED = [
    line for name in SETS for line in first([line for line in ALL if line['set'] == name and line['id'] in FEW])
]


@pytest.fixture(scope='module')
def predicted() -> dict[str, float]:
    wanted = {line['id'] for line in RECORDED}
    found = outcomes([row for row in read_rows(measured_folder()) if row.name in wanted])
    return {one.row.name: one.predicted.seconds for one in found if one.predicted}


def error(seconds: float, measured: str) -> float:
    return abs(seconds / float(measured) - 1)


def test_the_sample_is_of_every_set() -> None:
    assert len(SETS) == 5
    assert all(sum(line['set'] == name for line in RECORDED) == SAMPLED for name in SETS)


@pytest.mark.parametrize('name', SETS)
def test_no_set_is_predicted_worse_than_recorded(name: str, predicted: dict[str, float]) -> None:
    lines = [line for line in RECORDED if line['set'] == name]
    now = fmean(error(predicted[line['id']], line['measured']) for line in lines)
    then = fmean(error(float(line['predicted']), line['measured']) for line in lines)
    assert now <= then + POINT, f'{name}: {then:.1%} before, {now:.1%} now; see the head of this file'


def test_the_record_is_of_this_code(predicted: dict[str, float]) -> None:
    """Else a set may get worse by less than a point many times."""
    changed = [line['id'] for line in RECORDED if abs(predicted[line['id']] / float(line['predicted']) - 1) > CLOSE]
    assert not changed, f'{len(changed)} rows changed: record them anew, and say why in the commit'
