"""Each default of a framework is what a schedule on its stack has, or the table says why not."""

import re

import pytest

from simpar.importing.defaults import defaults, on_stack
from simpar.stacks import stack_names

ROWS = defaults()


@pytest.mark.parametrize('row', ROWS, ids=lambda row: f'{row.framework}-{row.key}')
def test_a_schedule_has_the_default_of_its_framework_or_a_reason(row):
    value = on_stack(row.key, row.stack)
    equal = value == row.value
    assert equal or row.note, f'{row.stack} has {value}, {row.framework} has {row.value} ({row.flag})'
    assert not (equal and row.note), 'a reason where nothing differs'


def test_every_row_has_a_source_and_a_stack_that_is_shipped():
    for row in ROWS:
        assert row.stack in stack_names()
        assert re.search('[a-z]+[/.][A-Za-z]|compiled by', row.source), row
        assert row.flag
        assert row.key.startswith(('plan.', 'workload.'))
    assert len({(row.framework, row.key) for row in ROWS}) == len(ROWS)


def test_overlap_has_no_switch_for_all_frameworks():
    """MindSpore's passes are off, FSDP and DDP reduce as gradients come, Megatron-LM at the end of the backward."""
    assert on_stack('plan.overlap', 'mindspore-graph') == []
    assert on_stack('plan.overlap', 'mindformers') == []
    assert on_stack('plan.overlap', 'megatron-te') == 'default'
    sums = {stack: on_stack('plan.reduce_gradients', stack) for stack in ('megatron-te', 'mindspeed', 'torch-fsdp')}
    assert sums == {'megatron-te': 'end', 'mindspeed': 'end', 'torch-fsdp': 'overlapped'}
