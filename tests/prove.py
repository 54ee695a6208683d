"""`make prove NAME=…`: what proves a claim and takes longer than the suite may, by the table tests/proofs.csv.

python -m tests.prove               the table
python -m tests.prove gain          run one; further words are handed on
"""

import csv
import difflib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent


def proofs() -> dict[str, dict[str, str]]:
    """Each proof by its name: its command and what it does."""
    with (ROOT / 'tests' / 'proofs.csv').open(encoding='utf-8', newline='') as file:
        return {row['name']: row for row in csv.DictReader(file)}


def main(words: list[str]) -> int:
    """List the proofs, or run one in a shell."""
    table = proofs()
    if not words:
        print(*(f'{name:18} {row["what"]}' for name, row in table.items()), sep='\n')
        return 0
    name, *others = words
    if name not in table:
        near = difflib.get_close_matches(name, table, 3)
        print(f'no proof {name}; write one of {", ".join(near or table)}', file=sys.stderr)
        return 2
    env = {**os.environ, 'WORDS': ' '.join(others)}
    return subprocess.run(table[name]['command'], shell=True, cwd=ROOT, env=env, check=False).returncode


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
