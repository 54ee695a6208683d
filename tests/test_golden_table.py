"""The table of recorded cases in docs/strategies.md is what is compared, and all of it is equal."""

import golden_counts
import pytest
from golden_steps import FOLDER, SHIPPED
from golden_transformers import GROUP

if FOLDER != SHIPPED:
    pytest.skip('the table is of the shipped cases', allow_module_level=True)
ROWS = golden_counts.rows()
CONVOLUTIONS = 3
"""Cases of either version, in the group of transformers, that no network of ours is: only strategies are compared."""


def test_the_table_is_what_is_compared():
    text = golden_counts.DOCUMENT.read_text(encoding='utf-8')
    assert golden_counts.documented(text) == list(golden_counts.table(ROWS))


@pytest.mark.parametrize(('group', 'version'), [key for key in ROWS if key[0] in golden_counts.GROUPS])
def test_every_case_is_compared_and_equal(group, version):
    row = ROWS[group, version]
    for count in (row.strategies, row.slices, row.collectives):
        assert count.equal == count.compared
    assert row.collectives.compared == row.cases - (CONVOLUTIONS if group == GROUP else 0)


def test_all_that_is_left_out_is_three_numbers():
    assert {key: row.numbers for key, row in ROWS.items() if row.numbers and row.messages} == {
        ('opt', '2.10.0'): 2,
        ('interleave', '2.10.0'): 1,
    }
    assert not [key for key, row in ROWS.items() if row.left_out]


def test_a_case_that_is_not_equal_is_counted():
    def fails(name):
        assert name == 'other'

    count = golden_counts.Count()
    for name in ('other', 'one'):
        count.add(fails, name)
    assert str(count) == '1 / 2'
