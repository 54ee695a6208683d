"""`python -m benchmarks`: measure, and write docs/proofs/performance.md.

python -m benchmarks                      # everything: some five minutes
python -m benchmarks --quick --stdout     # smaller programs, fewer rounds: half a minute, on the screen
python -m benchmarks sweep recordings     # these parts alone: a minute
python -m benchmarks peers --calculon PATH --simumax PATH --python PYTHON    # peers beside, from checkouts
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from benchmarks.engines import STAGES, engines, lap, stages, swept
from benchmarks.laps import Spread, short
from benchmarks.peers import PEERS, time_peer
from benchmarks.programs import gpt3
from benchmarks.recordings import recordings
from benchmarks.report import PAGE, commit_of, part, put
from simpar.errors import SimparError

PARTS: Final = {
    'engines': ('| slots | SimPy, µs a slot | Python, µs a slot | compiled, µs a slot | compiled over SimPy', engines),
    'stages': (f'| ranks | slots of all steps | {" | ".join(STAGES)} | µs a slot', stages),
    'sweep': ('rows that differ in | rows | CPU ms a row | rows a second and core', swept),
    'recordings': ('format | events | CPU s | CPU µs an event | MB at the peak', recordings),
}
"""Heads of the tables, and what measures their rows, in a hurry or not."""
OF_PEERS: Final = '| what it evaluates | CPU seconds | commit'


def main() -> int:
    """Measure what is asked for."""
    options = _options()
    for name in options.parts or (*PARTS, 'peers'):
        try:
            heads, measure = PARTS.get(name, ('', None))
            text = part(heads, measure(quick=options.quick)) if measure else part(OF_PEERS, peers(options))
        except SimparError as error:
            print(error, file=sys.stderr)
            return 2
        print(f'{name}\n\n{text}\n', flush=True)
        if not options.stdout:
            put(name, text)
    return 0


def peers(options: argparse.Namespace) -> list[tuple[str, ...]]:
    """One evaluation of GPT-3 by us, and by the peers whose checkouts are given."""
    _, seconds = zip(*(lap(gpt3(), None) for _ in range(3)), strict=True)
    own = short(Spread.of([sum(one) for one in seconds]).median)
    rows: list[tuple[str, ...]] = [
        ('simpar', 'the times of every op of every rank, three steps', own, commit_of(PAGE.parent))
    ]
    for name in PEERS:
        root = getattr(options, name.lower())
        told = time_peer(name, root, options.python, 3 if options.quick else 11) if root else ('not given', '')
        rows.append((name, 'closed formulas of a layer and a pipeline', *told))
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks', description='measure; write docs/proofs/performance.md'
    )
    parser.add_argument('parts', nargs='*', choices=[*PARTS, 'peers'], help='these parts alone')
    parser.add_argument('--quick', action='store_true', help='smaller programs and fewer rounds')
    parser.add_argument('--stdout', action='store_true', help='print the tables instead of writing them')
    for name in PEERS:
        parser.add_argument(f'--{name.lower()}', type=Path, metavar='PATH', help=f'a checkout of {name}')
    parser.add_argument('--python', default=sys.executable, help='an interpreter that has what peers import')
    return parser.parse_args()


if __name__ == '__main__':
    sys.exit(main())
