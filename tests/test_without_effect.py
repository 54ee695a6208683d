"""Keys without effect: what is told is what leaving keys out shows, and every key has its words."""

import json
from collections import Counter
from dataclasses import fields, replace

import pytest
from small_schedules import VALUES, small_schedule

from simpar import cli
from simpar.ablation.find import same
from simpar.ablation.rules import Facts, inert, says_the_choice, user_keys, without_keys
from simpar.case import case_of, choices, cluster_of, load_case
from simpar.errors import SimparError
from simpar.keys import ROWS
from simpar.lower import lower
from simpar.plans import Plan
from simpar.schedule import load_schedule

SEEDS = 90
MOST = 8
"""Schedules that each rule is held on."""
INERT = tuple(key for key, row in ROWS.items() if row.inert and key.startswith('plan.'))
MARKS = ('recompute', 'comm_fusion')
SPELLED = ('strategy', 'pipeline_stage', 'name', 'of')


def lowered(workload, plan, world):
    """None where there is no such program."""
    try:
        return lower(workload, plan, world)
    except SimparError:
        return None


def is_same(program, workload, plan, world):
    other = lowered(workload, plan, world)
    return other is not None and same(program, other)


def test_a_key_is_told_if_and_only_if_the_program_is_the_same_without_it():
    """By lowering without each key alone; of keys that are left untold though nothing changes without one of them, each
    says what is chosen anyway, or something changes without all of them."""
    told_keys, untold = set(), set()
    for seed in range(SEEDS):
        schedule, plan, program = small_schedule(seed)
        case, world = case_of(replace(schedule, against={})), program.world
        told = {one.key for one in case.without_effect()}
        keys = [key for key in user_keys(schedule) if key.is_set and key.field not in SPELLED]
        # What stands in the program itself needs fewer looks.
        keys = [key for key in keys if seed % 5 == 0 or key.path[0] == 'plan' or key.field in MARKS]
        alone = [key for key in keys if is_same(program, *without_keys(schedule.workload, plan, [key]), world)]
        differing = [key for key in keys if key not in alone]
        assert not [key.name for key in differing if key.name in told], seed
        together = [key for key in alone if key.name in told]
        assert is_same(program, *without_keys(schedule.workload, plan, together), world), seed
        left = [key for key in alone if key.name not in told]
        new = [key for key in alone if not says_the_choice(key, schedule.workload, plan, world)]
        if [key for key in left if key in new]:
            groups = [without_keys(schedule.workload, plan, group) for group in (alone, new)]
            assert not all(is_same(program, *group, world) for group in groups), (seed, left)
        told_keys |= {key.field for key in together}
        untold |= {key.field for key in differing}
    # That both answers are there for the keys makes the law worth something.
    assert set(VALUES) - {'copies', 'micro_batches'} <= told_keys
    assert set(VALUES) - {'compat', 'objective'} <= untold


def test_where_a_key_can_have_no_effect_no_value_has_any():
    """The rules that also speak of default values, against other values in their place."""
    fired = Counter()
    for seed in range(SEEDS):
        schedule, plan, program = small_schedule(seed)
        facts = Facts(
            program=program,
            workload=schedule.workload,
            plan=plan,
            workload_asked=schedule.workload,
            asked=schedule.plan,
        )
        for name in INERT:
            key = name.removeprefix('plan.')
            if fired[name] < MOST and inert(name, facts):
                fired[name] += 1
                for value in [getattr(Plan(), key), *VALUES.get(key, [])]:
                    other = lowered(schedule.workload, replace(plan, **{key: value}), program.world)
                    assert other is None or same(program, other), (seed, name, value)
    assert set(fired) == set(INERT) - {'plan.chunks'}


# --- one by one ------------------------------------------------------------------------------------------------------

