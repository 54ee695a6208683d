"""The table of recorded cases in docs/proofs/strategy_tables.md is what tests of their kinds compare, case by case."""

import golden_counts
import pytest
from golden_shapes import FOLDER, SHIPPED
from golden_transformers import GROUP

if FOLDER != SHIPPED:
    pytest.skip('the table is of the shipped cases', allow_module_level=True)
CONVOLUTIONS = 3
"""Cases of either version, in the group of transformers, that no network of ours is: only strategies are compared."""


@pytest.fixture(scope='module')
def rows():
    """As if every case were equal: that it is, a test of its own says."""
    return golden_counts.rows(lambda test, name: True)


def test_the_table_is_what_is_compared(rows):
    text = golden_counts.DOCUMENT.read_text(encoding='utf-8')
    assert golden_counts.documented(text) == list(golden_counts.table(rows))


def test_every_case_is_compared(rows):
    compared = {key: row for key, row in rows.items() if key[0] in golden_counts.GROUPS}
    assert {group for group, _ in compared} == set(golden_counts.GROUPS)
    for (group, version), row in compared.items():
        without = CONVOLUTIONS if group == GROUP else 0
        assert row.collectives.compared == row.cases - without, (group, version)


def test_all_that_is_left_out_is_three_numbers(rows):
    assert {key: row.numbers for key, row in rows.items() if row.numbers and row.messages} == {
        ('opt', '2.10.0'): 2,
        ('interleave', '2.10.0'): 1,
    }
    assert not [key for key, row in rows.items() if row.left_out]


def test_a_case_that_is_not_equal_is_counted():
    def fails(name):
        assert name == 'other'

    count = golden_counts.Count()
    for name in ('other', 'one'):
        count.add(fails, name)
    assert str(count) == '1 / 2'
