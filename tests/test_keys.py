"""The table of keys: a row for every key, a key for every row, and rules about facts that there are."""

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from simpar import Plan, load_case
from simpar.ablation.rules import facts_of
from simpar.document.tree import parse
from simpar.errors import ScheduleError
from simpar.files import read_csv
from simpar.importing.deepspeed import DEEPSPEED
from simpar.importing.megatron import MEGATRON
from simpar.importing.mindformers import MINDFORMERS
from simpar.importing.mindspeed import MINDSPEED
from simpar.importing.settings import Settings
from simpar.importing.torchtitan import TORCHTITAN
from simpar.keys import ROWS, row_of
from simpar.model import OPERATORS, Network
from simpar.model.library.experts import Experts
from simpar.model.library.gpt import Lora
from simpar.model.model import FromModule
from simpar.profiles import load_stack, stack_folder, stack_names
from simpar.schedule import checks, load_schedule, schedule_schema
from simpar.schedule.contents import ClusterReference, Contents, Planner
from simpar.workload import OPTIMIZERS, Transformer, Workload

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / 'examples'
OWNERS = {
    'cluster': ClusterReference,
    'workload': Workload,
    'workload.transformer': Transformer,
    'workload.transformer.experts': Experts,
    'workload.transformer.lora': Lora,
    'plan': Plan,
    'planner': Planner,
    **{f'workload.optimizer.{name}': kind for name, kind in OPTIMIZERS.items()},
}
WITHOUT = {'workload.model'}
"""Of the class it stands in a file as transformer, network or module; of the file it is a config.json."""


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
            for owner, name in re.findall(r'(plan|asked|workload|model)\.(\w+)', fact):
                assert hasattr({'model': case.workload.model, 'workload': case.workload}.get(owner, case.plan), name)


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
    assert {key for key in named if row_of(key) is None} - beside <= {'workload.transformer', *WITHOUT}


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


# Words of the field: each says which key to write, or that it is not modelled; nothing suggests something else


EXAMPLE = ROOT / 'examples' / 'transformer_h100.yaml'
NETWORK = ROOT / 'examples' / 'multi_copy.yaml'


def keys(schema, root, at=''):
    """Dotted keys of the schema, without places in lists."""
    for node in (schema, *schema.get('anyOf', ())):
        form = {**root['$defs'][node['$ref'].split('/')[-1]], **node} if '$ref' in node else node
        for name, inner in form.get('properties', {}).items():
            yield f'{at}{name}'
            yield from keys(inner, root, f'{at}{name}.')
        yield from keys(form, root, at) if 'anyOf' in form and node is not schema else ()
        if isinstance(form.get('items'), dict):
            yield from keys(form['items'], root, at)


@cache
def known_keys():
    """All keys that a file may have."""
    schema = schedule_schema()
    return set(keys(schema, schema))


def words(table):
    return [word for text in table.values() for word in text.split()]


def test_the_tables_say_one_thing_of_each_word_and_write_keys_that_there_are():
    assert len(words(checks.KEYS)) + len(words(checks.ABSENT)) > 300
    for many in ([*words(checks.KEYS), *words(checks.ABSENT)], [*words(checks.LAYERS), *checks.ABSENT_LAYERS.split()]):
        assert sorted({word for word in many if many.count(word) > 1}) == []
        assert [word for word in many if checks.plain(word) != word] == []
    written = {text.split(':')[0].split(',')[0] for text in checks.KEYS}
    assert written <= known_keys()
    layers = {key.split('.')[-1] for key in known_keys() if key.startswith('workload.network')}
    assert {re.split('[:,]', text)[0] for text in checks.LAYERS} <= layers
    pages = orders() + ''.join(
        (ROOT / 'docs' / name).read_text() for name in ('keys.md', 'proofs/all_keys.md', 'proofs/keys_network.md')
    )
    for text in checks.VALUES:
        key, value = text.split()
        assert re.search(rf'(^|\W){re.escape(value)}(\W|$)', pages), text
        assert any(known.endswith(f'.{key}') for known in known_keys())


def orders():
    return (ROOT / 'docs' / 'pipeline_orders.md').read_text()


