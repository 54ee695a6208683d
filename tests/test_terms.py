"""Words of the field: each says which key to write, or that it is not modelled; nothing suggests something else."""

import re
from pathlib import Path

import pytest

from simpar.errors import ScheduleError
from simpar.schedule import load_schedule, schedule_schema
from simpar.schedule.terms import (
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

ROOT = Path(__file__).parent.parent
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


SCHEMA = schedule_schema()
KNOWN = set(keys(SCHEMA, SCHEMA))


def words(table):
    return [word for text in table.values() for word in text.split()]


def test_the_tables_say_one_thing_of_each_word_and_write_keys_that_there_are():
    assert len(words(KEYS)) + len(words(ABSENT)) > 300
    for many in ([*words(KEYS), *words(ABSENT)], [*words(LAYERS), *ABSENT_LAYERS.split()]):
        assert sorted({word for word in many if many.count(word) > 1}) == []
        assert [word for word in many if plain(word) != word] == []
    written = {text.split(':')[0].split(',')[0] for text in KEYS}
    assert written <= KNOWN
    layers = {key.split('.')[-1] for key in KNOWN if key.startswith('workload.network')}
    assert {re.split('[:,]', text)[0] for text in LAYERS} <= layers
    pages = orders() + ''.join(
        (ROOT / 'docs' / name).read_text() for name in ('schedule.md', 'keys.md', 'keys_network.md')
    )
    for text in VALUES:
        key, value = text.split()
        assert re.search(rf'(^|\W){re.escape(value)}(\W|$)', pages), text
        assert any(known.endswith(f'.{key}') for known in KNOWN)


def orders():
    return (ROOT / 'docs' / 'pipeline_orders.md').read_text()


def test_no_key_of_ours_is_called_absent_or_otherwise_where_it_stands():
    """A key that becomes modelled must leave the tables."""
    for known in KNOWN:
        *above, name = known.split('.')
        if above[:2] != ['workload', 'network']:
            told = key_term((*above, name))
            assert told is None or not told.what.startswith('not modelled'), known
    plan = {known.split('.')[1] for known in KNOWN if known.startswith('plan.')}
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
    'plan.usp': 'not modelled: context parallelism of two kinds at once; see docs/not_modelled.md',
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
    text = (ROOT / 'docs' / 'not_modelled.md').read_text()
    for what in ABSENT:
        assert what in text, what
