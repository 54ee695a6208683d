"""Changed files as commands read them: the rows of `changed_commands.csv`, and any documented keys by ``--set``.

A row names the reader whose good files are changed, a command, and files beside them: of the project, or what simpar
itself wrote. In its words ``any`` is each verb of a schedule, @ the folder, FILE the file that is changed.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

from mutations import ROOT, kinds
from readers import READERS, Reader, Seed

from simpar.cli import main
from simpar.errors import SimparError
from simpar.files import read_csv

ROWS: Final = read_csv(Path(__file__).with_name('changed_commands.csv'))
VERBS: Final = (
    'run @s.yaml --quiet', 'run @s.yaml --json', 'run @s.yaml', 'check @s.yaml', 'resolve @s.yaml',
    'sweep @s.yaml --jobs 1 --sweep plan.copies=1,2',
)  # fmt: skip
LIMITED: Final = {'run', 'check', 'resolve', 'validate'}
"""Verbs that are given a bound of what they may estimate, so that what is large and allowed takes little time."""
GOOD: Final = frozenset({0, 2, 3, 4})


def by_command(folder: Path) -> None:
    """Do the command that stands beside the files; an exit code that no user should see is no refusal."""
    words = [word.replace('@', f'{folder}/', 1) for word in (folder / 'words').read_text(encoding='utf-8').split()]
    for file in folder.glob('set.keys'):
        lines = file.read_bytes().decode('utf-8', errors='surrogateescape').split('\n')
        words += [word for line in lines for word in ('--set', line)]
    if words[0] in LIMITED and '--memory' not in words:
        words += ['--limit', '1GB', '--limit', '5s']
    try:
        code = main(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 2
    if code not in GOOD:
        raise AssertionError(f'exit code {code}')
    if code:
        raise SimparError(f'exit code {code}')


def _seeds(rows: list[dict[str, str]], folder: Path) -> Iterator[Seed]:
    """Good files of each row's reader, with its command in a file of its own."""
    for row in rows:
        name, _, source = row['beside'].partition('=')
        beside = {name: next(path for path in (folder / source, ROOT / source) if path.exists())} if name else {}
        for seed, verb in product(READERS[row['reader']].seeds(folder), VERBS if 'any' in row['words'] else ['']):
            wrong = seed.wrong or tuple(seed.files)
            words = row['words'].replace('any', verb).replace('FILE', wrong[0])
            others = {name: path.read_bytes() for name, path in beside.items()}
            yield Seed({**seed.files, **others, 'words': words.encode()}, wrong)


def _keys(folder: Path) -> Iterator[Seed]:
    """Examples with the keys that each may have: those of a model that it has not are refused, whatever they say."""
    of = {'workload.transformer.': 'transformer', 'workload.network': 'network', 'against': 'against'}
    keys = sorted(kinds())
    for path in sorted((ROOT / 'examples').glob('*.yaml')):
        text = path.read_text(encoding='utf-8')
        able = [key for key in keys if all(word in text for part, word in of.items() if key.startswith(part))]
        beside = {'s.yaml': text.encode(), 'llama3_8b.json': (ROOT / 'examples' / 'llama3_8b.json').read_bytes()}
        for verb in VERBS:
            yield Seed({**beside, 'set.keys': '\n'.join(able).encode(), 'words': verb.encode()}, ('set.keys',))


INPUTS: Final = dict.fromkeys(row['input'] for row in ROWS)
COMMANDS: Final = {
    **{
        one: Reader(by_command, partial(_seeds, [row for row in ROWS if row['input'] == one]), (), seconds=60)
        for one in INPUTS
    },
    'keys': Reader(by_command, _keys, (), seconds=60),
}
