"""Draws plans and spaces: bounds below the engine's answer, and the winner of brute force (`make prove-planner`).

python -m tests.prove_planner --plans 10000 --spaces 20 --kept planner.jsonl --page docs/proofs/planner_proof.md

Blocks of plans and spaces are drawn from seeds of their own, and kept as lines of a file: the same command goes on.
"""

import random
import sys
import time
import unittest.mock
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from simpar.case import cluster_of
from simpar.planner import load_planning
from simpar.planner.answer import Answer
from simpar.planner.judge import Judge
from simpar.planner.render import render
from simpar.planner.search import Search
from simpar.planner.space import KEYS
from simpar.schedule.contents import FREE
from simpar.sweep.answer import predicted
from tests.planner_cases import drawn_path, drawn_space, enumerable_space, is_steady, least, outcomes
from tests.proof import Journal, arguments, commit, end, page_head, table

BLOCK: int = 20
"""Plans of a block, at least."""
LEAST: int = 500
"""Plans of a space that fit, at least."""
ADDED = ('offload', 'recompute_inputs', 'pairs')
"""Keys that are free where the file says so, and have bounds."""
FURTHER = (*ADDED, 'placement', 'expert_ranks')
FIRST, SECONDS, GAP = 10.0, 120.0, 0.1
"""CPU seconds to a first plan, and of a search; the gap that it comes to."""
EVERY = 15.0
"""CPU seconds between two words on a search."""
Row = dict[str, Any]


def block(seed: str) -> Row:
    """Draw some plans, and compare the bounds of each with the engine."""
    draw = random.Random(seed)
    row: Row = {'plans': 0, 'wrong': [], 'without': 0, 'unsteady': 0, 'step': [], 'peak': []}
    while row['plans'] < BLOCK:
        space = drawn_space(draw, draw.choice([(), ADDED]))
        judge = Judge(space, cluster_of(space.base))
        for path in filter(None, (drawn_path(space, draw) for _ in range(6))):
            seconds, held, refusals = least(judge, path)
            outcome = predicted(space.schedule(path))
            if outcome.figures is None:
                row['without'] += 1
                continue
            row['plans'] += 1
            step = outcome.figures.step
            row['step'].append(round(seconds / step, 6))
            row['peak'].append(round(held / outcome.peak, 6))
            if seconds > step and not is_steady(outcome):
                row['unsteady'] += 1
            elif seconds > step or held > outcome.peak or (refusals and outcome.peak <= outcome.device):
                told = f'{seconds / step:.5f} of the step, {held / outcome.peak:.5f} of the peak, {refusals[:1]}'
                row['wrong'].append(f'{told}: {space.base.workload} {space.base.cluster} {space.chosen(path)}')
    return row


def winner(seed: str) -> Row:
    """Enumerate a space by the engine, and search it."""
    draw = random.Random(seed)
    number = int(seed.rsplit(maxsplit=1)[-1])
    # Three keys in turn, so that each varies in some of the spaces.
    first = [KEYS[(3 * number + one) % len(KEYS)] for one in range(3)]
    while True:
        space = enumerable_space(draw, first)
        begin = time.process_time()
        every = [(one.figures.step, path) for path, one in outcomes(space) if one.feasible and one.figures]
        brute = time.process_time() - begin
        if len(every) >= LEAST:
            break
    begin = time.process_time()
    judge = Judge(space, cluster_of(space.base))
    found = Search(space, judge, lambda paths: ((path, predicted(space.schedule(path))) for path in paths)).run()
    return {
        'plans': space.count,
        'fit': len(every),
        'predicted': len(found.outcomes),
        'brute': round(brute, 1),
        'search': round(time.process_time() - begin, 1),
        # Those that have several values among plans that fit.
        'keys': [key for number, key in enumerate(space.keys) if len({path[number] for _, path in every}) > 1],
        'step': min(every)[0],
        'wrong': [] if _is_best(found, every) else [f'{space.base.workload} {space.base.cluster} {space.values}'],
    }


def _is_best(found: Any, every: list[tuple[float, Any]]) -> bool:
    """Whether a search ended by itself, with a plan that is as fast as the fastest of all."""
    return bool(found.complete and found.best is not None and found.best[0] == min(every)[0])


def rows(kind: str, work: Any, until: Any, seed: int, kept: Path, jobs: int, commit: str) -> list[Row]:
    """Rows of a kind: those that are kept, and as many more as are wanted."""
    journal = Journal(kept, kind=kind, commit=commit, seed=seed)
    with ProcessPoolExecutor(jobs) as pool:
        while not until(journal.rows):
            known = {row['number'] for row in journal.rows}
            numbers = [number for number in range(len(known) + 4 * jobs) if number not in known][: 2 * jobs]
            for number, row in zip(numbers, pool.map(work, [f'{kind} {seed} {one}' for one in numbers]), strict=True):
                journal.add(number=number, **row)
                for one in row['wrong']:
                    print(f'WRONG {one}', flush=True)
    return sorted(journal.rows, key=lambda row: row['number'])


