"""Keys without effect: what is told is what leaving keys out shows, and every key has its words."""

import random
from collections import Counter
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from every import EVERY, some
from tables import load_table, load_tree

from simpar import Plan, cli, load_schedule
from simpar.ablation.find import same
from simpar.ablation.rules import Facts, inert, says_the_choice, user_keys, without_keys
from simpar.case import case_of, choices, cluster_of, load_case, written_out
from simpar.errors import SimparError
from simpar.files import read_csv
from simpar.keys import ROWS
from simpar.lower import lower
from simpar.model import Dense, Flatten, Gelu, LayerNorm, Network, Relu
from simpar.schedule import ClusterReference, Schedule
from simpar.workload import Adam, AdamW, Sgd, Transformer, Workload

# Random small schedules whose plans have many keys, of which some have no effect where they stand.

RANKS = (1, 2, 4)
SHARDING = ('zero', 'hsdp', 'shard')
VALUES = {
    'dataset': ['full-batch'],
    'redistribution': ['mindspore-2.0', 'mindspore-2.10'],
    'all_to_all': [True],
    'device_matrix': [{'a': 2}],
    'reduce': ['late'],
    'receive': ['late'],
    'exchange': ['fused'],
    'copies': [2],
    'copies_loss': ['sum'],
    'sum_loss': [True],
    'micro_batches': [2],
    'zero': [1, 2, 3],
    'hsdp': ['level1', 'level2', 'level3'],
    'shard': [('state',), ('weights', 'state')],
    'gather': ['on-use-twice', 'on-use'],
    'shard_group': [2],
    'shard_threshold': [0.0, 0.0, 300.0, 1e6],
    'unsharded': [('*.bias',), ('zzz*',), ('*',), ('*.bias', 'zzz')],
    'accumulate': ['full', 'sharded'],
    'prefetch': [0, 2, 5],
    'reduce_gradients': ['end'],
    'fusion': ['none', 'all', 300.0, 'auto', 'ids'],
    'tiles': [2, 3],
    'streams': ['single'],
    'order': ['gpipe', 'zb-h1'],
    'recompute': [('*',), ('*norm*', '*.gelu')],
    'recompute_stages': [(0,)],
    'recompute_communication': [False],
    'overlap': [
        (),
        ('matmul_grad_comm_overlap',),
        ('enable_grad_comm_opt', 'recompute_comm_overlap'),
        ('enable_opt_shard_comm_opt', 'matmul_grad_comm_overlap', 'enable_grad_comm_opt'),
    ],
    'compat': ['2.0'],
    'objective': ['time'],
}
"""Values other than the default, of every key that may have no effect."""


@cache
def small_schedule(seed):
    """A schedule with some of these values, its plan with every choice made, and its program."""
    draw = random.Random(seed)
    while True:
        world = draw.choice((1, 2, 2, 4, 4))
        workload, plan = _workload(draw, world), _plan(draw, world)
        schedule = Schedule(
            simpar=1,
            cluster=ClusterReference(profile='h100-sxm-8', devices=world, stack='none'),
            workload=workload,
            plan=plan,
        )
        try:
            found, chosen = choices(schedule, cluster_of(schedule))
            return schedule, chosen, lower(found.workload, chosen, world)
        except SimparError:
            continue


def _plan(draw, world):
    pipeline = draw.choice([1, 1, 2]) if world > 1 else 1
    tensor = draw.choice([1, 2]) if world // pipeline > 1 else 1
    wanted = set(draw.sample(sorted(VALUES), draw.randint(3, 8)))
    wanted |= {draw.choice(SHARDING)} if draw.random() < 0.5 else set()
    wanted |= {'recompute'} if draw.random() < 0.4 else set()
    wanted |= {'shard_threshold'} if 'hsdp' in wanted else set()
    wanted |= {'all_to_all'} if draw.random() < 0.3 else set()
    values = {key: draw.choice(VALUES[key]) for key in sorted(wanted)}
    if 'gather' in wanted and draw.random() < 0.7:
        values |= {'shard': ('weights', 'state'), 'zero': 0, 'hsdp': 'off', 'gather': 'on-use-twice'}
    return replace(Plan(pipeline=pipeline, tensor=tensor), **values)


