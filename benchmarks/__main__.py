"""`python -m benchmarks`: measure, and write docs/proofs/performance.md.

python -m benchmarks                      # everything but peers: some five minutes
python -m benchmarks --quick --stdout     # smaller programs, fewer rounds: half a minute, on the screen
python -m benchmarks --sweep              # the sweep alone: half a minute
python -m benchmarks --recordings             # recordings alone: half a minute
python -m benchmarks --calculon PATH --simumax PATH --python PYTHON    # peers beside, from checkouts
"""

import argparse
import sys
from pathlib import Path

from benchmarks.engines import engines, stages, swept
from benchmarks.peers import PEERS, time_peer
from benchmarks.programs import gpt3, sized
from benchmarks.recordings import SIZES, recordings
from benchmarks.report import PAGE, Measured, page, recordings_part, replaced, sweep_part
from simpar.errors import SimparError


def main() -> int:
    """Measure what is asked for."""
    options = _options()
    try:
        if options.sweep:
            return _part_alone(options, sweep_part(swept(3 if options.quick else 11)))
        if options.recordings:
            return _part_alone(options, recordings_part(recordings(SIZES[: 1 if options.quick else None])))
        found = page(measure(options))
    except SimparError as error:
        print(error, file=sys.stderr)
        return 2
    if options.stdout:
        print(found)
    else:
        PAGE.write_text(found, encoding='utf-8')
        print(f'wrote {PAGE.name}')
    return 0


def _part_alone(options: argparse.Namespace, part: str) -> int:
    """Write a part of the page anew."""
    if options.stdout:
        print(part)
    else:
        PAGE.write_text(replaced(PAGE.read_text(encoding='utf-8'), part), encoding='utf-8')
        print(f'wrote {part.partition(chr(10))[0][3:]} in {PAGE.name}')
    return 0


def measure(options: argparse.Namespace) -> Measured:
    """Run all benchmarks."""
    rounds = 3 if options.quick else 11
    micro_batches = 16 if options.quick else 192
    small = sized(10**4 if options.quick else 10**5)
    by_engine = {
        name: engines(small, min(rounds, 5), effects=effects)
        for name, effects in (('all effects', True), ('no effects', False))
    }
    cases = {
        'GPT-3, folded': (gpt3(micro_batches=micro_batches), 5, None),
        'GPT-3 with 1,024 copies of the data, folded': (gpt3(1024, micro_batches), 3, None),
        'GPT-3 with one copy and 16 micro-batches, every rank': (gpt3(1, 16), 3, True),
    }
    staged = {name: stages(case, min(rounds, most), unfold=unfold) for name, (case, most, unfold) in cases.items()}
    given = {name: getattr(options, name.lower()) for name in PEERS}
    return Measured(
        rounds=rounds,
        engines=by_engine,
        stages=staged,
        swept=swept(min(rounds, 5)),
        recordings=recordings(SIZES[: 1 if options.quick else None]),
        peers=[time_peer(name, root, options.python, rounds) for name, root in given.items() if root],
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks', description='measure; write docs/proofs/performance.md'
    )
    parser.add_argument('--quick', action='store_true', help='smaller programs and fewer rounds')
    parser.add_argument('--sweep', action='store_true', help='the sweep alone, whose part of the page is written anew')
    parser.add_argument('--recordings', action='store_true', help='recordings alone, likewise')
    parser.add_argument('--stdout', action='store_true', help='print the page instead of writing it')
    for name in PEERS:
        parser.add_argument(f'--{name.lower()}', type=Path, metavar='PATH', help=f'a checkout of {name}')
    parser.add_argument('--python', default=sys.executable, help='an interpreter that has what peers import')
    return parser.parse_args()


if __name__ == '__main__':
    sys.exit(main())
