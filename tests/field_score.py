"""How many public files come in clean, by launcher: `make field`, or python -m tests.field_score.

    python -m tests.field_score                 import every recorded file, and print the table and what is missing
    python -m tests.field_score record FOLDER   record their settings anew; FOLDER has a clone of each repository
    python -m tests.field_score others FOLDER   the other training scripts of MindSpeed-LLM: how many are clean, and
                                                which keys the rest lacks

What is recorded are names and values of settings, with repository, commit and path. A script is recorded as the flags
that its training gets, so that the score is one of settings, not of shells. Clean is a file of which every setting is
mapped or has no effect; a file with gaps has settings that are not modelled or unknown; others are refused.
"""

import json
import lzma
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from simpar.document.tree import parse
from simpar.errors import ScheduleError
from simpar.importing.command_line import settings_of
from simpar.importing.findings import NOT_MODELLED, UNSEEN
from simpar.importing.mapping import Import
from simpar.importing.megatron import MEGATRON
from simpar.importing.mindspeed import MINDSPEED_HINTS
from simpar.importing.read import imported
from tests.tables import load_table

RECORDED = Path(__file__).parent / 'recorded' / 'field.json.xz'
SCORE = '| launcher | public files | clean | with gaps | refused | what is missing most often |'
# Launcher, repository, files of it, and how many of these at most.
FILES = load_table(__file__, 'FILES')
_ASKED = re.compile(r'--set ([\w.-]+)=')
_ANSWERS = {'vocab-size': '50432', 'micro-batch-size': '1', 'global-batch-size': '256'}
"""What a file is given that does not say it; of devices 8 nodes of 8."""


def record(folder: Path) -> None:
    """Write the list of settings anew, of the newest commit of each clone."""
    rows: list[dict] = []
    for launcher, repository, pattern, most in FILES:
        git, paths = _listed(folder, repository, pattern)
        rows += _recorded(git, launcher, repository, paths[:most])
    RECORDED.write_bytes(lzma.compress(json.dumps(rows).encode()))
    print(f'{len(rows)} files, {RECORDED.stat().st_size} bytes')


def _listed(folder: Path, repository: str, pattern: str) -> tuple[list[str], list[str]]:
    """How git is called in a clone, and the paths there that fit."""
    git = ['git', '-C', str(folder / repository.replace('/', '+') / 'repo')]
    paths = _output([*git, 'ls-tree', '-r', '--name-only', 'HEAD']).splitlines()
    return git, [one for one in paths if re.search(pattern, one)]


def _recorded(git: list[str], launcher: str, repository: str, paths: list[str]) -> Iterator[dict]:
    """What is recorded of each file."""
    commit = _output([*git, 'rev-parse', '--short=12', 'HEAD']).strip()
    for path in paths:
        row = {'launcher': launcher, 'source': f'{repository}@{commit}', 'path': path}
        try:
            facts = _facts(_output([*git, 'show', f'HEAD:{path}']), path)
        except ScheduleError as error:
            print(f'{path}: {error}', file=sys.stderr)
            continue
        beside = re.findall(r'parallel_speed_up_json_path: *"?([\w./-]+)', _output([*git, 'show', f'HEAD:{path}']))
        facts |= {'beside': found} if (found := _beside(git, Path(path).parent, beside)) else {}
        # A script that trains no model starts something else.
        if 'tree' in facts or '--num-layers' in json.dumps(facts['flags']):
            yield {**row, **facts}


def others(folder: Path) -> list[str]:
    """The other scripts of MindSpeed-LLM that train: how many are clean, and what the rest lacks, by key."""
    launcher, repository = 'MindSpeed-LLM', 'Ascend/MindSpeed-LLM'
    known = {row['path'] for row in files()}
    git, paths = _listed(folder, repository, r'\.sh$')
    rows = [row for row in _recorded(git, launcher, repository, [one for one in paths if one not in known])
            if re.match('(pre|post)train', row['trainer'])]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        made = [made_of(row, Path(name)) for row in rows]
    lacks = [frozenset(_lacking(one) or ['refused'] * isinstance(one, str)) for one in made]
    every, alone = (Counter(key for lack in lacks if len(lack) in sizes for key in lack)
                    for sizes in (range(1, 99), (1,)))  # fmt: skip
    count = f'{lacks.count(frozenset())} of {len(rows)} scripts are clean.'
    lines = [count, '', '| missing | scripts | alone |', '|---|---|---|']
    return [*lines, *(f'| `{key}` | {count} | {alone[key] or ""} |' for key, count in every.most_common())]


def _output(words: list[str]) -> str:
    return subprocess.run(words, check=True, capture_output=True).stdout.decode('utf-8', 'replace')