def test_no_key_of_ours_is_called_absent_or_otherwise_where_it_stands():
    """A key that becomes modelled must leave the tables."""
    for known in known_keys():
        *above, name = known.split('.')
        if above[:2] != ['workload', 'network']:
            told = checks.key_term((*above, name))
            assert told is None or not told.what.startswith('not modelled'), known
    plan = {known.split('.')[1] for known in known_keys() if known.startswith('plan.')}
    assert not plan & set(words(checks.ABSENT))


SAID = read_csv(Path(__file__).with_name('unknown_words.csv'))
FILES = {'key': EXAMPLE, 'value': EXAMPLE, 'layer': NETWORK}


@pytest.mark.parametrize('what', FILES)
def test_what_is_unknown_is_told_by_what_it_means(what):
    """Keys, values, and layers of a network, which have words of their own."""
    for row in (row for row in SAID if row['what'] == what):
        setting, words = row['setting'], row['told']
        with pytest.raises(ScheduleError) as caught:
            load_schedule(FILES[what], [setting])
        place = f' {setting.partition("=")[0]}: '
        told = [str(one).partition(place)[2] if what == 'key' else str(one) for one in caught.value.problems]
        assert any(one.startswith(words) if what == 'key' else words in one for one in told), (setting, told)


def test_orders_that_are_not_modelled_are_said_so():
    for word in checks.ABSENT_ORDERS.split():
        assert checks.value_term(('plan', 'order'), word).what.startswith('not modelled')


def test_the_documentation_lists_all_that_is_called_not_modelled():
    text = (ROOT / 'docs' / 'proofs' / 'not_modelled.md').read_text()
    for what in checks.ABSENT:
        assert what in text, what


# A default of a framework is what a schedule on its stack has, or the table says why not; importers have the same


DEFAULTS = [
    SimpleNamespace(**{**row, 'value': parse(f'v: {row["value"]}', '').root['v']})
    for row in read_csv(stack_folder() / 'defaults.csv')
]
SOURCES = {'Megatron-LM': MEGATRON, 'MindSpeed-LLM': MINDSPEED, 'MindFormers': MINDFORMERS, 'torchtitan': TORCHTITAN,
           'DeepSpeed': DEEPSPEED}  # fmt: skip


def on_stack(key, stack):
    """What a schedule that is silent has on a stack."""
    schedule = load_stack(stack).schedule
    owner, _, name = key.partition('.')
    own = {one.name: one.default for one in fields(Plan if owner == 'plan' else Workload)}
    return schedule[key] if key in schedule else own[name]


@pytest.mark.parametrize('row', DEFAULTS, ids=lambda row: f'{row.framework}-{row.key}')
def test_a_schedule_has_the_default_of_its_framework_or_a_reason(row):
    value = on_stack(row.key, row.stack)
    equal = value == row.value
    assert equal or row.note, f'{row.stack} has {value}, {row.framework} has {row.value} ({row.flag})'
    assert not (equal and row.note), 'a reason where nothing differs'


def test_the_table_of_an_importer_has_the_same_default_and_version():
    compared = []
    for row in DEFAULTS:
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
    decay = next(row.value for row in DEFAULTS if row.key == 'workload.optimizer')['adamw']['weight_decay']
    assert Settings([], MEGATRON.table).value('weight-decay') == decay


def test_every_row_has_a_source_and_a_stack_that_is_shipped():
    for row in DEFAULTS:
        assert row.stack in stack_names()
        assert re.search('[a-z]+[/.][A-Za-z]|compiled by', row.source), row
        assert row.flag
        assert row.key.startswith(('plan.', 'workload.'))
    assert len({(row.framework, row.key) for row in DEFAULTS}) == len(DEFAULTS)


def test_overlap_has_no_switch_for_all_frameworks():
    """MindSpore's passes are off, FSDP and DDP reduce as gradients come, Megatron-LM at the end of the backward."""
    assert on_stack('plan.overlap', 'mindspore-graph') == []
    assert on_stack('plan.overlap', 'mindformers') == []
    assert on_stack('plan.overlap', 'megatron-te') == 'default'
    sums = {stack: on_stack('plan.reduce_gradients', stack) for stack in ('megatron-te', 'mindspeed', 'torch-fsdp')}
    assert sums == {'megatron-te': 'end', 'mindspeed': 'end', 'torch-fsdp': 'overlapped'}
