"""The command line: verbs and flags pinned, exit codes, what is printed, how soon."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from every import some
from tables import load_table
from test_without_effect import SMALLER

from simpar import cli
from simpar.files import read_csv

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / 'examples').glob('*.yaml'))
TUTORIAL = ROOT / 'examples' / 'multi_copy.yaml'
CHECKED = some(EXAMPLES, 8)

FLAGS = {
    'run': [
        '--anchor', '--chakra', '--decides', '--fit', '--full', '--html', '--json', '--legend', '--limit', '--module',
        '--net', '--op', '--plot', '--quiet', '--save', '--set', '--steps', '--trace', '--trace-ranks',
        '--trace-steps', '--train', 'file',
    ],
    'check': [
        '--device', '--fake', '--ir', '--json', '--limit', '--module', '--numerics', '--op', '--program', '--set',
        'file',
    ],
    'resolve': ['--json', '--limit', '--module', '--op', '--set', 'file'],
    'sweep': [
        '--across', '--csv', '--jobs', '--journal', '--json', '--markdown', '--module', '--op', '--plot',
        '--scheduler', '--set', '--sweep', 'file',
    ],
    'plan': [
        '--brief', '--devices', '--export', '--gap', '--jobs', '--journal', '--json', '--module', '--op', '--plot',
        '--save', '--scheduler', '--seconds', '--set', '--train', 'file',
    ],
    'measure': [
        '--baseline', '--compute', '--device', '--html', '--json', '--limit', '--module', '--net', '--op', '--plot',
        '--save', '--save-state', '--seed', '--set', '--steps', '--time-ops', '--timeout', '--trace', 'file',
    ],
    'why-not': ['--html', '--json', '--limit', '--module', '--op', '--overlap', '--set', 'file'],
    'compare': ['--json', '--plot', '--tolerance', 'measurement', 'prediction'],
    'calibrate': ['--compute', '--device', '--dtype', '--json', '--net', '--quick', '--ranks', 'output'],
    'profiles': ['--json', 'name'],
    'schema': [],
    'completion': ['shell'],
    'import': ['--cluster', '--for', '--full', '--json', '--model', '--output', '--save', '--set', 'file'],
    'export': ['--given', '--json', '--onto', '--output', '--set', '--to', 'file'],
    'init': ['--batch', '--cluster', '--devices', '--json', '--model', '--nodes', '--output', '--sequence'],
    'trace': ['--communication', '--for', '--html', '--json', '--what-if', 'recording'],
    'script': ['--checkpoint', '--device', '--every', '--json', '--resume', '--set', '--steps', 'file', 'launcher'],
    'show': ['page'],
    'diff': ['--json', 'new', 'old'],
    'examples': ['--copy', '--json', 'name'],
    'validate': ['--data', '--jobs', '--json', '--limit', '--memory', '--plot', '--set', '--without'],
    'replay': ['--cluster', '--json', '--scale', 'file'],
    'warmup': ['--json'],
}  # fmt: skip


LARGE = """
simpar: 1
cluster: h100-sxm-8
workload: {transformer: {layers: 2, hidden: 8192, heads: 64, vocab: 65536, sequence: 8192}, batch: 4096}
"""


def verbs():
    action = next(a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return action.choices


PAIRS = [(verb, row) for row in read_csv(ROOT / 'simpar/commands/flag_pairs.csv') for verb in row['verbs'].split()]
VALUES = {'--jobs': '2', '--limit': '1GB', '--train': 'tokens=1B', '--given': 'a=1', '--what-if': 'rank=3:1.2'}


@pytest.mark.parametrize(('verb', 'row'), PAIRS, ids=[f'{verb} {row["flag"]}' for verb, row in PAIRS])
def test_a_flag_is_refused_beside_another_or_without_one(verb, row, refused):
    """Before any file is looked for."""
    kinds = {
        flag['flag']: flag['kind']
        for flag in read_csv(ROOT / 'simpar/commands/flags.csv')
        if verb in flag['verbs'].split()
    }
    needed = {'validate': [], 'script': ['slurm', 'absent.yaml'], 'export': ['absent.yaml', '--to', 'megatron']}
    words = needed.get(verb, ['absent.yaml'])
    for flag in filter(None, (row['flag'], row['beside'])):
        value = {('plan', '--devices'): '8', ('check', '--device'): 'npu'}.get((verb, flag), VALUES.get(flag, 'x'))
        words += [flag] if kinds[flag] == 'switch' else [flag, value]
    assert f'{row["flag"]}: {row["what"]}; {row["instead"]}' in refused(verb, *words)


def test_verbs_and_flags_are_these():
    found = {
        name: sorted(action.option_strings[0] if action.option_strings else action.dest for action in verb._actions[1:])
        for name, verb in verbs().items()
    }
    assert found == FLAGS


@pytest.mark.parametrize('example', some(EXAMPLES, 4), ids=lambda path: path.stem)
def test_every_example_is_predicted_and_checked(example, printed):
    smaller = [word for key in SMALLER.get(example.stem, ()) for word in ('--set', key)]
    assert 'Critical path' in printed('run', str(example), '--full', *smaller)
    if example in CHECKED:
        assert 'collectives of a step' in printed('check', str(example), *smaller)


def test_json_is_one_object_and_nothing_else(json_of, printed):
    for words in (['run', str(TUTORIAL)], ['check', str(TUTORIAL)], ['profiles'], ['profiles', 'h100-sxm-8']):
        json_of(*words)
    assert json.loads(printed('schema'))['title'] == 'simpar schedule'


def test_the_plot_the_trace_and_the_recording_are_written(tmp_path, capsys):
    words = ['--plot', tmp_path / 'deep' / 'p.png', '--trace', tmp_path / 'trace', '--save', tmp_path / 'p.json']
    assert cli.main(['run', str(TUTORIAL), *map(str, words)]) == 0
    assert (tmp_path / 'deep' / 'p.png').read_bytes().startswith(b'\x89PNG')
    assert json.loads((tmp_path / 'trace' / 'rank0.json').read_text(encoding='utf-8'))['traceEvents']
    assert 'wrote' in capsys.readouterr().out
    assert cli.main(['compare', str(tmp_path / 'p.json'), str(tmp_path / 'p.json'), '--tolerance', '0%']) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ['deep', 'p.json', 'trace']


def test_a_comparison_outside_the_tolerance_exits_with_4(tmp_path, capsys):
    for name, copies in (('a', 1), ('b', 1)):
        speed = {'a': 1.0, 'b': 0.5}[name]
        words = ['--set', f'plan.copies={copies}', '--set', f'cluster.slow={{0: {speed}}}']
        assert cli.main(['run', str(TUTORIAL), *words, '--save', str(tmp_path / name)]) == 0
    assert cli.main(['compare', str(tmp_path / 'a'), str(tmp_path / 'b')]) == 0
    assert cli.main(['compare', str(tmp_path / 'a'), str(tmp_path / 'b'), '--tolerance', '10%']) == 4
    assert 'step' in capsys.readouterr().err


def test_a_program_written_by_check_is_read_back(tmp_path, json_of):
    from simpar.program.text import parse_program

    facts = json_of('check', str(TUTORIAL), '--program', str(tmp_path / 'x.program'))
    assert parse_program((tmp_path / 'x.program').read_text(encoding='utf-8')).hash == facts['program']


WRONG = {
    'verb': (['rnu', 'x'], 2, 'did you mean run?'),
    'flag': (['run', 'x.yaml', '--polt', 'y'], 2, 'did you mean --plot?'),
    'missing file': (['run', 'nowhere.yaml'], 2, 'nowhere.yaml'),
    'tolerance': (['compare', 'a', 'b', '--tolerance', '7'], 2, '10%'),
    'steps': (['measure', TUTORIAL, '--steps', '0'], 2, 'whole number from 1'),
    'net': (['measure', TUTORIAL, '--net', 'wifi'], 2, '--net: not a network'),
}


@pytest.mark.parametrize('case', WRONG, ids=str)
def test_wrong_use_is_one_screen_and_never_a_traceback(case, capsys):
    words, code, said = WRONG[case]
    try:
        returned = cli.main([*map(str, words)])
    except SystemExit as left:
        returned = left.code
    out, errors = capsys.readouterr()
    assert (returned, out) == (code, '')
    assert said in errors
    assert len(errors.splitlines()) <= 25


def test_an_unwritable_output_is_named(tmp_path, refused):
    target = tmp_path / 'file'
    target.write_text('x', encoding='utf-8')
    errors = refused('run', TUTORIAL, '--save', target / 'below.json')
    assert 'Traceback' not in errors
    assert str(target) in errors


def test_a_closed_pipe_is_no_error():
    command = f'{sys.executable} -m simpar check {TUTORIAL} | head -1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr == ''


def test_without_torch_measuring_says_what_to_install(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None if name == 'torch' else find(name))
    for words in (['measure', TUTORIAL], ['check', TUTORIAL, '--numerics']):
        assert cli.main([*map(str, words)]) == 5
        told = 'torch is not installed; install the extra: pip install "simpar-parallel[torch]"\n'
        assert capsys.readouterr().err == told


def test_the_same_file_gives_the_same_bytes_whatever_the_hash_seed(tmp_path):
    # The seed of this process is drawn.
    traces = []
    for name in ('here', 'zero'):
        folder = tmp_path / name
        words = [*map(str, ('run', TUTORIAL, '--trace', folder, '--save', folder / 'saved'))]
        if name == 'here':
            assert cli.main(words) == 0
        else:
            seeded = {**os.environ, 'PYTHONHASHSEED': '0'}
            subprocess.run([sys.executable, '-m', 'simpar', *words], check=True, cwd=ROOT, env=seeded)
        files = sorted(path for path in folder.rglob('*') if path.is_file())
        traces.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    assert traces[0] == traces[1]
    assert len(traces[0]) == 10


def test_a_wrong_profile_is_told_beside_all_else_that_is_wrong(tmp_path, refused):
    path = tmp_path / 'wrong.yaml'
    path.write_text(TUTORIAL.read_text().replace('cluster: ascend910a-8', 'cluster: ascend910x'))
    told = refused('run', str(path), '--set', 'plan.copeis=2')
    assert 'did you mean ascend910' in told
    assert '--set plan.copeis=2' in told
    assert f'{path}:4: cluster: unknown profile' in told


def test_errors_are_one_json_object_where_json_is_asked_for(tmp_path, capsys):
    path = tmp_path / 'wrong.yaml'
    path.write_text(TUTORIAL.read_text().replace('copies: 2', 'copeis: 2'))
    assert cli.main(['run', str(path), '--json']) == 2
    told = json.loads(capsys.readouterr().out)
    assert told['format'] == 'simpar error 1'
    assert told['error']['exit_code'] == 2
    assert [problem['where'].rpartition(':')[0] for problem in told['error']['problems']] == [str(path)]
    assert 'did you mean copies' in told['error']['problems'][0]['instead']
    # What does not fit has its answer, and no second object.
    path.write_text(LARGE)
    assert cli.main(['run', str(path), '--json']) == 3
    assert json.loads(capsys.readouterr().out)['fits'] is False


def test_quiet_prints_the_headline_and_steps_are_as_many_as_asked(json_of, printed):
    assert len(printed('run', str(TUTORIAL), '--quiet').splitlines()) == 1
    assert json_of('run', str(TUTORIAL), '--steps', '5')['step'] > 0


def test_a_flag_that_stands_twice_is_refused_unless_it_may_be_repeated(capsys):
    """argparse alone takes the last one without a word."""
    rows = read_csv(Path(cli.__file__).parent / 'commands' / 'flags.csv')
    values = {'counts': '8', 'positive': '8', 'integer': '8', 'ranks': '0', 'percent': '5%'}
    once = [
        row for row in rows if row['flag'][0] == '-' and row['kind'] not in ('switch', 'texts', 'limits', 'trainings')
    ]
    assert len(once) > 60
    for row in once:
        value = row['choices'].partition(' ')[0] or values.get(row['kind'], 'a')
        with pytest.raises(SystemExit) as left:
            cli.main([row['verbs'].split()[0], row['flag'], value, row['flag'], value])
        assert left.value.code == 2
        said = capsys.readouterr().err
        assert f'argument {row["flag"]}: stands twice; write it once' in said
        assert 'did you mean' not in said


@pytest.mark.parametrize(
    ('words', 'told'), load_table(__file__, 'test_what_cannot_be_written_is_refused_before_the_work')
)
def test_what_cannot_be_written_is_refused_before_the_work(words, told, tmp_path, refused, monkeypatch):
    file = tmp_path / 'file'
    file.touch()
    monkeypatch.setattr('simpar.case.Case.predict', None)
    verb, *flags = words.replace('FILE', str(file)).replace('HERE', str(tmp_path)).split()
    said = refused(verb, str(TUTORIAL), *flags)
    assert told.replace('FILE', str(file)).replace('HERE', str(tmp_path)) in said
    assert [one.name for one in tmp_path.iterdir()] == ['file']


@pytest.mark.parametrize('shell', ['bash', 'zsh', 'fish'])
def test_shells_complete_every_verb_and_flag(shell, printed):
    script = printed('completion', shell)
    for verb, parser in verbs().items():
        assert verb in script
        flags = [flag for flag in parser._option_string_actions if flag.startswith('--')]
        assert all(flag.removeprefix('--') in script for flag in flags)


def test_bash_completes_what_is_typed(printed):
    script = printed('completion', 'bash')
    ask = 'COMP_WORDS=(simpar run --js); COMP_CWORD=2; _simpar; echo "${COMPREPLY[@]}"'
    done = subprocess.run(['bash', '-c', f'{script}\n{ask}'], capture_output=True, text=True, check=True)
    assert done.stdout == '--json\n'