def _facts(text: str, path: str) -> dict[str, object]:
    """Names and values of the settings of a file, without its words and its paths."""
    if path.endswith(('.yaml', '.yml')):
        return {'tree': _bare(parse(text, path).root)}
    settings, _, _ = settings_of(text, path, MEGATRON, {})
    flags = [[one.called, _bare(one.value)] for one in settings.every if one.called.startswith('--')]
    trainer = settings.text('trainer') or 'pretrain_gpt.py'
    return {'flags': flags, 'trainer': trainer, 'ascend': bool(MINDSPEED_HINTS.search(text))}


def _beside(git: list[str], folder: Path, names: list[str]) -> dict[str, object]:
    """Files of overlap passes that stand in the folder of a file that names them."""
    listed = _output([*git, 'ls-tree', '--name-only', 'HEAD', f'{folder}/']).split()
    paths = [path for name in names if (path := f'{folder}/{Path(name).name}') in listed]
    return {Path(path).name: json.loads(_output([*git, 'show', f'HEAD:{path}'])) for path in paths}


def _bare(value: object) -> object:
    """A value without long texts, and paths without their folders."""
    if isinstance(value, dict):
        return {key: _bare(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_bare(one) for one in value[:16]]
    if isinstance(value, str):
        return re.sub(r'\0([^\0]*)\0', r'$\1', value).rpartition('/')[2][:60]
    return value


def files() -> list[dict]:
    """What is recorded of each file."""
    return json.loads(lzma.decompress(RECORDED.read_bytes()))


def made_of(row: dict, folder: Path) -> Import | str:
    """The import of a recorded file, or why it is refused."""
    path = folder / Path(row['path']).name
    for name, tree in row.get('beside', {}).items():
        (folder / name).write_text(json.dumps(tree), encoding='utf-8')
    if 'tree' in row:
        path.write_text(json.dumps(row['tree']), encoding='utf-8')
    else:
        words = [f'{name} {_word(value)}' for name, value in row['flags']]
        head = 'export HCCL_CONNECT_TIMEOUT=1\n' if row['ascend'] else ''
        path.write_text(f'{head}torchrun {row["trainer"]} {" ".join(words)}\n', encoding='utf-8')
    return _answered(path, {})


def _answered(path: Path, given: dict[str, str]) -> Import | str:
    """The import of a file, with an answer to what it asks for."""
    try:
        return imported(path, given=given)
    except ScheduleError as error:
        asked = {name for name in _ASKED.findall(str(error)) if name in ('nnodes', 'nproc-per-node', *_ANSWERS)}
        more = {name: _ANSWERS.get(name, '8') for name in asked - given.keys()}
        return _answered(path, {**given, **more}) if more else str(error)


def _word(value: object) -> str:
    if value is True:
        return ''
    return ' '.join(map(_word, value)) if isinstance(value, list) else f"'{value}'".replace('\n', ' ')


def score_table(apart: int = 1) -> list[str]:
    """A line for each launcher, or one of so many: how many of its files come in clean, and what the others lack."""
    lines, all_of = [SCORE, '|---|---|---|---|---|---|'], Counter()
    launchers = list(dict.fromkeys(row['launcher'] for row in files()))[::apart]
    with tempfile.TemporaryDirectory() as folder:
        made = [(row['launcher'], made_of(row, Path(folder))) for row in files() if row['launcher'] in launchers]
    for launcher in launchers:
        own = [one for name, one in made if name == launcher]
        lacks = [set(_lacking(one)) for one in own]
        kinds = Counter('refused' if isinstance(one, str) else 'gaps' if lack else 'clean'
                        for one, lack in zip(own, lacks, strict=True))  # fmt: skip
        counts = Counter(name for lack in lacks for name in lack)
        # Of equal counts by name: sets have no order.
        most = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:4]
        missing = ', '.join(f'`{name}` {count}' for name, count in most)
        counts = ' | '.join(str(kinds[kind]) for kind in ('clean', 'gaps', 'refused'))
        lines.append(f'| {launcher} | {len(own)} | {counts} | {missing} |')
        all_of += kinds
    counts = f'{all_of["clean"]} | {all_of["gaps"]} | {all_of["refused"]}'
    return [*lines, f'| all | {len(made)} | {counts} |  |']


def _lacking(made: Import | str) -> list[str]:
    """Settings that keep a file from being clean."""
    if isinstance(made, str):
        return [match[1] for match in re.finditer(r'(?m)^.*?: ([\w.-]+): ', made)][:4]
    return [line.name.rpartition('.')[2] for line in made.lines if line.outcome in (NOT_MODELLED, UNSEEN)]


if __name__ == '__main__':
    if sys.argv[1:2] == ['record']:
        record(Path(sys.argv[2]))
    else:
        print('\n'.join(others(Path(sys.argv[2])) if sys.argv[1:2] == ['others'] else score_table()))