GPT = 'transformer: {layers: 4, hidden: 64, heads: 8, vocab: 64, sequence: 32}'
MOE = GPT.replace('}', ', bias: [], experts: {count: 8, top_k: 2, %s}}')
CHAIN = 'network: [{dense: {in: 64, out: 64}}, {relu: {}}, {dense: {in: 64, out: 64}}]'
CUT = 'network: [{dense: {in: 64, out: 64, strategy: [[2, 1], [1, 4]]}}, {relu: {}}, {dense: {in: 64, out: 64}}]'
GRAPH = CHAIN.replace('relu', 'gelu')
SITUATIONS = [
    # model, plan, keys that are told, words
    (GPT, 'dataset: full-batch', 'plan.dataset', 'every rank reads the same samples'),
    (GPT, 'device_matrix: {dp: 2, mp: 4}', 'plan.device_matrix', 'no layout names its axes'),
    (GPT, 'redistribution: mindspore-2.10', 'plan.redistribution', 'no value is redistributed another way'),
    (GPT, 'all_to_all: true', 'plan.all_to_all', 'no redistribution uses an all-to-all'),
    (CUT, 'reduce: late', 'plan.reduce', 'values with strategies are summed late'),
    (GPT, 'reduce: late', 'plan.reduce', 'tensor is 1'),
    (GPT, '{context_kind: ring, context_split: contiguous}', 'plan.context_kind plan.context_split', 'context is 1'),
    (GPT, '{context: 2, context_kind: ring, context_split: contiguous, all_to_all: true}', 'plan.all_to_all', 'no re'),
    (GPT, '{tensor: 4, pipeline: 2, micro_batches: 2, zero: 3}', 'plan.zero', 'data is 1'),
    (GPT, '{tensor: 8, hsdp: level1, shard_threshold: 1 B}', 'plan.hsdp plan.shard_threshold', 'data is 1'),
    (GPT, '{tensor: 8, shard: [state], gather: after-update}', 'plan.shard plan.gather', 'data is 1'),
    (GPT, 'order: gpipe', 'plan.order', 'no pipeline'),
    (GPT, 'order: 1f1b', 'plan.order', 'no pipeline'),
    (GPT, '{stages: [4], receive: late, exchange: fused}', 'plan.stages plan.receive plan.exchange', 'one stage'),
    (GPT, 'scatter_gather: true', 'plan.scatter_gather', 'no stage'),
    (GPT, '{pipeline: 2, micro_batches: 2, scatter_gather: true}', 'plan.scatter_gather', 'by several tensor ranks'),
    (GPT, '{zero: 1, unsharded: ["nothing*"]}', 'plan.unsharded', 'there are none'),
    (GPT, '{zero: 1, unsharded: ["*.bias", "nothing*"]}', 'plan.unsharded.1', 'the name of no parameter'),
    (GPT, 'unsharded: ["*.bias"]', 'plan.unsharded', 'nothing is sharded'),
    (GPT, '{zero: 1, shard_threshold: 1 B}', 'plan.shard_threshold', 'the same parameters are sharded'),
    (GPT, '{gather: on-use, shard_group: 4, accumulate: sharded, prefetch: 3}',
     'plan.gather plan.shard_group plan.accumulate plan.prefetch', 'nothing is sharded'),
    (GPT, 'shard_form: flat', 'plan.shard_form', 'nothing is sharded'),
    (GPT, '{zero: 2, prefetch: 3}', 'plan.prefetch', 'no weight is gathered'),
    (GPT, '{zero: 3, prefetch: 3, overlap: [enable_grad_comm_opt]}', 'plan.prefetch', 'does not list'),
    (GPT, 'copies_loss: sum', 'plan.copies_loss', 'one copy'),
    (GPT, '{tensor: 8, sum_loss: true}', 'plan.sum_loss', 'same loss'),
    (GPT, 'compat: "2.0"', 'plan.compat', 'sharding-propagation'),
    (GPT, 'objective: time', 'plan.objective', 'exact search'),
    (GPT, '{tiles: 4}', 'plan.tiles', 'no product'),
    (MOE % 'imbalance: 1.5', '{}', 'workload.transformer.experts.imbalance', 'no rank holds'),
    (MOE % 'imbalance: 1.5', 'expert: 4', '', ''),
    (MOE % 'group_top_k: 1, group_scores: 1', '{}', 'workload.transformer.experts.group_scores', 'one group'),
    (MOE % 'aux_group: sample', '{}', 'workload.transformer.experts.aux_group', 'no auxiliary loss'),
    (MOE % 'aux_loss: 0.1, aux_group: sample', '{}', '', ''),
    (GPT, '{recompute_stages: [0], recompute_communication: false}',
     'plan.recompute_stages plan.recompute_communication', 'nothing is recomputed'),
    (GPT, '{recompute: full, recompute_communication: false}', 'plan.recompute_communication', 'no collective'),
    (GPT, 'recompute: ["layer*.fc2"]', 'plan.recompute', 'the backward needs nothing'),
    (GPT, '{tensor: 8, fusion: all, reduce_gradients: end}', 'plan.fusion plan.reduce_gradients', 'travels between'),
    (GPT, '{zero: 1, unsharded: ["*"], shard_threshold: 100 GB}', 'plan.zero plan.shard_threshold plan.unsharded',
     'no parameter is sharded'),
    (GPT, 'overlap: [enable_grad_comm_opt, recompute_comm_overlap]', 'plan.overlap', 'stands alike'),
    (GPT, '{pairs: overlap, weight_gradients: delayed}', 'plan.pairs plan.weight_gradients', 'of a pair'),
    (GPT, '{fusion: ids, fusion_ids: [1, 1, 1, 1, 1, 1, 1, 1]}', 'plan.fusion_ids', 'say the same'),
    (CHAIN.replace('out: 64}', 'out: 64, comm_fusion: 2}', 1), '{}',
     'workload.network.0.dense.comm_fusion', 'not ids'),
    (CHAIN.replace('out: 64}}]', 'out: 64, recompute: true}}]'), '{}',
     'workload.network.2.dense.recompute', 'backward'),
    (CHAIN.replace('out: 64}', 'out: 64, pipeline_stage: 0}', 1), '{}',
     'workload.network.0.dense.pipeline_stage', 'one stage'),
    (CUT.replace('{relu: {}}, {dense: {in: 64, out: 64}}', '{dense: {in: 64, out: 64, strategy: [[2, 4], [4, 1]]}}'),
     'search: exact', 'plan.search', 'without it'),
    (GRAPH, 'strategies: {dense*: [[8, 1], [1, 1]]}', 'plan.strategies', 'split so without them'),
    (GRAPH, '{device_matrix: {dp: 8}, layouts: {dense*: [[dp, none], [none, none]]}}', 'plan.layouts', 'split so'),
]  # fmt: skip


