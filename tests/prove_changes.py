"""Changes that a contributor makes, kept as patches: applied to a clean copy, tested, and their files counted.

    python -m tests.prove_changes [NAME ...]

The table is docs/changes/changes.csv: a patch each, the files that it may touch, and the command that tests it.
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.code_lines import ROOT
from tests.proof import arguments, commit, line, table

FOLDER = ROOT / 'docs' / 'changes'


class Change(NamedTuple):
    """A row of the table. Arguments: ``command``, for a shell in the changed copy."""

    change: str
    most_files: int
    what: str
    command: str

    @property
    def patch(self):
        """Its file."""
        return FOLDER / f'{self.change}.patch'


def changes():
    """The rows of the table by their names."""
    with (FOLDER / 'changes.csv').open(encoding='utf-8', newline='') as file:
        return {row['change']: Change(**{**row, 'most_files': int(row['most_files'])}) for row in csv.DictReader(file)}


def counted(change):
    """Files and lines that a patch touches: (files, lines in, lines out)."""
    told = _git('apply', '--numstat', str(change.patch), cwd=ROOT)
    numbers = [tuple(map(int, line.split('\t')[:2])) for line in told.splitlines()]
    return len(numbers), sum(new for new, _ in numbers), sum(old for _, old in numbers)


def tested(change):
    """Whether the command holds in a clean copy of the last commit with the patch; what it said."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / 'copy'
        _git('clone', '--quiet', '--shared', str(ROOT), str(copy), cwd=ROOT)
        _git('apply', '--index', str(change.patch), cwd=copy)
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ['PATH']))
        env = {**os.environ, 'PYTHONPATH': str(copy), 'PATH': path}
        done = subprocess.run(
            change.command, shell=True, cwd=copy, env=env, capture_output=True, text=True, check=False
        )
        return done.returncode == 0, done.stdout + done.stderr


def _git(*words, cwd):
    return subprocess.run(['git', *words], cwd=cwd, capture_output=True, text=True, check=True).stdout


def main():
    """Apply and test the changes that are asked for; 1 where one fails or touches too many files."""
    known = changes()
    options = arguments(__doc__, {'name': 'names', 'nargs': '*', 'help': ', '.join(known)})
    print(f'commit {commit()}\n', *table('change | files | at most | lines in | lines out | tested', ()), sep='\n')
    every = True
    for change in [known[name] for name in options.names or known]:
        files, new, old = counted(change)
        passed, told = tested(change)
        every = every and passed and files <= change.most_files
        cells = (f'{change.change}: {change.what}', files, change.most_files, new, old, 'yes' if passed else '**no**')
        print(line(cells), flush=True)
        if not passed:
            print(told[-3000:], file=sys.stderr)
    return 0 if every else 1


if __name__ == '__main__':
    sys.exit(main())
