"""A plan goes out in a framework's words and comes back; what does not is listed; own files change in few lines."""

import argparse
import json
import shlex
from functools import cache
from pathlib import Path

import pytest
from drawn_further import OPTIONS, with_further
from drawn_plans import DRAWN
from every import some
from launch_sources import FOLDER, SOURCES, given_beside, model_beside
from tables import load_table

from simpar import case_of, load_case, load_schedule
from simpar.cli import main
from simpar.errors import ScheduleError
from simpar.exporting.export import TARGETS, different, export, read_back, reimported
from simpar.exporting.onto import onto
from simpar.exporting.settings import plain, values_of
from simpar.files import read_csv
from simpar.importing.mapping import schedule_text
from simpar.importing.read import imported
from tests.prove_round_trip import Plan, returned

pytestmark = pytest.mark.usefixtures('one_session')
ARGUMENTS = Path(__file__).parent / 'recorded' / 'megatron_arguments.csv'
"""Facts of NVIDIA/Megatron-LM d98e8a64dd: names, types, choices and counts of words of all its arguments."""
CHECKS = Path(__file__).parent / 'recorded' / 'megatron_checks.csv'
"""The same of its checks: what stands beside what, with the line under megatron/ that says so."""


FACTS = Path(__file__).parent / 'recorded' / 'launcher_keys.csv'
"""Keys and types that MindSpeed's parser and the classes of DeepSpeed and Accelerate have, with their commits; `make
prove NAME=parsers` asks the classes themselves."""


def facts_of(launcher):
    """Types of a launcher's settings by name."""
    rows = read_csv(FACTS)
    return {row['key']: row['type'] for row in rows if row['launcher'] == launcher}


@pytest.mark.parametrize('seed', [*some(range(16)), 25])
def test_a_drawn_plan_of_megatron_comes_back_as_the_same_program(seed):
    schedule = load_schedule(DRAWN['megatron'](seed))
    made = export(schedule, 'megatron')
    assert made.unsaid == ()
    values = values_of(schedule)
    back = load_schedule(schedule_text(reimported(TARGETS['megatron'], made.text, values, {}), 'megatron.sh'))
    mine, other = case_of(schedule), case_of(back)
    # The kind of program, not our own list of what is said, is the judge.
    assert mine.program.hash == other.program.hash
    assert read_by_its_arguments(made) is not None


MOST_SEEDS = 60
FURTHER = [(name, place) for name, options in OPTIONS.items() for place in range(len(options))]


@pytest.mark.parametrize(('framework', 'place'), some(FURTHER))
def test_each_further_key_goes_out_and_comes_back_or_is_listed(framework, place):
    count, (keys, needs) = len(OPTIONS[framework]), OPTIONS[framework][place]
    drawn = ((DRAWN[framework](seed), seed) for seed in range(place, MOST_SEEDS * count, count))
    fits = (one for one in drawn if needs(one[0]['plan'], one[0]['workload']['transformer']))
    tree = next(tree for tree, taken in (with_further(framework, *one) for one in fits) if keys in taken)
    assert returned(Plan(framework, framework, load_schedule(tree)))[0] in ('the same', 'listed')


def read_by_its_arguments(made):
    """The flags as a parser of the launcher's own arguments reads them; one that it does not know raises."""
    kinds = {'int': int, 'float': float}
    parser = argparse.ArgumentParser(exit_on_error=False, conflict_handler='resolve')
    for row in read_csv(ARGUMENTS):
        count = int(row['nargs']) if row['nargs'].isdecimal() else row['nargs']
        more = {'nargs': count} if count else {}
        more |= {'choices': list(map(kinds.get(row['type'], str), row['choices'].split()))} if row['choices'] else {}
        _argument(parser, row['flag'], row['type'], kinds, more)
    if made.framework == 'MindSpeed-LLM':
        for key, kind in facts_of('mindspeed').items():
            _argument(parser, key, kind, kinds, {})
    arrays = made.text.partition('MODEL=(')[2].partition('# Data')[0]
    words = [word for word in shlex.split(arrays) if word not in ('(', ')', 'TRAINING=(', 'PLAN=(')]
    found, rest = parser.parse_known_args(words)
    assert rest == []
    checked_by_megatron(found)
    return found