def told(tmp_path, model, plan, against='{}', cluster='{profile: h100-sxm-8, stack: none}'):
    path = tmp_path / 'schedule.yaml'
    inner = plan if plan.startswith('{') else f'{{{plan}}}'
    loss = '' if 'transformer' in model else '\n  loss: mse'
    path.write_text(
        f'simpar: 1\ncluster: {cluster}\nworkload:\n  {model}\n  batch: 64{loss}\nplan: {inner}\nagainst: {against}\n'
    )
    return load_case(path).without_effect()


def test_every_situation_is_told_in_its_words(tmp_path):
    for model, plan, keys, words in SITUATIONS:
        found = told(tmp_path, model, plan)
        assert {one.key for one in found} == set(keys.split()), (plan, found)
        assert not found or any(words in one.why for one in found), (plan, found)


def test_every_key_of_a_plan_has_a_situation_or_always_an_effect():
    always = {
        'data',
        'tensor',
        'context',
        'expert',
        'pipeline',
        'micro_batches',
        'chunks',
        'sequence_chunks',
        'rows',
        'copies',
        'sequence_parallel',
        'streams',
    }
    seen = {key.split('.')[1] for *_, keys, _ in SITUATIONS for key in keys.split() if key.startswith('plan.')}
    assert {field.name for field in fields(Plan)} == always | seen


