"""A default of a framework is what a schedule on its stack has, or the table says why not; importers have the same."""

import csv
import re
from dataclasses import fields
from types import SimpleNamespace

import pytest

from simpar.document.tree import parse
from simpar.importing.deepspeed import DEEPSPEED
from simpar.importing.megatron import MEGATRON
from simpar.importing.mindformers import MINDFORMERS
from simpar.importing.mindspeed import MINDSPEED
from simpar.importing.settings import Settings
from simpar.importing.torchtitan import TORCHTITAN
from simpar.plans import Plan
from simpar.profiles import load_stack, stack_folder, stack_names
from simpar.workload import Workload

with (stack_folder() / 'defaults.csv').open(encoding='utf-8', newline='') as file:
    ROWS = [
        SimpleNamespace(**{**row, 'value': parse(f'v: {row["value"]}', '').root['v']}) for row in csv.DictReader(file)
    ]
SOURCES = {'Megatron-LM': MEGATRON, 'MindSpeed-LLM': MINDSPEED, 'MindFormers': MINDFORMERS, 'torchtitan': TORCHTITAN,
           'DeepSpeed': DEEPSPEED}  # fmt: skip


def on_stack(key, stack):
    """What a schedule that is silent has on a stack."""
    schedule = load_stack(stack).schedule
    owner, _, name = key.partition('.')
    own = {one.name: one.default for one in fields(Plan if owner == 'plan' else Workload)}
    return schedule[key] if key in schedule else own[name]


@pytest.mark.parametrize('row', ROWS, ids=lambda row: f'{row.framework}-{row.key}')
def test_a_schedule_has_the_default_of_its_framework_or_a_reason(row):
    value = on_stack(row.key, row.stack)
    equal = value == row.value
    assert equal or row.note, f'{row.stack} has {value}, {row.framework} has {row.value} ({row.flag})'
    assert not (equal and row.note), 'a reason where nothing differs'


def test_the_table_of_an_importer_has_the_same_default_and_version():
    compared = []
    for row in ROWS:
        table = SOURCES[row.framework].table if row.framework in SOURCES else None
        setting = table.rows.get(row.flag.lstrip('-')) if table else None
        if setting is None:
            continue
        # MindSpeed has flags of Megatron-LM in versions of its own.
        is_inherited = row.framework == 'MindSpeed-LLM' and setting.setting in MEGATRON.table.rows
        assert setting.since == row.since or is_inherited, row
        if setting.default and setting.value and setting.key == row.key:
            assert Settings([], table).value(setting.setting) == row.value, row
            compared.append(row.key)
    assert len(compared) >= 20
    decay = next(row.value for row in ROWS if row.key == 'workload.optimizer')['adamw']['weight_decay']
    assert Settings([], MEGATRON.table).value('weight-decay') == decay


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