def _argument(parser, flag, kind, kinds, more):
    if kind == 'switch':
        parser.add_argument(f'--{flag}', action='store_true')
    else:
        parser.add_argument(f'--{flag}', type=kinds.get(kind, str), **more)


def checked_by_megatron(found):
    """What its own checks ask of flags that are given; degrees that are not are 1."""
    values = {
        name: 1 if value is None and name.endswith('_parallel_size') else value for name, value in vars(found).items()
    }
    for row in read_csv(CHECKS):
        if eval(row['when'], {}, values):
            assert eval(row['needs'], {}, values), row


# `make prove NAME=field` imports the large ones, too.
LARGE = ('mindformers', 'deepseek3', '405b')
FILES = {name: name.partition('_')[0] for name in SOURCES if not any(one in name for one in LARGE)}


@cache
def of_file(name):
    """The schedule of a public file."""
    made = imported(FOLDER / name, given=given_beside(name), model=model_beside(name))
    return load_schedule(schedule_text(made, name), ['against={}'])


@pytest.mark.parametrize(('name', 'framework'), FILES.items())
def test_a_public_file_goes_out_and_comes_back(name, framework):
    schedule = of_file(name)
    made = export(schedule, framework)
    assert made.unsaid == ()
    values = values_of(schedule)
    _, back = read_back(TARGETS[framework], list(made.settings), values)
    assert not list(different(values, back, full=True))


@pytest.mark.parametrize(('name', 'framework'), [one for one in FILES.items() if one[1] != 'deepspeed'])
def test_a_file_that_says_the_plan_is_not_touched(name, framework):
    edited = onto(of_file(name), framework, FOLDER / name, given=given_beside(name))
    assert edited.difference == ''
    assert edited.text == (FOLDER / name).read_text(encoding='utf-8')


CHANGES = load_table(__file__, 'CHANGES')


@pytest.mark.parametrize('change', CHANGES, ids=' '.join)
def test_only_the_lines_of_a_change_change(change, tmp_path):
    own = tmp_path / 'own.sh'
    text = (FOLDER / 'megatron_llama3_8b_fp8.sh').read_text(encoding='utf-8')
    own.write_text(text, encoding='utf-8')
    made = schedule_text(imported(own, given={}), own.name)
    words = [f'{key}={value}' for key, value in change.items()]
    edited = onto(load_schedule(made, ['against={}', *words]), 'megatron', own)
    changed = [line for line in edited.difference.splitlines() if line[:1] in '+-' and line[:3] not in ('+++', '---')]
    assert 0 < len(changed) <= 8
    own.write_text(edited.text, encoding='utf-8')
    again = load_schedule(schedule_text(imported(own, given={}), own.name))
    # Where nothing is sharded no gather is said.
    for key in [one for one in change if one != 'plan.gather']:
        value, found = change[key], again.value(key)
        assert str(found).lower() == str(value).lower(), key


def test_what_megatron_cannot_say_is_listed_with_the_nearest(capsys):
    assert main(['export', 'examples/llama3_8b_h100.yaml', '--to', 'megatron']) == 0
    told = capsys.readouterr()
    assert 'plan.copies: 2 is not said; what is written is 1' in told.err
    assert '# Not said: plan.copies: 2' in told.out


def test_what_a_framework_cannot_say_is_told_with_what_it_costs(tmp_path, capsys):
    file = 'examples/llama3_8b_h100.yaml'
    assert main(['export', file, '--to', 'megatron', '--output', str(tmp_path / 'run.sh')]) == 0
    one, two = (load_case(file, ['against={}', f'plan.copies={copies}']).predict().step for copies in (1, 2))
    share = (one / two - 1) * 100
    expected = f'Megatron-LM: what is written: {one:.3g} s a step, {share:.1f} % slower than the plan ({two:.3g} s)'
    assert capsys.readouterr().err.splitlines()[-1] == expected


def test_a_file_of_another_batch_is_compared_by_its_rate(tmp_path, capsys):
    """Accelerate's file has no batch: each device takes one sample."""
    file = 'examples/context_parallel.yaml'
    assert main(['export', file, '--to', 'accelerate', '--output', str(tmp_path / 'own.yaml')]) == 0
    rate = 1 / load_case(file, ['against={}']).predict().step
    last = capsys.readouterr().err.splitlines()[-1]
    assert 'samples a second' in last
    assert f'than the plan ({rate:.4g}); it does not fit: ' in last


