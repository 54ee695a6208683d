"""The table of keys: a row for every key, a key for every row, and rules about facts that there are."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from simpar.ablation.rules import facts_of
from simpar.case import load_case
from simpar.errors import ScheduleError
from simpar.files import read_csv
from simpar.keys import ROWS, row_of
from simpar.model import OPERATORS, Network
from simpar.model.library.experts import Experts
from simpar.model.model import FromModule
from simpar.plans import Plan
from simpar.profiles import load_stack, stack_names
from simpar.schedule import load_schedule, schedule_schema
from simpar.schedule.checks import (
    ABSENT,
    ABSENT_LAYERS,
    ABSENT_ORDERS,
    KEYS,
    LAYERS,
    VALUES,
    key_term,
    plain,
    value_term,
)
from simpar.schedule.contents import ClusterReference, Contents, Planner
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
    assert len(words(KEYS)) + len(words(ABSENT)) > 300
    for many in ([*words(KEYS), *words(ABSENT)], [*words(LAYERS), *ABSENT_LAYERS.split()]):
        assert sorted({word for word in many if many.count(word) > 1}) == []
        assert [word for word in many if plain(word) != word] == []
    written = {text.split(':')[0].split(',')[0] for text in KEYS}
    assert written <= known_keys()
    layers = {key.split('.')[-1] for key in known_keys() if key.startswith('workload.network')}
    assert {re.split('[:,]', text)[0] for text in LAYERS} <= layers
    pages = orders() + ''.join(
        (ROOT / 'docs' / name).read_text() for name in ('schedule.md', 'proofs/all_keys.md', 'proofs/keys_network.md')
    )
    for text in VALUES:
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
            told = key_term((*above, name))
            assert told is None or not told.what.startswith('not modelled'), known
    plan = {known.split('.')[1] for known in known_keys() if known.startswith('plan.')}
    assert not plan & set(words(ABSENT))


CASES = {
    'plan.tp': 'unknown key; write tensor',
    'plan.tensor_model_parallel_size': 'unknown key; write tensor',
    'plan.dp': 'unknown key; write data',
    'plan.pp': 'unknown key; write pipeline',
    'plan.virtual_pipeline_model_parallel_size': 'unknown key; write chunks',
    'plan.num_layers_per_virtual_pipeline_stage': 'unknown key; ',
    'plan.gradient_accumulation_steps': 'unknown key; write micro_batches',
    'plan.activation_checkpointing': 'unknown key; write recompute: full, or selective',
    'plan.fsdp': 'unknown key; write zero: 3',
    'plan.distributed_optimizer': 'unknown key; write zero: 1',
    'plan.use_distributed_optimizer': 'unknown key; write zero: 1',
    'plan.overlap_param_gather': 'unknown key; write prefetch',
    'plan.global_batch_size': 'unknown key; write workload.batch',
    'plan.micro_batch_size': 'unknown key; write workload.batch, that times data',
    'plan.numLayers': 'unknown key; write workload.transformer.layers',
    'plan.num_layers': 'unknown key; write workload.transformer.layers',
    'plan.batch': 'unknown key; write workload.batch',
    'plan.flash_attention': 'unknown key; write workload.transformer.attention: flash',
    'plan.context_parallel': 'unknown key; write context',
    'plan.context_parallel_world_size': 'unknown key; write context',
    'plan.cp': 'unknown key; write context',
    'plan.ulysses': 'unknown key; write context, and context_kind: all_to_all',
    'plan.ring_attention': 'unknown key; write context, and context_kind: ring',
    'plan.cp_comm_type': 'unknown key; write context_kind',
    'plan.usp': 'not modelled: context parallelism of two kinds at once; see docs/proofs/not_modelled.md',
    'plan.expert_parallel': 'unknown key; write expert',
    'plan.ep': 'unknown key; write expert',
    'plan.expert_tensor_parallel_size': 'not modelled: tensor parallelism of experts that is not that of the rest',
    'plan.moe': 'unknown key; write workload.transformer.experts',
    'plan.moe_permute_fusion': 'not modelled: a choice of how tokens travel to experts',
    'workload.transformer.experts.moe_router_topk': 'unknown key; write top_k',
    'workload.transformer.moe_aux_loss_coeff': 'unknown key; write workload.transformer.experts.aux_loss',
    'plan.offload': 'not modelled: offloading',
    'plan.cpu_offload_params': 'not modelled: offloading',
    'plan.fp8': 'unknown key; write workload.fp8',
    'workload.transformer.num_layers': 'unknown key; write layers',
    'workload.transformer.hidden_size': 'unknown key; write hidden',
    'workload.transformer.num_attention_heads': 'unknown key; write heads',
    'workload.transformer.seq_length': 'unknown key; write sequence',
    'workload.transformer.vocab_size': 'unknown key; write vocab',
    'workload.transformer.ffn_hidden_size': 'unknown key; write ffn',
    'workload.transformer.num_query_groups': 'unknown key; write kv_heads',
    'workload.transformer.rotary': 'unknown key; write position: rotary',
    'workload.transformer.rotary_base': 'unknown key; write rope_theta',
    'workload.transformer.sliding_window': 'unknown key; write window',
    'workload.transformer.swiglu': 'unknown key; write activation: swiglu',
    'workload.transformer.mla': 'unknown key; write kv_lora_rank',
    'workload.transformer.num_experts': 'unknown key; write workload.transformer.experts.count',
    'workload.optimizer.adam.lr': 'unknown key; write learning_rate',
    'workload.optimizer.lion': 'not modelled: this optimizer',
    'workload.clip_grad': 'unknown key; write clip_norm',
    'workload.bf16': 'unknown key; write precision',
    'cluster.nnodes': 'unknown key; write nodes',
    'cluster.gpus_per_node': 'unknown key; write devices',
    # Misspelt, and words of nobody.
    'plan.tensr': 'unknown key; did you mean tensor?',
    'plan.sequence_paralel': 'unknown key; did you mean sequence_parallel?',
    'plan.frobnicate': 'unknown key; known keys: ',
    'plan.index': 'unknown key; known keys: ',
}


def test_an_unknown_key_is_told_by_what_it_means():
    for key, words in CASES.items():
        value = '{}' if key.endswith('lion') else '2'
        with pytest.raises(ScheduleError) as caught:
            load_schedule(EXAMPLE, [f'{key}={value}'])
        told = [str(one).partition(f' {key}: ')[2] for one in caught.value.problems]
        assert any(one.startswith(words) for one in told), (key, told)


def test_an_unknown_value_is_told_by_what_it_means():
    for setting, words in {
        'workload.transformer.attention=ring': 'write flash, and plan.context, and context_kind: ring',
        'plan.context_kind=p2p': 'unknown value (got "p2p"); write ring',
        'workload.transformer.attention=sdpa': 'unknown value (got "sdpa"); write flash',
        'workload.transformer.attention=eager': 'unknown value (got "eager"); write unfused',
        'workload.precision=fp8': 'unknown value (got "fp8"); write bf16, and fp8: hybrid beside it',
        'workload.precision=int8': 'not modelled: smaller numbers than fp8',
        'workload.precision=bfloat16': 'unknown value (got "bfloat16"); write bf16',
        'plan.order=DualPipe': 'unknown value (got "DualPipe"); write dualpipe',
        'plan.seq_split_num=2': 'unknown key; write sequence_chunks',
        'plan.order=chimera': 'not modelled: the order chimera',
        'plan.order=v_min': 'unknown value (got "v_min"); write v-min',
        'plan.order=dualpipev': 'unknown value (got "dualpipev"); write dualpipe-v',
        'plan.order=ScheduleInterleaved1F1B': 'unknown value (got "ScheduleInterleaved1F1B"); write interleaved-1f1b',
        'plan.recompute=uniform': 'unknown value (got "uniform"); write full',
    }.items():
        with pytest.raises(ScheduleError) as caught:
            load_schedule(EXAMPLE, [setting])
        assert any(words in str(one) for one in caught.value.problems), (setting, str(caught.value))
    for word in ABSENT_ORDERS.split():
        assert value_term(('plan', 'order'), word).what.startswith('not modelled')


def test_layers_of_a_network_have_words_of_their_own():
    for setting, words in {
        'workload.network.0={fc: {}}': 'write linear',
        'workload.network.0={rmsnorm: {}}': 'write rms_norm',
        'workload.network.0={attention: {}}': 'not modelled: attention as a layer of a network',
        'workload.network.1.dense.in_features=2': 'write in',
        'workload.network.0={dens: {}}': 'did you mean dense?',
    }.items():
        with pytest.raises(ScheduleError) as caught:
            load_schedule(NETWORK, [setting])
        assert any(words in str(one) for one in caught.value.problems), (setting, str(caught.value))


def test_the_documentation_lists_all_that_is_called_not_modelled():
    text = (ROOT / 'docs' / 'proofs' / 'not_modelled.md').read_text()
    for what in ABSENT:
        assert what in text, what