def page(blocks: list[Row], spaces: list[Row], seed: int, commit: str) -> Iterator[str]:
    """What was found, as a page."""
    yield page_head('planner', commit=commit, seed=seed).rstrip()
    if blocks:
        plans, wrong = sum(row['plans'] for row in blocks), sum(len(row['wrong']) for row in blocks)
        yield from ('', '## Bounds', '')
        yield f'{plans:,} drawn plans, each with the bounds of all nodes above it: {wrong} are above the prediction.'
        unsteady, without = (sum(row[key] for row in blocks) for key in ('unsteady', 'without'))
        yield f'{unsteady} more are above a third step that is not steady yet; {without} more have no program.'
        shares = {name: sorted(value for row in blocks for value in row[name]) for name in ('step', 'peak')}
        found = ((name, f'{one[len(one) // 2]:.3f}', f'{one[-1]:.6f}') for name, one in shares.items())
        yield from ('', *table('least known, as a share of | median | highest', found))
    if spaces:
        wrong = sum(len(row['wrong']) for row in spaces)
        yield from ('', '## Winners', '')
        yield f'{len(spaces)} spaces, every plan predicted by the engine: {wrong} have another winner than the search.'
        heads = 'plans | fit | predicted by the search | CPU s, brute force | CPU s, search | keys that vary'
        yield from ('', *table(heads, map(_cells, spaces)))
        count = Counter(key for row in spaces for key in row['keys'])
        told = ', '.join(f'`{key}` {times}' for key, times in sorted(count.items()))
        yield from ('', f'In how many spaces a key varies: {told}.')


def _cells(row: Row) -> list[Any]:
    keys = ', '.join(f'`{key}`' for key in row['keys'])
    return [f'{row["plans"]:,}', f'{row["fit"]:,}', row['predicted'], row['brute'], row['search'], keys]


def gap(file: Path, seconds: float, *, whole: bool) -> int:
    """Search a large space for some CPU seconds; exit code 1 where the first plan or the gap comes too late.

    Argument: ``whole``, whether every key that the search knows is free, and any gap is right.
    """
    document = yaml.safe_load(file.read_text(encoding='utf-8'))
    if whole:
        document['planner'] = {'gap': 0.05, 'keys': {f'plan.{key}': FREE for key in FURTHER}}
    # Not the clock on the wall: other work on the machine changes nothing.
    begin, first = time.process_time(), list[float]()

    def tell(known: Answer) -> None:
        now = time.process_time() - begin
        if known.best and (not first or now > first[-1] + EVERY):
            first.append(now)
            best = f'{known.best.step:.4g} s, gap {known.gap:.2%}'
            print(f'after {now:.1f} CPU s: {best}', file=sys.stderr, flush=True)

    with unittest.mock.patch('time.monotonic', time.process_time):
        answer = load_planning(document).search(jobs=1, seconds=seconds, tell=tell)
    took = time.process_time() - begin
    told = f'first plan {first[0]:.1f} s, gap {answer.gap:.2%} after {took:.0f} CPU s'
    print(f'{file}: {told}, of {answer.plans} plans, {answer.never_bounded / answer.plans:.1%} never bounded')
    print(render(answer))
    return int(first[0] > FIRST or (answer.gap > GAP and not whole) or answer.refuted > 0)


def main() -> int:
    """All proofs that are asked for; exit code 1 where anything is wrong."""
    options = arguments(
        __doc__,
        plans=10000,
        spaces=20,
        seed=1,
        jobs=2,
        kept=Path('planner_proof.jsonl'),
        page=Path,
        commit=(commit('simpar', 'tests/planner_cases.py'), 'of which rows are kept and told'),
        gap=(Path, 'a schedule whose space is searched, and nothing else'),
        seconds=(SECONDS, 'CPU seconds of that search'),
        whole=(False, 'with all keys that the search knows free'),
    )
    if options.gap:
        return gap(options.gap, options.seconds, whole=options.whole)
    shared = (options.seed, options.kept, options.jobs, options.commit)
    spaces = rows('space', winner, lambda done: len(done) >= options.spaces, *shared)
    blocks = rows('block', block, lambda done: sum(row['plans'] for row in done) >= options.plans, *shared)
    text = '\n'.join(page(blocks, spaces, options.seed, options.commit)) + '\n'
    return end(text, options.page, not any(row['wrong'] for row in (*blocks, *spaces)), 1)


if __name__ == '__main__':
    raise SystemExit(main())