def test_a_model_of_layers_has_no_flags():
    with pytest.raises(ScheduleError, match='a model of layers or a module'):
        export(load_schedule('examples/multi_copy.yaml'), 'megatron')


def test_an_unknown_framework_is_refused(refused):
    assert 'write one of megatron' in refused('export', 'examples/multi_copy.yaml', '--to', 'jax')


def test_a_file_of_another_launcher_is_refused(tmp_path):
    schedule = load_schedule('examples/llama3_8b_h100.yaml')
    with pytest.raises(ScheduleError, match='a file of MindSpeed, not of Megatron-LM'):
        onto(schedule, 'megatron', FOLDER / 'mindspeed_llama2_7b.sh')


@pytest.mark.parametrize('seed', some(range(8)))
@pytest.mark.parametrize('framework', ['deepspeed', 'accelerate', 'torchtitan', 'mindspeed'])
def test_a_drawn_plan_is_said_whole(framework, seed):
    made = export(load_schedule(DRAWN[framework](seed)), framework)
    unsaid = {one.key for one in made.unsaid}
    # Accelerate's file has neither batch nor, without DeepSpeed, micro-batches: they are the program's, and are listed.
    assert unsaid <= ({'workload.batch', 'plan.micro_batches'} if framework == 'accelerate' else set())
    assert framework != 'mindspeed' or read_by_its_arguments(made) is not None


@pytest.mark.parametrize(('context', 'listed'), [(1, set()), (2, {'plan.shard'})])
def test_groups_of_one_rank_share_nothing_out(context, listed):
    drawn = DRAWN['torchtitan'](0)
    drawn['plan'] = {'data': 4, 'context': context, 'zero': 3, 'shard_group': 1, 'micro_batches': 1}
    drawn['cluster'] = {'profile': 'h100-sxm-8', 'stack': drawn['cluster'].get('stack', 'none'), 'devices': 4 * context}
    made = export(load_schedule(drawn), 'torchtitan')
    settings = {one.name.rpartition('.')[2]: one.value for one in made.settings}
    assert (settings['data_parallel_replicate_degree'], settings['data_parallel_shard_degree']) == (4, 1)
    # torchtitan's context ranks hold shards, whatever else does.
    assert {one.key for one in made.unsaid} & {'plan.shard', 'plan.shard_group'} == listed


@pytest.mark.parametrize('seed', some(range(6)))
@pytest.mark.parametrize('framework', ['deepspeed', 'accelerate'])
def test_a_file_has_keys_and_types_that_its_reader_knows(framework, seed):
    kinds = facts_of(framework)
    types = {'int': int, 'float': (int, float), 'bool': bool, 'str': (str, bool), 'config': dict}
    for one in export(load_schedule(DRAWN[framework](seed)), framework).settings:
        kind = kinds.get(one.name) or kinds[one.name.rpartition('.')[0]]
        assert isinstance(plain(one.value), types.get(kind, object)) or kind == 'config', one


def test_the_best_plan_is_written_in_a_frameworks_words(tmp_path, printed):
    small = DRAWN['megatron'](1)
    small['planner'] = {'keys': {'plan.zero': [0, 1]}}
    path, script = tmp_path / 'small.json', tmp_path / 'run.sh'
    path.write_text(json.dumps(small), encoding='utf-8')
    schedule = tmp_path / 'small.yaml'
    schedule.write_text(path.read_text(encoding='utf-8'), encoding='utf-8')
    assert f'wrote {script}' in printed(
        'plan', str(schedule), '--brief', '--seconds', '1', '--export', f'megatron={script}'
    )
    assert '--global-batch-size' in script.read_text(encoding='utf-8')
    assert main(['plan', str(schedule), '--export', 'megatron']) == 2


def test_a_search_says_how_to_leave_out_what_a_framework_cannot_say(tmp_path, capsys):
    """Megatron-LM has no copies of a batch."""
    words = ['plan', 'examples/llama3_8b_h100.yaml', '--brief', '--seconds', '1', '--jobs', '1']
    words += ['--export', f'megatron={tmp_path / "run.sh"}', '--set', 'planner={keys: {plan.zero: [0, 1]}}']
    assert main(words) == 0
    assert 'search without what it cannot say by --set plan.copies=1\n' in capsys.readouterr().err
    assert main([*words, '--set', 'plan.copies=1']) == 0
    assert 'cannot say' not in capsys.readouterr().err


