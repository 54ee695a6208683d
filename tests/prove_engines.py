"""The long fuzz of the engines: ``prove_engines.py [--seed N] [--programs N]``; ``make prove-engines`` runs it.

Runs random programs on every engine, folded and unfolded, and the small ones in exact fractions. Prints the seed of
each program on which they differ, and ends with an error. Parts in which all agree are kept in out/engine_fuzz.jsonl,
so it may be interrupted, and goes on from there; once all parts are there it writes docs/proofs/engine_fuzz.md.
"""

import os
import platform
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
from code_lines import git
from engine_check import BOUND, SMALL, Difference, check
from engine_programs import make_sample
from proof import Journal, arguments, page_head, table

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
    programs, *checked = (happened[name] for name in CHECKED)
    head = page_head(
        'engines', programs=programs, minutes=sum(part['seconds'] for part in parts) / 60, slots=happened['slots'],
        stretches='\n'.join(f'- Seeds {first:,} to {last:,}: {made}.' for made, first, last in _stretches(parts)),
        each=happened['slots'] / programs, small=SMALL, bound=BOUND, worst=max(part['worst'] for part in parts),
        ended=checked[0] - checked[1],
        **dict(zip(('fractions', 'deadlocks', 'exact', 'equal'), checked, strict=True)),
    )  # fmt: skip
    others = sorted(happened.keys() - {*CHECKED, 'slots'})
    rows = ((name, f'{happened[name]:,}', f'{happened[name] / programs:.1%}') for name in others)
    return head + '\n'.join([*table('programs with | count | share', rows), ''])


def _stretches(parts: list[dict]) -> Iterator[tuple[str, int, int]]:
    """What ran, and the first and the last seed that it ran without a gap."""
    for made, of_one in groupby(parts, lambda part: part['made']):
        seeds = list(of_one)
        yield made, seeds[0]['first'], seeds[-1]['end'] - 1


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
    told = git('describe', '--always', '--dirty', '--exclude=*').strip()
    return f'commit `{told}`, Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}'


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
    if options.anew:
        KEPT.unlink(missing_ok=True)
    made, began, told, wrong = _made(), time.monotonic(), 0.0, 0
    end = options.seed + options.programs
    parts = [range(first, min(first + PART, end)) for first in range(options.seed, end, PART)]
    journal = Journal(KEPT)
    done = {part: row for row in journal.rows if (part := range(row['first'], row['end'])) in parts}
    left = [part for part in parts if part not in done]
    for count, (part, result) in enumerate(run_parts(left, options.processes, began + options.seconds), start=1):
        happened, worst, differences, spent = result
        wrong += len(differences)
        for difference in differences:
            print(difference, flush=True)
        if not differences:
            found = {'first': part.start, 'end': part.stop, 'made': made, 'worst': worst, 'seconds': spent}
            done[part] = journal.add(**found, happened=happened)
        passed = time.monotonic() - began
        if passed > told + EVERY or count == len(left):
            told = passed
            ahead = passed / count * (len(left) - count)
            print(f'{len(done)} of {len(parts)} parts, {wrong} wrong, {passed:.0f} s, {ahead:.0f} s left', flush=True)
    if len(done) == len(parts):
        text = page([done[part] for part in parts])
        print(text)
        PAGE.write_text(text, encoding='utf-8')
    else:
        print(f'{len(parts) - len(done)} of {len(parts)} parts are left; run it again', flush=True)
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
