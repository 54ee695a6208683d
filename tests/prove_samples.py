"""Public sample scripts of MindSpore as they stand: `make prove NAME=samples FOLDER`.

    python -m tests.prove_samples FOLDER [--write]    import, run and train what tests/mindspore_samples.csv names

FOLDER holds the files of github.com/mindspore-ai/docs, which are not ours to ship. A script comes in whole where import
ends with 0 and names no gap; the schedule is then run, and its numerics are checked. --write puts the table into
docs/proofs/import.md.
"""

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from simpar.cli import main as simpar
from simpar.files import read_csv
from tests.accuracy_page import put
from tests.proof import ROOT, line, table

PAGE: Final = ROOT / 'docs' / 'proofs' / 'import.md'
SAMPLES: Final = ROOT / 'tests' / 'mindspore_samples.csv'


def called(*words: str) -> tuple[int, str]:
    """What a command ends with, and what it says."""
    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
        code = simpar(list(words))
    return code, f'{said.getvalue()}{told.getvalue()}'


def outcome(script: Path, folder: Path) -> tuple[str, str]:
    """What became of a script, and why: whole, with gaps, refused, or WRONG."""
    output = folder / 'mine.yaml'
    code, said = called('import', str(script), '--output', str(output), '--json')
    if code == 2:
        lines = [line.strip() for line in said.splitlines() if f'{script.name}:' in line]
        told = list(
            dict.fromkeys(line[line.index(script.name) + len(script.name) + 1 :].partition(';')[0] for line in lines)
        )
        more = f', and {len(told) - 1} more' if len(told) > 1 else ''
        return 'refused', f'line {told[0]}{more}' if told else said[:200]
    gaps = [one for one in json.loads(said[: said.rindex('}') + 1])['settings'] if one['outcome'] == 'not modelled']
    steps = [called('run', str(output), '--quiet')[0], called('check', str(output), '--numerics')[0]]
    if code or any(steps):
        return 'WRONG', f'exit {code}, run and numerics {steps}'
    return (
        ('with gaps', ', '.join(one['name'] for one in gaps)) if gaps else ('whole', 'run, and trained as torch does')
    )


def rows(folder: Path) -> Iterator[tuple[dict[str, str], str, str]]:
    """Each recorded script with its outcome and why."""
    with tempfile.TemporaryDirectory() as own:
        for row in read_csv(SAMPLES):
            script = folder / row['path']
            yield row, *(outcome(script, Path(own)) if script.is_file() else ('not there', ''))


def main(words: list[str]) -> int:
    """Print the table, and with --write put it into its page."""
    folders = [word for word in words if word != '--write']
    if not folders:
        print(__doc__, file=sys.stderr)
        return 2
    lines, kinds = [], []
    for row, kind, why in rows(Path(folders[0])):
        lines.append((f'`{row["path"].removeprefix("docs/sample_code/")}`', row['commit'][:9], kind, why))
        kinds.append(kind)
        print(line(lines[-1]), flush=True)
    print(', '.join(f'{kinds.count(kind)} {kind}' for kind in dict.fromkeys(kinds)))
    if '--write' in words:
        put('samples', table('script | commit | outcome | why', lines), PAGE)
    return int('WRONG' in kinds or 'not there' in kinds)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