@pytest.mark.parametrize('window', [16, [16, 0]])
def test_windows_and_scales_of_mindspeed_are_whole_numbers_that_it_reads(window):
    tree = DRAWN['mindspeed'](0)
    tree['plan'] |= {'context': 1, 'data': tree['plan']['data'] * tree['plan']['context']}
    tree['workload']['transformer'] |= {'window': window, 'attention_scale': 0.25}
    made = export(load_schedule(tree), 'mindspeed')
    found = read_by_its_arguments(made)
    assert made.unsaid == ()
    assert 16 in (found.sliding_window, found.interleave_sliding_window)
    assert found.query_pre_attn_scalar == 16


@pytest.mark.parametrize('framework', ['megatron', 'mindspeed'])
def test_heads_exchanged_inside_of_a_ring_come_back_as_the_same_program(framework):
    tree = DRAWN[framework](0)
    tree['plan'] = {'data': 4, 'context': 4, 'context_kind': 'ring', 'context_by_heads': 2, 'zero': 1}
    tree['workload'] |= {'batch': 8}
    tree['workload']['transformer'] |= {'attention': 'flash', 'dropout': 0, 'pad_vocab': 1}
    schedule = load_schedule(tree)
    made = export(schedule, framework)
    assert made.unsaid == ()
    assert read_by_its_arguments(made) is not None
    back = reimported(TARGETS[framework], made.text, values_of(schedule), {})
    assert case_of(load_schedule(schedule_text(back, 'a.sh'))).program.hash == case_of(schedule).program.hash


def test_second_shards_come_back_from_deepspeed_where_its_groups_hold_the_same_weights():
    drawn = DRAWN['deepspeed'](0)
    drawn['plan'] = {'data': 8, 'zero': 3, 'second_shards': 4, 'micro_batches': 1, 'shard_threshold': '8 KB'}
    drawn['workload']['batch'] = 16
    made = export(load_schedule(drawn), 'deepspeed')
    assert {one.name.rpartition('.')[2]: one.value for one in made.settings}['zero_hpz_partition_size'] == 4
    assert 'plan.second_shards' not in {one.key for one in made.unsaid}
    # Neighbours among all ranks would be tensor ranks.
    drawn['plan'] |= {'data': 4, 'tensor': 2, 'second_shards': 2}
    assert 'plan.second_shards' in {one.key for one in export(load_schedule(drawn), 'deepspeed').unsaid}


def test_matrices_that_ranks_own_are_muon_with_the_distributed_optimizer():
    drawn = DRAWN['megatron'](0)
    drawn['plan'] = {'data': 8, 'zero': 1, 'shard_form': 'owned', 'micro_batches': 1}
    drawn['workload'] |= {'batch': 16, 'optimizer': {'muon': {'master_weights': True}}}
    drawn['cluster'] |= {'devices': 8, 'nodes': 1}
    made = export(load_schedule(drawn), 'megatron')
    assert {one.name: one.value for one in made.settings}.items() >= {
        'optimizer': 'muon',
        'use-distributed-optimizer': True,
    }.items()
    assert 'plan.shard_form' not in {one.key for one in made.unsaid}


def test_torchtitan_shards_over_no_more_than_its_data_ranks():
    """Ranks of a bidirectional pipeline hold each stage twice, so their groups of shards are twice as wide."""
    made = export(load_schedule(Path('examples/deepseek_v3_h100.yaml')), 'torchtitan')
    degrees = {one.name.rpartition('.')[2]: one.value for one in made.settings}
    assert (degrees['data_parallel_replicate_degree'], degrees['data_parallel_shard_degree']) == (1, 128)
    assert {'plan.order', 'plan.shard_group'} <= {one.key for one in made.unsaid}


def test_a_model_that_marks_stages_is_refused_where_a_framework_has_no_pipeline():
    with pytest.raises(ScheduleError, match=r'Accelerate cannot say all of it.*pipeline_stage marks') as refusal:
        export(load_schedule(Path('examples/hybrid.yaml')), 'accelerate')
    assert 'name another framework' in str(refusal.value)
