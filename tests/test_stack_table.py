"""Tables of docs/stacks.md say what the code says; `python -m tests.stack_table` writes them."""

from __future__ import annotations

import pytest
from stack_table import (
    EXAMPLE,
    FILLED,
    PUBLISHED,
    RULE,
    SLOWER,
    WHICH,
    example_names,
    example_row,
    filled_table,
    held,
    published_table,
    rule_table,
    which_table,
)

SMALL = ('llama_degrees', 'mixtral_8x7b_h100', 'multi_copy', 'tiles', 'transformer_h100', 'transformer_910b_7b')
"""Examples that take less than a second."""


@pytest.mark.parametrize(
    ('first', 'made'), [(RULE, rule_table), (FILLED, filled_table), (PUBLISHED, published_table), (WHICH, which_table)]
)
def test_a_table_is_what_it_is_made_from(first, made):
    assert held(first) == list(made())


@pytest.mark.parametrize('name', SMALL)
def test_a_row_is_what_the_example_answers(name):
    assert example_row(name) in held(EXAMPLE)


def test_every_example_under_a_framework_has_a_row():
    assert [line.split('`')[1] for line in held(EXAMPLE)[2:]] == example_names()


def test_who_is_much_slower_than_the_device_alone_has_its_reason():
    for line in held(EXAMPLE)[2:]:
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        assert float(cells[4]) <= SLOWER or cells[-1], line
