"""Steps of the executor beside the same plan by hand in torch; writes docs/proofs/by_hand_proof.md.

    python tests/prove_by_hand.py [ROW ...] [--seconds 65] [--again] [--write]

Rows: ddp, fsdp2, 1f1b, experts: five minutes. All three trainings of a row stay in memory and take turns of a few
steps. Every round of turns is added to out/by_hand/ROW.jsonl, so that a run that ends early goes on. --again begins
anew, --write writes the page.
"""

import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from by_hand import RANKS, ByHand
from proof import ROOT, Journal, arguments, commit, line, page_head

from executor.ranks.pool import Pool
from executor.state import Request, Stretch
from simpar.case import load_case

PAGE = ROOT / 'docs' / 'proofs' / 'by_hand_proof.md'
KEPT = ROOT / 'out' / 'by_hand'
HIDDEN, LAYERS, SEQUENCE, BATCH = SIZES = 512, 4, 128, 8
TURN, WARM = 4, 2
"""Steps of a turn; rounds that do not count."""
ROWS = {
    'ddp': ('DDP, buckets of 25 MB', '{data: 2}'),
    'fsdp2': ('FSDP2', '{data: 2, zero: 3}'),
    '1f1b': ('Schedule1F1B, 4 micro-batches', '{pipeline: 2, micro_batches: 4}'),
    'experts': ('4 experts, 2 of a token, all_to_all_single', '{data: 2, expert: 2}'),
}
MODEL = {'experts': ', bias: [], experts: {count: 4, top_k: 2, capacity: 1.0}'}
MOST = 1.03


def schedule(row):
    """The same training as simpar's schedule."""
    return f"""
simpar: 1
cluster: cpu-gloo
workload:
  transformer: {{layers: {LAYERS}, hidden: {HIDDEN}, heads: 4, vocab: 512, sequence: {SEQUENCE}{MODEL.get(row, '')}}}
  batch: {BATCH}
  optimizer: adam
plan: {ROWS[row][1]}
"""


class ByExecutor:
    """The executor's training, which goes on by some steps at a time."""

    def __init__(self, row, folder):
        path = folder / 'schedule.yaml'
        path.write_text(schedule(row))
        self._program = load_case(str(path)).program
        self._pool, self._done = Pool(RANKS, pinned=True), 0
        self.processes = self._pool.processes

    def ends(self, steps):
        """Train; when each step had ended on both ranks."""
        done = self._pool.perform(self._program, Request(steps=steps, stretch=Stretch(self._done)))
        self._done += steps
        return list(done.trace.step_ends)

    def close(self):
        """End the ranks."""
        self._pool.close()


def cpu(processes):
    """Seconds that processes have computed, over all their threads."""
    # The number of a process's clock on Linux: clock_getcpuclockid of libc.
    return sum(time.clock_gettime(((~process) << 3) | 2) for process in processes)


def turn(trained):
    """A turn of a training: its median step, and the CPU seconds of a step."""
    before = cpu(trained.processes)
    ends = trained.ends(TURN)
    return statistics.median(np.diff(ends)), (cpu(trained.processes) - before) / TURN


def measure(row, seconds, journal):
    """Add rounds to a journal until time is up."""
    cores = [{core} for core in sorted(os.sched_getaffinity(0))]
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / which for which in ('hand', 'again')]
        for folder in folders:
            folder.mkdir()
        trained = {folder.name: ByHand(row, cores, folder, SIZES) for folder in folders}
        trained['ours'] = ByExecutor(row, Path(name))
        try:
            for number in itertools.count():
                order = random.sample(sorted(trained), 3)
                found = {which: turn(trained[which]) for which in order}
                if number >= WARM:
                    journal.add(commit=commit(), order=order, **found)
                    told = ', '.join(f'{which} {1e3 * found[which][0]:.0f} ms' for which in sorted(found))
                    print(f'{row}, round {number - WARM + 1}: {told}', file=sys.stderr, flush=True)
                if time.monotonic() > until:
                    break
        finally:
            for one in trained.values():
                one.close()


def median_with_bounds(values):
    """A median, and the order statistics between which it lies in 95 of 100 repetitions."""
    values, count = sorted(values), len(values)
    reach = int(np.floor(count / 2 - 0.98 * np.sqrt(count)))
    low, high = (values[reach], values[-1 - reach]) if reach >= 0 else (-np.inf, np.inf)
    return statistics.median(values), low, high


def found(rounds):
    """The figures of a row: steps, and ratios with bounds."""
    # A median is of one commit.
    rounds = [one for one in rounds if one['commit'] == rounds[-1]['commit']]
    hand, ours, again = (np.array([one[which] for one in rounds]) for which in ('hand', 'ours', 'again'))
    ratio, used = (2 * ours / (hand + again)).T
    return {
        'commit': rounds[-1]['commit'],
        'rounds': len(rounds),
        'hand': float(np.median(np.concatenate([hand, again])[:, 0])),
        'ours': float(np.median(ours[:, 0])),
        'ratio': median_with_bounds(ratio),
        'noise': median_with_bounds((again / hand)[:, 0]),
        'cpu': median_with_bounds(used),
    }


def cells(row, one):
    """A row of the page."""
    title, plan = ROWS[row]
    steps = (f'{1e3 * one[whose]:.0f} ms' for whose in ('hand', 'ours'))
    ratios = ('{:.3f} ({:.3f} to {:.3f})'.format(*one[key]) for key in ('ratio', 'noise', 'cpu'))
    return [title, f'`{plan}`', one['commit'], one['rounds'], *steps, *ratios]


def main():
    """Measure rows; 0 where the median ratio of all rows is at most 1.03."""
    options = arguments(
        __doc__, {'name': 'rows', 'nargs': '*', 'default': list(ROWS)}, seconds=65.0, again=False, write=False
    )
    journals = {}
    for row in ROWS:
        path = KEPT / f'{row}.jsonl'
        if options.again and row in options.rows:
            path.unlink(missing_ok=True)
        journals[row] = Journal(path)
    for row in options.rows:
        measure(row, options.seconds, journals[row])
        print(line(cells(row, found(journals[row].rows))), flush=True)
    results = {row: found(journal.rows) for row, journal in journals.items() if journal.rows}
    middle = statistics.median(one['ratio'][0] for one in results.values())
    end = f'The median ratio of {len(results)} rows is {middle:.3f}; at most {MOST} is asked for.'
    print(end)
    if options.write and len(results) < len(ROWS):
        print(f'no page: without {", ".join(ROWS.keys() - results.keys())}', file=sys.stderr)
    elif options.write:
        sizes = {'hidden': HIDDEN, 'layers': LAYERS, 'sequence': SEQUENCE, 'batch': BATCH, 'turn': TURN}
        lines = [line(cells(row, one)) for row, one in results.items()]
        PAGE.write_text(page_head('by_hand', **sizes) + '\n'.join([*lines, '', end, '']))
    return 0 if middle <= MOST else 1


if __name__ == '__main__':
    sys.exit(main())
