"""docs/proofs/performance.md: each part between two marks, from what was measured."""

import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numba
import numpy as np
import simpy

PAGE: Final = Path(__file__).parent.parent / 'docs' / 'proofs' / 'performance.md'


def part(heads: str, rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, of heads with | between them, and what it was measured with."""
    rule = f'| --- |{" --: |" * heads.count("|")}'
    versions = f'numba {numba.__version__}, NumPy {np.__version__}, SimPy {simpy.__version__}'
    told = f'Measured at commit {commit_of(PAGE.parent)}, Python {platform.python_version()}, {versions}.'
    return '\n'.join([f'| {heads} |', rule, *(f'| {" | ".join(row)} |' for row in rows), '', told])


def put(name: str, text: str) -> None:
    """Write a part of the page."""
    begin, end = f'<!-- {name} -->\n', f'<!-- end of {name} -->\n'
    head, _, rest = PAGE.read_text(encoding='utf-8').partition(begin)
    PAGE.write_text(f'{head}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}', encoding='utf-8')


def commit_of(root: Path) -> str:
    """The commit of a checkout, and its day."""
    command = ['git', '-C', str(root), 'log', '-1', '--format=%h of %cs']
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
