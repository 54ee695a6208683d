"""The table of recorded cases in docs/strategies.md is what is compared, and all that is compared is equal."""

import golden_counts
import pytest
from golden_steps import FOLDER, SHIPPED

if FOLDER != SHIPPED:
    pytest.skip('the table is of the shipped cases', allow_module_level=True)
ROWS = golden_counts.rows()
SEARCHED = 'rec_transformer'
"""The group of which only strategies are recorded."""


def test_the_table_is_what_is_compared():
    text = golden_counts.DOCUMENT.read_text(encoding='utf-8')
    assert golden_counts.documented(text) == list(golden_counts.table(ROWS))


@pytest.mark.parametrize(('group', 'version'), [key for key in ROWS if key[0] in golden_counts.GROUPS])
def test_every_case_is_compared_and_equal(group, version):
    row = ROWS[group, version]
    for count in (row.strategies, row.collectives, row.slices):
        assert count.equal == count.compared
    assert row.collectives.compared == (0 if group == SEARCHED else row.cases)


def test_messages_are_left_out_of_the_tutorials_only():
    assert [key for key, row in ROWS.items() if row.left_out] == [('seeds', '2.10.0')]


def test_a_case_that_is_not_equal_is_counted():
    def fails(name):
        assert name == 'other'

    count = golden_counts.Count()
    for name in ('other', 'one'):
        count.add(fails, name)
    assert str(count) == '1 / 2'