def test_on_one_rank_nothing_of_communication_has_an_effect(tmp_path):
    plan = '{streams: single, fusion: all, reduce_gradients: end, overlap: [], zero: 2, reduce: late}'
    found = told(tmp_path, GPT, plan, cluster='{profile: h100-sxm-8, devices: 1}')
    assert {one.key.removeprefix('plan.') for one in found} == {
        *('streams', 'fusion', 'reduce_gradients', 'overlap', 'zero', 'reduce')
    }


@pytest.mark.parametrize(
    'plan',
    [
        '{zero: 3, shard: [weights, gradients, state]}',
        '{zero: 3, shard: [state, gradients, weights], gather: on-use-twice, accumulate: sharded, shard_group: 8}',
        '{data: 8, zero: 1, gather: after-update, shard_threshold: 0 B}',
        '{pipeline: 2, data: 4, micro_batches: 2, stages: [2, 2], chunks: 1}',
        '{fusion: layer, reduce: early, dataset: data-parallel, prefetch: 1, zero: 3}',
    ],
)
def test_what_says_the_same_twice_or_as_by_default_is_not_told(tmp_path, plan):
    found = [one.key for one in told(tmp_path, GPT, plan)]
    assert found == []


def test_links_and_baselines_that_change_nothing_are_told(tmp_path):
    cluster = '{profile: h100-sxm-8, links: {infiniband: 0.5, nvlink: 0.5}}'
    assert [one.key for one in told(tmp_path, GPT, '{}', cluster=cluster)] == ['cluster.links.infiniband']
    for against, keys in {
        '{plan.reduce: late}': ['against.plan.reduce'],
        '{plan.zero: 0}': ['against.plan.zero'],
        '{plan.zero: 3, plan.reduce: late}': ['against.plan.reduce'],
        '{plan.zero: 3, plan.tensor: 1}': ['against.plan.tensor'],
        '{plan.zero: 3}': [],
    }.items():
        assert [one.key for one in told(tmp_path, GPT, '{}', against)] == keys


# --- where it is shown -----------------------------------------------------------------------------------------------


def test_it_stands_below_the_headline_and_in_json(tmp_path, capsys):
    told(tmp_path, GPT, 'reduce: late')
    path = str(tmp_path / 'schedule.yaml')
    expected = [{'key': 'plan.reduce', 'value': 'late', 'why': load_case(path).predict().without_effect[0].why}]
    for verb in ('run', 'check'):
        assert cli.main([verb, path, *(['--full'] if verb == 'run' else [])]) == 0
        assert capsys.readouterr().out.split('\n')[1].startswith('without effect here: plan.reduce (late): tensor is 1')
        assert cli.main([verb, path, '--json']) == 0
        assert json.loads(capsys.readouterr().out)['without_effect'] == expected
    assert cli.main(['sweep', path, '--sweep', 'plan.reduce=early,late', '--sweep', 'plan.zero=0,3']) == 0
    assert 'Note: plan.reduce is without effect here' in capsys.readouterr().out
    assert cli.main(['sweep', path, '--sweep', 'plan.reduce=early,late', '--sweep', 'plan.zero=0,3', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['without_effect'] == ['plan.reduce']


def test_set_and_a_schedule_without_a_file_are_looked_at_alike(tmp_path):
    told(tmp_path, GPT, '{}')
    schedule = load_schedule(tmp_path / 'schedule.yaml', ['plan={reduce: late}'])
    bare = replace(schedule, origins={})
    assert [one.key for one in case_of(schedule).without_effect()] == ['plan.reduce']
    assert [one.key for one in case_of(bare).without_effect()] == ['plan.reduce']
    assert choices(bare, cluster_of(bare))[1].reduce == 'late'
