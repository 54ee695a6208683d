"""The commands and blocks of the docs: where they stand, and why some are not run.

`make prove-docs` (tests/prove_docs.py) runs all others and writes docs/proofs/blocks.md.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tables import load_table

ROOT = Path(__file__).parent.parent
DOCS = ROOT / 'docs'
PROOFS = DOCS / 'proofs'
LIST = PROOFS / 'blocks.md'
PAGES = [ROOT / 'README.md', *sorted(path for path in DOCS.rglob('*.md') if path != LIST)]

COMMAND = re.compile(
    r'(\$ )?((\.venv/bin/)?simpar [a-z-]+( |$)|python3? |torchrun |make |pip install |eval |HTA_|dask |ssh |srun '
    r'|sbatch |mpirun |msrun |kubectl )'
)
FENCE = re.compile(r'^(?P<fence>```+)(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\s*$')

REASONS = load_table(__file__, 'REASONS')
"""Why a command is not run: the first pattern that is found in it."""
PARTS = 'part of a file: its keys are held by the test of all keys'
"""Why a YAML block is not run that is neither schedule nor profile nor stack."""
NOT_RUN = {
    'check.md': {'import torch': 'trains a module of the reader; tests/test_checkpoint.py holds it'},
    'worked_program.md': {'simpar: 1': 'worked out by hand; tests/test_worked_program.py holds it'},
    'plan.md': {
        "found = simpar.plan('schedule.yaml'": 'searches a space of the reader; tests/test_planner_answer.py holds it'
    },
    'modules.md': {'simpar.from_module(module': 'needs a module of the reader'},
    'calibrate.md': {'from simpar.calibrate import': 'needs the record of a machine'},
}
"""Blocks that are no commands by page and words in them, and why they are not run."""
BEGIN = {'simpar: 1': 'yaml', 'import simpar': 'python'}
"""What indented files begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What a page shows: a command, or a file.

    Arguments: ``page``, its name; ``kind``, command, yaml or python; ``text``; ``title``, the file that it is written
    to; ``below``, the lines of a table right below.
    """

    page: str
    kind: str
    text: str
    title: str = ''
    below: str = ''

    @property
    def name(self) -> str:
        """What the list of blocks shows, in one line."""
        if self.kind == 'command':
            return self.text
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        # All schedules begin alike, so that the file's name or what is run tells more.
        told = self.title or next((line for line in lines if line != 'simpar: 1'), '')
        return f'{self.kind}: {told[:80]}'

    @property
    def is_schedule(self) -> bool:
        """Whether it is a whole schedule."""
        return self.kind == 'yaml' and re.search('^simpar: 1', self.text, re.MULTILINE) is not None

    @property
    def reason(self) -> str:
        """Why it is not run; empty: it is."""
        if self.kind == 'command':
            return next((why for pattern, why in REASONS if re.search(pattern, self.text)), '')
        listed = NOT_RUN.get(self.page, {})
        if why := next((why for begin, why in listed.items() if begin in self.text), ''):
            return why
        return (
            ''
            if self.kind == 'python' or self.is_schedule or self.title or self.text.startswith('format: 1')
            else PARTS
        )


def blocks(page: Path) -> Iterator[Block]:
    """All commands, YAML and Python of a page, from top to bottom."""
    lines = page.read_text(encoding='utf-8').splitlines()
    place = 0
    while place < len(lines):
        if found := FENCE.match(lines[place]):
            end = next(at for at in range(place + 1, len(lines)) if lines[at].strip() == found['fence'])
            yield from _of(page, found['language'], '\n'.join(lines[place + 1 : end]), found['title'] or '', '')
            place = end + 1
        elif lines[place].startswith('    ') and (place == 0 or not lines[place - 1].strip()):
            end = place
            while end < len(lines) and (lines[end].startswith('    ') or not lines[end].strip()):
                end += 1
            below = '\n'.join(_while(lines[end:], '|'))
            text = '\n'.join(line[4:] for line in lines[place:end])
            language = next((kind for begin, kind in BEGIN.items() if text.startswith(begin)), '')
            yield from _of(page, language, text.rstrip(), '', below)
            place = end
        else:
            place += 1


def _while(lines: list[str], start: str) -> Iterator[str]:
    for line in lines:
        if not line.startswith(start):
            return
        yield line


def _of(page: Path, language: str, text: str, title: str, below: str) -> Iterator[Block]:
    """The blocks of a fence or an indented part: one file, or the commands among its lines."""
    if language in ('yaml', 'python') or '.py: before ' in title:
        # A line that is no Python alone is shown as text.
        kind = 'yaml' if language == 'yaml' else 'python'
        yield Block(page=page.name, kind=kind, text=text, title=title)
        return
    if text.startswith('#!'):
        yield Block(page=page.name, kind='command', text=f'{text.splitlines()[0]} …')
        return
    for line in text.replace('\\\n', ' ').splitlines():
        if COMMAND.match(line):
            told = re.sub(r'\s{2,}#.*', '', line.removeprefix('$ ').removeprefix('.venv/bin/'))
            yield Block(page=page.name, kind='command', text=' '.join(told.split()), below=below)


def all_blocks() -> list[Block]:
    """Those of all pages."""
    return [block for page in PAGES for block in blocks(page)]
