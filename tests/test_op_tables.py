"""Programs are what was recorded, op by op; and a change of any part of one is found and told."""

from copy import deepcopy

import numpy as np
import pytest
import yaml
from op_tables import ROOT, compare_one, differences, main, recorded, tables, tables_of_tree

EVERY = 16
"""Of the fuzzed schedules the suite compares one in so many; ``make prove-tables`` all, and the examples."""
SMALL = (
    'examples/hybrid.yaml',
    'examples/hybrid_strategies.yaml',
    'examples/loss_operators.yaml',
    'examples/multi_copy.yaml',
    'examples/optimizer_parallel.yaml',
    'examples/sharding_propagation.yaml',
)


@pytest.fixture(scope='module')
def known():
    return recorded()


def test_what_was_recorded_is_all_that_was_asked(known):
    assert sum('schedule' in one for one in known.values()) == 200
    assert sum(name.startswith('examples/') for name in known) == 17


def test_programs_are_as_they_were_recorded(known):
    fuzzed = [name for name, one in known.items() if 'schedule' in one]
    with np.errstate(divide='ignore'):
        found = {name: compare_one(name, known[name]) for name in (*SMALL, *fuzzed[::EVERY])}
    assert {name: [one.lines for one in differ] for name, differ in found.items() if differ} == {}


CHANGES = {
    'flops': lambda table: next(iter(table['ops'].values())).update(flops=1.5),
    'bytes': lambda table: next(iter(table['ops'].values())).update(bytes=1.5),
    'reads': lambda table: next(op for op in table['ops'].values() if 'reads' in op)['reads'].append('other'),
    'dtype': lambda table: next(iter(table['tensors'].values())).update(dtype='bool'),
    'ops': lambda table: table['ops'].update(other={}),
    'tensors': lambda table: table['tensors'].pop(next(iter(table['tensors']))),
    'partitions': lambda table: table['partitions'].clear(),
    'order': lambda table: table['roles'][0]['op'].reverse(),
    'micro_batch': lambda table: table['roles'][0]['micro_batch'].reverse(),
    'needs': lambda table: table['roles'][0]['needs'].insert(0, table['roles'][0]['needs'].pop() + 'other'),
    'world': lambda table: table['program'].update(world=99),
    'notes': lambda table: table['notes'].append('other'),
}


@pytest.mark.parametrize('change', CHANGES)
def test_a_change_of_any_part_is_told(known, change):
    table = known['examples/hybrid.yaml']['tables']['plan']
    other = deepcopy(table)
    CHANGES[change](other)
    found = list(differences(table, other))
    assert found
    assert all(difference.lines for difference in found)
    assert list(differences(table, deepcopy(table))) == []


def test_the_command_compares_what_is_chosen(capsys):
    assert main(['compare', '--only', 'multi_copy']) == 0
    assert '1 of 1 schedules are equal, 0 differ' in capsys.readouterr().out
    assert main(['compare', '--only', 'no such schedule']) == 1


def test_a_schedule_file_and_its_tree_are_one():
    path = ROOT / 'examples' / 'multi_copy.yaml'
    assert tables_of_tree(yaml.safe_load(path.read_text())) == tables(path)