def _workload(draw, world):
    return Workload(
        model=draw.choice([_transformer, _chain, _strategies, _strategies])(draw, world),
        batch=16,
        optimizer=draw.choice([Sgd(), Adam(master_weights=True), AdamW(learning_rate=0.1)]),
        clip_norm=draw.choice([0.0, 0.0, 1.0]),
        precision=draw.choice(['fp32', 'bf16']),
        gradients=draw.choice([None, 'fp32']),
    )


def _transformer(draw, world):
    return Transformer(
        layers=draw.choice([2, 3]),
        hidden=8,
        heads=2,
        vocab=16,
        sequence=4,
        ffn=draw.choice([0, 32, 16]),
        kv_heads=draw.choice([0, 2]),
        tied=draw.random() < 0.3,
    )


def _dense(draw, **keys):
    marks = {'comm_fusion': draw.choice([None, None, 1, 2]), 'recompute': draw.random() < 0.2}
    return Dense(inputs=8, outputs=8, bias=draw.random() < 0.7, **marks, **keys)


def _chain(draw, world):
    relus = [Relu(recompute=draw.random() < 0.3) for _ in range(2)]
    return Network(layers=(Flatten(), _dense(draw), relus[0], _dense(draw), relus[1], _dense(draw)))


def _strategies(draw, world):
    rows = draw.choice([count for count in RANKS if world % count == 0])
    first = _dense(draw, strategy=((rows, 1), (1, world // rows))) if draw.random() < 0.7 else _dense(draw)
    between = [Gelu(recompute=draw.random() < 0.3), *([LayerNorm()] if draw.random() < 0.5 else [])]
    second = _dense(draw, strategy=((1, world), (world, 1))) if draw.random() < 0.5 else _dense(draw)
    return Network(layers=(first, *between, second, Relu(), _dense(draw)), input=(8,))


SEEDS = range(90) if EVERY == 1 else (
    5, 7, 24, 25, 30, 33, 34, 35, 36, 46, 50, 53, 60, 61, 65, 73, 75, 77, 84, 85,
)  # fmt: skip
"""Of ninety schedules those that together tell each key, leave it untold, and have each rule, where any do."""
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


def test_shards_of_one_flat_message_of_all_weights_are_shards():
    model = {'layers': 1, 'hidden': 36, 'heads': 3, 'vocab': 512, 'sequence': 64}
    work = {'transformer': model, 'batch': 8, 'optimizer': {'adamw': {'learning_rate': 0.1}}}
    tree = {'simpar': 1, 'cluster': 'h100-sxm-8', 'workload': work, 'against': {}}
    case = case_of(load_schedule({**tree, 'plan': {'zero': 1, 'fusion': 'all'}}))
    assert 'plan.zero' not in {one.key for one in case.without_effect()}


def test_a_key_is_told_if_and_only_if_the_program_is_the_same_without_it():
    """By lowering without each key alone; of keys that are left untold though nothing changes without one of them, each
    says what is chosen anyway, or something changes without all of them."""
    told_keys, untold = set(), set()
    for seed in SEEDS:
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
    for seed in SEEDS:
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
SITUATIONS = [tuple(row.values()) for row in read_csv(Path(__file__).with_name('situations.csv'))]
"""Model, plan, the keys that are told, and words of the reason."""


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


@pytest.mark.parametrize('plan', load_table(__file__, 'test_what_says_the_same_twice_or_as_by_default_is_not_told'))
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


def test_it_stands_below_the_headline_and_in_json(tmp_path, json_of, printed):
    told(tmp_path, GPT, 'reduce: late')
    path = str(tmp_path / 'schedule.yaml')
    expected = [{'key': 'plan.reduce', 'value': 'late', 'why': load_case(path).predict().without_effect[0].why}]
    for verb in ('run', 'check'):
        assert (
            printed(verb, path, *(['--full'] if verb == 'run' else []))
            .split('\n')[1]
            .startswith('without effect here: plan.reduce (late): tensor is 1')
        )
        assert json_of(verb, path)['without_effect'] == expected
    assert 'Note: plan.reduce is without effect here' in printed(
        'sweep', path, '--sweep', 'plan.reduce=early,late', '--sweep', 'plan.zero=0,3'
    )
    assert json_of('sweep', path, '--sweep', 'plan.reduce=early,late', '--sweep', 'plan.zero=0,3')[
        'without_effect'
    ] == ['plan.reduce']


def test_set_and_a_schedule_without_a_file_are_looked_at_alike(tmp_path):
    told(tmp_path, GPT, '{}')
    schedule = load_schedule(tmp_path / 'schedule.yaml', ['plan={reduce: late}'])
    bare = replace(schedule, origins={})
    assert [one.key for one in case_of(schedule).without_effect()] == ['plan.reduce']
    assert [one.key for one in case_of(bare).without_effect()] == ['plan.reduce']
    assert choices(bare, cluster_of(bare))[1].reduce == 'late'


# Resolving writes every choice: the same program and baseline, nothing automatic left, nothing new the next time


ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / 'examples').glob('*.yaml'))
SMALL = ['workload.transformer.layers=4']
SHORT = ['plan.pipeline=4', 'plan.micro_batches=8']
SMALLER = {
    'gpt3_175b': ['workload.transformer.layers=16', 'plan.micro_batches=16'],
    'pipeline_h100': ['workload.transformer.layers=8', 'plan.micro_batches=8'],
    'deepseek_v3_h100': ['cluster.nodes=64', 'workload.transformer.layers=16', *SHORT],
    'mixtral_8x7b_h100': ['workload.transformer.layers=8', 'plan.micro_batches=8'],
    'sequence_chunks': ['plan.micro_batches=8'],
    **dict.fromkeys(('transformer_h100_7b', 'transformer_910b_7b', 'when_sharding_pays', 'tiles', 'overlap'), SMALL),
}
DRAWN = 10


def saved(tree, folder):
    path = folder / 'resolved.yaml'
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding='utf-8')
    return path


