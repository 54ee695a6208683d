"""`python -m benchmarks`: measure, and write docs/performance.md.

python -m benchmarks                      # everything but peers: some five minutes
python -m benchmarks --quick --stdout     # smaller programs, fewer rounds: half a minute, on the screen
python -m benchmarks --sweep              # the sweep alone: half a minute
python -m benchmarks --every-rank         # all 1,024 ranks of GPT-3, none folded: a minute, 6 GB; on the screen
python -m benchmarks --calculon PATH --simumax PATH --python PYTHON    # peers beside, from checkouts
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.engines import engines, stages, swept
from benchmarks.every_rank import apart
from benchmarks.machines import race_events, race_replay, races
from benchmarks.peers import PEERS, time_peer
from benchmarks.programs import SIZES, arranged, gpt3, sized
from benchmarks.reference import reference
from benchmarks.report import PAGE, Measured, page, replaced, sweep_part
from simpar.errors import SimparError


def main() -> int:
    """Measure what is asked for."""
    options = _options()
    try:
        if options.sweep:
            return _sweep_alone(options)
        if options.every_rank:
            print(apart())
            return 0
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


def _sweep_alone(options: argparse.Namespace) -> int:
    """Measure the sweep, and write its part of the page anew."""
    part = sweep_part(swept(3 if options.quick else 11))
    if options.stdout:
        print(part)
    else:
        PAGE.write_text(replaced(PAGE.read_text(encoding='utf-8'), part), encoding='utf-8')
        print(f'wrote the sweep in {PAGE.name}')
    return 0


def measure(options: argparse.Namespace) -> Measured:
    """Run all benchmarks, the largest first while memory is in one piece."""
    cpp, rounds = reference(), 3 if options.quick else 11
    sizes = list(SIZES)[: 2 if options.quick else None]
    micro_batches = 16 if options.quick else 192
    _say('unfolded programs beside C++')
    raced = [races(sized(slots), cpp, min(rounds, 3 if slots > 10**6 else rounds)) for slots in sizes]
    _say('GPT-3 beside C++')
    graph, costs, links = arranged(gpt3(micro_batches=micro_batches), steps=3)
    loop = race_events(graph, costs, links, cpp, rounds)
    graph, costs, _ = arranged(gpt3(micro_batches=micro_batches), steps=3, effects=False)
    replay = race_replay(graph, costs, cpp, rounds)
    _say('engines')
    small = sized(10**4 if options.quick else 10**5)
    by_engine = {
        name: engines(small, min(rounds, 5), effects=effects)
        for name, effects in (('all effects', True), ('no effects', False))
    }
    _say('stages')
    case = gpt3(micro_batches=micro_batches)
    staged = {
        'GPT-3, folded': stages(case, min(rounds, 5)),
        'GPT-3 with 1,024 copies of the data, folded': stages(gpt3(1024, micro_batches), min(rounds, 3)),
        'GPT-3 with one copy and 16 micro-batches, every rank': stages(gpt3(1, 16), min(rounds, 3), unfold=True),
    }
    every = apart() if options.large else None
    _say('sweep')
    table = swept(min(rounds, 5))
    _say('peers')
    given = {name: getattr(options, name.lower()) for name in PEERS}
    peers = [time_peer(name, root, options.python, rounds) for name, root in given.items() if root]
    return Measured(
        rounds=rounds,
        compiler=cpp.compiler,
        loops=[one for one, _ in raced],
        replays=[other for _, other in raced],
        gpt3=(loop, replay),
        engines=by_engine,
        stages=staged,
        every_rank=every,
        swept=table,
        peers=peers,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks', description='measure, and write docs/performance.md')
    parser.add_argument('--quick', action='store_true', help='smaller programs and fewer rounds')
    parser.add_argument('--large', action='store_true', help='also every rank of GPT-3, none folded: a minute, 6 GB')
    parser.add_argument('--every-rank', action='store_true', help='that alone, on the screen')
    parser.add_argument('--sweep', action='store_true', help='the sweep alone, whose part of the page is written anew')
    parser.add_argument('--stdout', action='store_true', help='print the page instead of writing it')
    for name in PEERS:
        parser.add_argument(f'--{name.lower()}', type=Path, metavar='PATH', help=f'a checkout of {name}')
    parser.add_argument('--python', default=sys.executable, help='an interpreter that has what peers import')
    return parser.parse_args()


def _say(what: str) -> None:
    print(f'... {what}', file=sys.stderr, flush=True)


if __name__ == '__main__':
    sys.exit(main())
