"""Answers that a change of structure must not change: recorded once, asked again after it.

    python -m tests.same_answers record    write tests/recorded/same/*.json.xz
    python -m tests.same_answers compare   ask again, and print what differs

``--only`` takes one kind: programs (2,000 random schedules, by the hash of the text form), answers (every example by
``simpar run --json``), sweeps, rows (every row of ``simpar validate``). Screens are compared as they are.
"""

import argparse
import contextlib
import io
import json
import lzma
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from simpar.case import load_case
from simpar.cli import main as simpar
from simpar.errors import SimparError
from simpar.program.text import digest

HERE: Final = Path(__file__).parent
EXAMPLES: Final = Path('examples')
FOLDER: Final = HERE / 'recorded' / 'same'
SHOWN: Final = 12
"""Differences of a kind that are printed."""
FREE: Final = ('seconds', 'cpu_seconds', 'version', 'commit')
"""Keys of an answer that say when and how quickly it was made."""
SWEEPS: Final = (
    ('llama3_8b_h100.yaml', 'plan.zero=0,1,2,3', 'plan.recompute=none,selective,full', 'plan.fusion=none,25MB'),
    ('transformer_h100.yaml', 'plan.copies=1,2,4', 'plan.tensor=1,2,4', 'plan.zero=0,1'),
    ('transformer_h100_7b.yaml', 'cluster.links.nvlink=0.25,0.5,1,2', 'plan.copies=1,2'),
    ('pipeline_h100.yaml', 'plan.chunks=1', 'plan.micro_batches=8,16,32', 'plan.order=1f1b,gpipe,zb-h1'),
    ('multi_copy.yaml', 'plan.copies=1,2,4', 'cluster.links.hccs=0.5,1,2'),
)
Found = dict[str, Any]


def programs(before: Found | None) -> Found:
    """The hash of each random schedule's program; the schedules were drawn once and are kept beside their hashes."""
    before = before or json.loads(lzma.decompress((FOLDER / 'programs.json.xz').read_bytes()))
    trees = {name: one['schedule'] for name, one in before.items()}
    return {name: {'schedule': tree, 'hash': _hash(tree)} for name, tree in trees.items()}


def _hash(tree: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'schedule.yaml'
        path.write_text(json.dumps(tree), encoding='utf-8')
        try:
            return digest(load_case(path, ['cluster.stack=none']).program)
        except SimparError as error:
            return str(error).replace(folder, '')
        except Exception as error:  # an internal error is an answer, too: one to mend
            return f'{type(error).__name__}: {error}'


def answers(_: Found | None) -> Found:
    """The whole answer and the whole screen of each example."""
    files = sorted(EXAMPLES.glob('*.yaml'))
    return {
        f'{file.name} {kind}'.strip(): _asked('run', str(file), *[kind][: bool(kind)])
        for file in files
        for kind in ('', '--json')
    }


def sweeps(_: Found | None) -> Found:
    """Rows of sweeps over structure and over prices."""
    asked = {' '.join(keys): [word for key in keys[1:] for word in ('--sweep', key)] for keys in SWEEPS}
    return {name: _asked('sweep', str(EXAMPLES / name.split()[0]), *words, '--json') for name, words in asked.items()}


def rows(_: Found | None) -> Found:
    """Every predicted row of the published sets."""
    return {kind: _asked('validate', '--json', '--jobs', '2', *[kind][: bool(kind)]) for kind in ('', '--memory')}


def _asked(*words: str) -> Any:
    """What a command prints: its object where it is JSON, else its lines; with the exit code before."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = simpar(list(words))
    text = out.getvalue()
    answer = _plain(json.loads(text)) if '--json' in words and not code else text.splitlines()
    return [code, answer, errors.getvalue().splitlines() if code else []]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if key not in FREE}
    return [_plain(one) for one in value] if isinstance(value, list) else value


KINDS: Final[dict[str, Callable[[Found | None], Found]]] = {
    'programs': programs,
    'answers': answers,
    'sweeps': sweeps,
    'rows': rows,
}


def differences(at: str, old: Any, new: Any) -> Iterator[str]:
    """Paths whose values differ, with both."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(f'{at}.{key}', old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(f'{at}[{number}]', one, other)
    elif old != new:
        yield f'{at}: {json.dumps(old)[:200]} was; {json.dumps(new)[:200]} is'


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog='python -m tests.same_answers', description=__doc__)
    parser.add_argument('verb', choices=('record', 'compare'))
    parser.add_argument('--only', choices=tuple(KINDS), action='append', default=[], help='may be repeated')
    options = parser.parse_args()
    differ = 0
    for kind in options.only or KINDS:
        path, began = FOLDER / f'{kind}.json.xz', time.process_time()
        if options.verb == 'record':
            found = json.loads(json.dumps(KINDS[kind](None)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(lzma.compress(json.dumps(found, separators=(',', ':')).encode()))
            lines: list[str] = []
        else:
            before = json.loads(lzma.decompress(path.read_bytes()))
            found = json.loads(json.dumps(KINDS[kind](before)))
            lines = list(differences('', before, found))
        print(f'{kind}: {len(found)} asked, {len(lines)} differ, {time.process_time() - began:.0f} s CPU', flush=True)
        print(*lines[:SHOWN], sep='\n', end='\n' * bool(lines))
        differ += len(lines)
    return 4 if differ else 0


if __name__ == '__main__':
    sys.exit(main())
