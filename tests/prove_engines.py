"""The long fuzz of the engines: ``prove_engines.py [--seed N] [--programs N]``; ``make prove-engines`` runs it.

Runs random programs on every engine, folded and unfolded, and the small ones in exact fractions. Prints the seed of
each program on which they differ, and ends with an error. Parts in which all agree are kept in out/engine_fuzz.jsonl,
so it may be interrupted, and goes on from there; once all parts are there it writes docs/proofs/engine_fuzz.md.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import groupby, islice
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import numba
import numpy as np
from engine_check import BOUND, SMALL, Difference, check
from engine_programs import make_sample
from proof import arguments

PAGE = HERE.parent / 'docs' / 'proofs' / 'engine_fuzz.md'
KEPT = HERE.parent / 'out' / 'engine_fuzz.jsonl'
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


def page(parts: list[dict]) -> str:
    """The text of docs/proofs/engine_fuzz.md, of parts in the order of their seeds."""
    happened = sum((Counter(part['happened']) for part in parts), Counter())
    worst, seconds = max(part['worst'] for part in parts), sum(part['seconds'] for part in parts)
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

`make prove-engines` runs them and writes this page. It took {seconds / 60:,.0f} min of CPU. The suite runs the first
1,000 seeds.

{chr(10).join(f'- Seeds {first:,} to {last:,}: {made}.' for made, first, last in _stretches(parts))}

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


def _stretches(parts: list[dict]) -> Iterator[tuple[str, int, int]]:
    """What ran, and the first and the last seed that it ran without a gap."""
    for made, of_one in groupby(parts, lambda part: part['made']):
        seeds = list(of_one)
        yield made, seeds[0]['first'], seeds[-1]['end'] - 1


def kept() -> dict[tuple[int, int], dict]:
    """The parts that earlier runs have kept, by first seed and end; what an interruption cut off is left out."""
    lines = KEPT.read_text(encoding='utf-8').splitlines(keepends=True) if KEPT.exists() else []
    parts = [json.loads(line) for line in lines if line.endswith('\n')]
    return {(part['first'], part['end']): part for part in parts}


def run_parts(parts: Iterable[range], processes: int, until: float) -> Iterator[tuple[range, tuple]]:
    """Parts with their results, as they come; none is begun after ``until``."""
    waiting = iter(parts)
    with ProcessPoolExecutor(processes) as pool:
        going = {pool.submit(run_part, part): part for part in islice(waiting, processes)}
        while going:
            for future in wait(going, return_when=FIRST_COMPLETED).done:
                yield going.pop(future), future.result()
                if time.monotonic() < until and (part := next(waiting, None)):
                    going[pool.submit(run_part, part)] = part


CHECKED = ('programs', 'in fractions', 'deadlock in fractions', 'exact', 'equal to fractions')


def _made() -> str:
    """The commit and the versions that are checked."""
    told = subprocess.run(
        ['git', 'describe', '--always', '--dirty', '--exclude=*'], capture_output=True, text=True, check=True, cwd=HERE
    )
    versions = f'Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}'
    return f'commit `{told.stdout.strip()}`, {versions}'


def main() -> int:
    """The command line."""
    options = arguments(
        __doc__,
        seed=(0, 'the first seed'),
        programs=(PROGRAMS, 'how many random programs'),
        processes=(os.cpu_count(), 'how many run at once'),
        seconds=(float('inf'), 'begin nothing after so long; go on later'),
        anew=(False, 'forget what earlier runs have kept'),
    )
    KEPT.parent.mkdir(exist_ok=True)
    if options.anew:
        KEPT.unlink(missing_ok=True)
    made, began, told, wrong = _made(), time.monotonic(), 0.0, 0
    end = options.seed + options.programs
    parts = [range(first, min(first + PART, end)) for first in range(options.seed, end, PART)]
    done = {bounds: part for bounds, part in kept().items() if range(*bounds) in parts}
    left = [part for part in parts if (part.start, part.stop) not in done]
    with KEPT.open('a', encoding='utf-8') as file:
        for count, (part, result) in enumerate(run_parts(left, options.processes, began + options.seconds), start=1):
            happened, worst, differences, spent = result
            wrong += len(differences)
            for difference in differences:
                print(difference, flush=True)
            if not differences:
                found = {'first': part.start, 'end': part.stop, 'made': made, 'worst': worst, 'seconds': spent}
                done[part.start, part.stop] = found | {'happened': happened}
                file.write(json.dumps(done[part.start, part.stop]) + '\n')
                file.flush()
            passed = time.monotonic() - began
            if passed > told + EVERY or count == len(left):
                told = passed
                ahead = passed / count * (len(left) - count)
                print(
                    f'{len(done)} of {len(parts)} parts, {wrong} wrong, {passed:.0f} s, {ahead:.0f} s left', flush=True
                )
    if len(done) == len(parts):
        text = page([done[bounds] for bounds in sorted(done)])
        print(text)
        PAGE.write_text(text, encoding='utf-8')
    else:
        print(f'{len(parts) - len(done)} of {len(parts)} parts are left; run it again', flush=True)
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
