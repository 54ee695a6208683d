"""Resolving writes every choice: the same program and baseline, nothing automatic left, nothing new the next time."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from small_schedules import small_schedule
from tables import load_tree

from simpar import cli
from simpar.case import case_of, load_case, written_out

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
SEEDS = 10


def saved(tree, folder):
    path = folder / 'resolved.yaml'
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding='utf-8')
    return path


def hashes(case):
    return case.program.hash, case.baseline.program.hash if case.baseline else None


@pytest.mark.parametrize('example', EXAMPLES, ids=lambda path: path.stem)
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
    for seed in range(SEEDS):
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