def hashes(case):
    return case.program.hash, case.baseline.program.hash if case.baseline else None


@pytest.mark.parametrize('example', some(EXAMPLES, 6), ids=lambda path: path.stem)
def test_a_resolved_example_is_the_same_program_and_resolves_to_itself(example, tmp_path):
    case = load_case(example, SMALLER.get(example.stem, []))
    tree = written_out(case)
    again = load_case(saved(tree, tmp_path))
    assert hashes(again) == hashes(case)
    assert written_out(again) == tree
    # What the framework decides stands in the file now, as if the user had asked for it.
    decided = {'.'.join(map(str, key)) for key in case.schedule.of_stack}
    assert {one.key for one in again.without_effect()} <= {one.key for one in case.without_effect()} | decided


def test_resolved_random_schedules_are_the_same_programs_and_resolve_to_themselves(tmp_path):
    for seed in range(DRAWN):
        schedule, _, program = small_schedule(seed)
        tree = written_out(case_of(replace(schedule, against={})))
        again = load_case(saved(tree, tmp_path))
        assert again.program.hash == program.hash, seed
        assert written_out(again) == tree, seed


CHOICES = load_tree(__file__, 'CHOICES')


def test_every_choice_is_written(put, json_of):
    for plan, expected in CHOICES.items():
        path = put(
            'schedule.yaml',
            'simpar: 1\ncluster: {profile: h100-sxm-8, stack: none}\nworkload:\n'
            '  transformer: {layers: 5, hidden: 64, heads: 8, vocab: 64, '
            f'sequence: 32}}\n  batch: 64\nplan: {plan}\n',
        )
        tree = json_of('resolve', path)
        assert {key: tree['plan'].get(key) for key in expected} == expected
        model = tree['workload']['transformer']
        assert (model['ffn'], model['kv_heads'], tree['workload']['gradients']) == (256, 8, 'fp32')
        assert tree['workload']['optimizer'] == {'sgd': {'learning_rate': 0.01, 'master_weights': False}}
        assert (tree['cluster']['devices'], tree['against']) == (8, {})
        empty = [key for key, value in tree['plan'].items() if value in ('', [], {}, None, 'balanced', 'predicted')]
        assert empty == []


def test_a_baseline_of_other_presets_has_choices_of_its_own(tmp_path):
    path = saved(written_out(load_case(ROOT / 'examples' / 'transformer_h100_7b.yaml', SMALL)), tmp_path)
    case = load_case(path)
    against = case.schedule.against
    assert against == {
        'plan.zero': 1,
        'plan.shard': ['state'],
        'plan.gather': 'after-update',
        'plan.accumulate': 'full',
    }
    assert case.names == ('zero 3', 'zero 1')


def test_a_sweep_is_left_out_and_told(capsys):
    assert cli.main(['resolve', str(ROOT / 'examples' / 'tiles.yaml')]) == 0
    shown = capsys.readouterr()
    assert 'sweep' not in yaml.safe_load(shown.out)
    assert shown.err == 'the sweep of the file is left out: every row has choices of its own\n'
