"""The table of keys: a row for every key, a key for every row, and rules about facts that there are."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from simpar.ablation.rules import facts_of
from simpar.case import load_case
from simpar.errors import ScheduleError
from simpar.files import read_csv
from simpar.keys import ROWS, row_of
from simpar.model import OPERATORS, Network
from simpar.model.library.experts import Experts
from simpar.model.module import FromModule
from simpar.plans import Plan
from simpar.schedule import load_schedule
from simpar.schedule.contents import ClusterReference, Contents, Planner
from simpar.stacks import load_stack, stack_names
from simpar.workload import OPTIMIZERS, Transformer, Workload

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / 'examples'
OWNERS = {
    'cluster': ClusterReference,
    'workload': Workload,
    'workload.transformer': Transformer,
    'workload.transformer.experts': Experts,
    'plan': Plan,
    'planner': Planner,
    **{f'workload.optimizer.{name}': kind for name, kind in OPTIMIZERS.items()},
}
WITHOUT = {'workload.model'}
"""Stands in a file as transformer, network or module."""


def test_every_key_has_a_row_and_every_row_is_a_key():
    keys = {f'{owner}.{field.name}' for owner, kind in OWNERS.items() for field in fields(kind)} - WITHOUT
    keys |= {field.name for field in fields(Contents)}
    assert {key for key in keys if row_of(key) is None} == set()
    with_rows = {row_of(key).key for key in keys}
    for owner, kinds in {'network': [Network], 'module': [FromModule], 'network.layers': OPERATORS}.items():
        names = {f'workload.{owner}.{field.name}' for kind in kinds for field in fields(kind)}
        with_rows |= names & set(ROWS)
    assert set(ROWS) == with_rows


def test_rules_are_about_facts_that_there_are():
    case = load_case(EXAMPLES / 'transformer_h100.yaml')
    facts = facts_of(case.schedule, case.workload, case.plan, case.program)
    conditions = {row.effect for row in ROWS.values()} - {''}
    for row in ROWS.values():
        for rule in (row.inert, row.idle, row.alike):
            facts.why(rule)
            parts = rule.split(' | ')
            conditions |= {part.rpartition(' → ')[0] for part in parts} - {''}
            # A sentence without a condition is the last one: what stands behind it would never be told.
            assert all(' → ' in part for part in parts[:-1]), (row.key, rule)
        assert all(' → ' in part for rule in (row.inert, row.idle) if rule for part in rule.split(' | ')), row.key
    assert len(conditions) > 30
    for condition in conditions:
        for fact in condition.split(' & '):
            assert facts.hold(fact.lstrip('!')) != facts.hold(f'!{fact.lstrip("!")}')


def test_tables_of_launchers_and_frameworks_name_keys_that_there_are():
    tables = sorted((ROOT / 'simpar' / 'importing' / 'tables').glob('*.csv'))
    named = {key for path in tables for row in read_csv(path) for key in row.get('key', '').split()}
    named |= {key for name in stack_names() for key in load_stack(name).schedule}
    named |= {f'workload.transformer.{key}' for name in stack_names() for key in load_stack(name).model}
    assert len(named) > 60
    # Beside a model that is a config.json stand keys of a transformer.
    beside = {
        key.replace('workload.transformer.', 'workload.') for key in ROWS if key.startswith('workload.transformer.')
    }
    assert {key for key in named if row_of(key) is None} - beside <= {'workload.transformer'}


@pytest.mark.parametrize(
    ('setting', 'words'),
    [
        ('plan.zero=4', 'plan.zero: too large (got 4); write an integer from 0 to 3'),
        ('workload.transformer.dropout=1', 'too large (got 1); write a number'),
        ('plan.shard=[state, state, state, state]', 'plan.shard: too long'),
        ('workload.optimizer={adamw: {weight_decay: -1}}', 'weight_decay: too small (got -1); write a number from 0'),
    ],
)
def test_limits_of_the_table_are_held_where_a_file_is_read(setting, words):
    with pytest.raises(ScheduleError, match=re.escape(words)):
        load_schedule(EXAMPLES / 'transformer_h100.yaml', [setting])
