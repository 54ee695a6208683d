"""The long fuzz of the engines: ``prove_engines.py [--seed N] [--programs N]``; ``make prove-engines`` runs it.

Runs random programs on every engine, folded and unfolded, and the small ones in exact fractions; writes
docs/engine_fuzz.md where all agree. Prints the seed of each program on which they do not, and ends with an error.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import numba
import numpy as np
from engine_check import BOUND, SMALL, Difference, check
from engine_programs import make_sample

PAGE = HERE.parent / 'docs' / 'engine_fuzz.md'
PROGRAMS, PART = 100_000, 200
"""How many programs, and how many a process takes at once."""
EVERY = 30
"""Seconds between lines of progress."""


def run_part(seeds: range) -> tuple[Counter[str], float, list[str], float]:
    """What happened in programs, the most ticks off fractions, all differences, and seconds of CPU."""
    began = time.process_time()
    results = [run_one(seed) for seed in seeds]
    happened = sum((found for found, _, _ in results), Counter())
    wrong = [difference for _, _, difference in results if difference]
    return happened, max(off for _, off, _ in results), wrong, time.process_time() - began


def run_one(seed: int) -> tuple[Counter[str], float, str]:
    """What happened in a program, how many ticks it is off fractions, and the difference, if any."""
    try:
        return *check(make_sample(seed)), ''
    except Difference as difference:
        return Counter(), 0.0, str(difference)
    # An engine that breaks is as wrong as one that differs, and other seeds still tell more.
    except Exception as error:
        return Counter(), 0.0, f'seed {seed}: {error!r}'


def page(commit: str, seed: int, happened: Counter[str], worst: float, seconds: float) -> str:
    """The text of docs/engine_fuzz.md."""
    programs = happened['programs']
    census = '\n'.join(
        f'| {name} | {count:,} | {count / programs:.1%} |'
        for name, count in sorted(happened.items())
        if name not in CHECKED and name != 'slots'
    )
    ended = happened['in fractions'] - happened['deadlock in fractions']
    return f"""# Fuzz of the engines

{programs:,} random programs ran on SimPy, plain Python and compiled, each folded and unfolded: arrays of arrivals,
starts and ends equal to the bit, or the same deadlock with the same streams stuck. No program differs.

`make prove-engines` runs them and writes this page. Commit `{commit}`, seeds {seed:,} to {seed + programs - 1:,},
Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}. It took
{seconds / 60:,.0f} min of CPU. The suite runs the first 1,000 seeds.

- *Slots*: {happened['slots']:,} of all ranks and steps, {happened['slots'] / programs:,.0f} a program.
- *Exact fractions*: a second simulator, which shares no code with the engines, ran the
  {happened['in fractions']:,} programs of up to {SMALL} slots. {happened['deadlock in fractions']:,} of them deadlock,
  at the same time to four digits and with the same ops stuck. {ended:,} end. Of {happened['exact']:,} of these, doubles
  hold every moment, speed and work: all their times are equal. {happened['equal to fractions']:,} are equal in all;
  the others are off by at most {worst:.1f} ticks of 2⁻⁴⁰ s, where {BOUND} are allowed.

## What happened in them

What slows is counted where some op ends at another time without it; a tie, where two ops that last, of different op
classes, end at one instant.

| programs with | count | share |
|---|---|---|
{census}
"""


CHECKED = ('programs', 'in fractions', 'deadlock in fractions', 'exact', 'equal to fractions')


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--seed', type=int, default=0, help='the first seed')
    parser.add_argument('--programs', type=int, default=PROGRAMS, help='how many random programs')
    parser.add_argument('--processes', type=int, default=os.cpu_count(), help='how many run at once')
    options = parser.parse_args()
    git = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True, check=True, cwd=HERE)
    commit, began, told = git.stdout.strip(), time.monotonic(), 0.0
    end = options.seed + options.programs
    parts = [range(first, min(first + PART, end)) for first in range(options.seed, end, PART)]
    happened, worst, wrong, seconds = Counter(), 0.0, 0, 0.0
    with ProcessPoolExecutor(options.processes) as pool:
        for done, (found, off, differences, spent) in enumerate(pool.map(run_part, parts), start=1):
            happened, worst, wrong, seconds = (
                happened + found,
                max(worst, off),
                wrong + len(differences),
                seconds + spent,
            )
            for difference in differences:
                print(difference, flush=True)
            passed = time.monotonic() - began
            if passed > told + EVERY or done == len(parts):
                told = passed
                left = passed / done * (len(parts) - done)
                print(f'{done / len(parts):.1%}, {wrong} wrong, {passed:.0f} s, {left:.0f} s left', flush=True)
    text = page(commit, options.seed, happened, worst, seconds)
    print(text)
    if not wrong:
        PAGE.write_text(text, encoding='utf-8')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
