"""Mistakes that users make, of `tests/mistakes`: what is wrong, the command's words, and the files that it reads."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simpar.files import read_csv

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / 'tests' / 'mistakes'
KINDS = ('configs', 'modules', 'plans', 'imports', 'flags', 'schedules', 'more')
"""Files of mistakes; `more` were thought up when the messages of all others had been read and mended."""
MENDED = {row['mistake']: row['mended'] for row in read_csv(ROOT / 'tests' / 'mistakes_mended.csv')}
"""What a message said that was mended, graded by hand, and what it says now."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake.

    Arguments: ``words``, of simpar's command; ``files`` by name, which it reads.
    """

    what: str
    words: tuple[str, ...]
    files: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Make its files, and the examples beside them."""
        (folder / 'examples').symlink_to(ROOT / 'examples')
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding='utf-8')


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it: the exit code, and what was said, on the standard error where there is anything."""

    code: int
    said: str


def mistakes(kind: str) -> Iterator[Mistake]:
    """The mistakes of a file: `=== what`, `$ words`, and of each file that is read `--- name` and its lines."""
    text = (FOLDER / f'{kind}.txt').read_text(encoding='utf-8').removeprefix('=== ')
    for part in text.split('\n=== '):
        head, *files = part.strip('\n').split('\n--- ')
        what, words = head.split('\n$ ')
        named = dict(_file(one) for one in files)
        yield Mistake(what, tuple(words.split()), named)


def _file(text: str) -> tuple[str, str]:
    name, _, content = text.partition('\n')
    # What an editor would not show.
    content = content.replace('\\0', '\x00').replace('\\t', '\t')
    return name, f'{content}\n' if content else ''


def make(mistake: Mistake, folder: Path) -> Answer:
    """Run its command in an empty folder."""
    mistake.write(folder)
    around = {'PATH': '/usr/bin:/bin', 'PYTHONPATH': f'{ROOT}:{folder}', 'HOME': str(folder)}
    done = subprocess.run(
        [sys.executable, '-m', 'simpar', *mistake.words],
        cwd=folder, env=around, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return Answer(done.returncode, (done.stderr.strip() or done.stdout.strip()).replace(f'{folder}/', ''))
