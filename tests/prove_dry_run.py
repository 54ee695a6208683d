"""Dry runs on cuda: every example, and drawn plans, each of which is then spoiled in one of four ways.

    python -m tests.prove_dry_run [--plans 100] [--examples NAME ...] [--write docs/proofs/dry_run_proof.md]

An example is a process of its own. Rows are kept in out/dry_run.jsonl by commit: the same command goes on.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from executor.kernels import bind, kernel
from executor.virtual.dry_run import DryIssuer, FoldedComputation, dry_run, representatives
from simpar import Program, load_case
from simpar.errors import Deadlock, ProgramError
from tests.drawn_further import with_further
from tests.drawn_plans import DRAWN
from tests.proof import ROOT, Journal, arguments, commit, end, page_head, table

KEPT = ROOT / 'out' / 'dry_run.jsonl'
LIMIT = '20000s'
"""That an example is given: GPT-3 on 1,024 devices has 1.8 million ops to issue."""
FRAMEWORKS = ('megatron', 'torchtitan', 'mindformers', 'deepspeed', 'mindspeed')
ALSO = [
    (
        {'work.optimizer': {'muon': {'master_weights': True}}, 'plan.zero': 1, 'plan.shard_form': 'owned'},
        lambda plan, model: 'lora' not in model,
    ),
    (
        {
            'plan.context': 2,
            'plan.data': lambda plan: plan['data'] // 2,
            'plan.context_kind': 'all_to_all',
            'plan.context_heads': 'queries',
            'kv_heads': 1,
            'dropout': 0,
        },
        lambda plan, model: plan['data'] > 1 and plan.get('tensor', 1) == plan.get('context', 1) == 1,
    ),
    ({'sinks': 'learned', 'attention': 'flash'}, lambda plan, model: plan.get('context', 1) == 1),
    ({'sinks': 'zero', 'attention': 'flash'}, lambda plan, model: plan.get('context', 1) == 1),
]
"""Keys that no drawn plan has by itself, and what they need."""
ELSEWHERE = 'cuda:63'
Row = dict[str, Any]
Spoiler = type[DryIssuer] | None


def spoiled_kernel(how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[random.Random, Program], Spoiler]:
    """One kernel of a drawn rank, wherever it is asked for, also does something to what it gives."""

    def drawn(draw: random.Random, program: Program) -> Spoiler:
        rank = draw.choice(representatives(program))
        classes = sorted(set(program.role(rank).op_class.tolist()))
        ops = {one: program.op_classes[one] for one in classes}
        chosen = draw.choice([op for op in ops.values() if op.kind == 'compute' and op.phase in 'FI' and op.writes])
        alike = [one for one, op in ops.items() if (op.operator, op.phase) == (chosen.operator, chosen.phase)]
        right = kernel(chosen)

        class Computation(FoldedComputation):
            def __init__(self, *words: Any) -> None:
                super().__init__(*words)
                if self._start.rank == rank:
                    self._bound |= {one: bind(program, ops[one], wrong, self._start.dtype) for one in alike}

        def wrong(op: Any, where: Any, *tensors: Any) -> Any:
            first, *rest = right(op, where, *tensors)
            return [how(first), *rest]

        return type('Spoiled', (DryIssuer,), {'computation_of': Computation})

    return drawn


def whole_numbers(first: torch.Tensor) -> torch.Tensor:
    """A product of whole numbers, of which CUDA has none."""
    ones = torch.ones(2, 2, dtype=torch.int32, device=first.device)
    return first + (ones @ ones)[0, 0].to(first.dtype) * 0


def elsewhere(first: torch.Tensor) -> torch.Tensor:
    """A sum with what is on another device."""
    return first + torch.zeros(1, device=ELSEWHERE, dtype=first.dtype)


def out_of_order(draw: random.Random, program: Program) -> Spoiler:
    """A drawn rank issues two unlike collectives of one communicator the other way round."""
    rank = draw.choice(representatives(program))

    class Swapped(DryIssuer):
        def __post_init__(self) -> None:
            super().__post_init__()
            if self.start.rank == rank:
                one, other = draw.choice(pairs(self.slots, program))
                self.slots[one], self.slots[other] = self.slots[other], self.slots[one]

    streams = program.role(rank).stream.tolist()
    ops = [program.op_classes[index] for index in program.role(rank).op_class.tolist()]
    there = Counter((op.partition, streams[at]) for at, op in enumerate(ops) if op.kind == 'collective')
    return Swapped if any(count > 1 for count in there.values()) else None


def pairs(slots: Any, program: Program) -> list[tuple[int, int]]:
    """Neighbours among the collectives of one communicator, of several ranks."""
    found, last = [], dict[Any, int]()
    for at, slot in enumerate(slots):
        if slot.op.kind == 'collective' and program.partitions[slot.op.partition].size > 1:
            key = slot.op.partition, slot.stream
            if key in last:
                found.append((last[key], at))
            last[key] = at
    return found


def without_event(draw: random.Random, program: Program) -> Spoiler:
    """A drawn rank does not wait for one event: for the last op of a stream that writes what it reads.

    Not for an event that says when a gather may begin at the earliest: without it nothing is read too early.
    """
    rank = draw.choice(representatives(program))

    class Forgetful(DryIssuer):
        def __post_init__(self) -> None:
            super().__post_init__()
            if self.start.rank == rank:
                at, lost = draw.choice([*written(self.slots)])
                needs = tuple(need for need in self.slots[at].needs if need != lost)
                self.slots[at] = replace(self.slots[at], needs=needs)

    return Forgetful


def written(slots: Any) -> Iterator[tuple[int, int]]:
    """Each slot with what it waits for: of each stream the last one, where it writes what the slot reads."""
    for at, slot in enumerate(slots):
        last = {slots[need].stream: need for need in sorted(slot.needs)}
        yield from ((at, need) for need in last.values() if {*slots[need].op.writes} & {*slot.op.reads})


SABOTAGE: dict[str, Callable[[random.Random, Program], Spoiler]] = {
    'a dtype outside of the table': spoiled_kernel(whole_numbers),
    'a collective out of order': out_of_order,
    'a tensor on another device': spoiled_kernel(elsewhere),
    'an event that is missing': without_event,
}


def plan(number: int) -> Row:
    """A drawn plan, as it is and spoiled."""
    framework = FRAMEWORKS[number % len(FRAMEWORKS)]
    begun = time.process_time()
    drawn, further = with_further(framework, DRAWN[framework](number), number // len(FRAMEWORKS), ALSO)
    # As few micro-batches as its order has: all do the same.
    stages = drawn['plan'].get('pipeline', 1) * (2 if drawn['plan'].get('order') == 'dualpipe-v' else 1)
    drawn['plan']['micro_batches'] = min(drawn['plan']['micro_batches'], max(2, stages))
    program = load_case(drawn).program
    ranks = representatives(program)
    used = {key for key, value in drawn['plan'].items() if value not in (0, 1, [], 'none')}
    keys = sorted(used | {key for one in further for key in one if '.' not in key})
    row: Row = {'keys': keys, 'ranks': len(ranks), 'slots': sum(len(program.role(rank)) for rank in ranks)}
    try:
        found = dry_run(program)
    # One that nobody foresaw is a row, too, not the end of an hour's work.
    except Exception as error:
        return {**row, 'wrong': f'{type(error).__name__}: {error}'[:300]}
    row |= {
        'collectives': found.collectives,
        'operations': sum(found.calls.values()),
        'wrong': '; '.join(found.wrong)[:300],
        'error': max(abs(one.error) for one in found.bytes),
        'seconds': round(time.process_time() - begun, 1),
    }
    # Each way meets each framework.
    what = [*SABOTAGE][(number + number // len(FRAMEWORKS)) % len(SABOTAGE)]
    spoiler = SABOTAGE[what](random.Random(number), program)
    if spoiler is None:
        return row
    try:
        said = '; '.join(dry_run(program, issuer=spoiler).wrong)
    except (ProgramError, Deadlock) as error:
        said = f'{type(error).__name__}: {error}'
    return {**row, 'sabotage': what, 'said': said[:300]}


def example(name: str) -> Row:
    """An example by the command that a user writes."""
    words = [sys.executable, '-m', 'simpar', 'check', f'examples/{name}', '--fake', '--limit', LIMIT, '--json']
    begun = os.times()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    ended = os.times()
    seconds = ended.children_user + ended.children_system - begun.children_user - begun.children_system
    row: Row = {'exit': done.returncode, 'seconds': round(seconds, 1)}
    if done.returncode:
        return {**row, 'said': (done.stderr.strip().splitlines() or [f'ended with {done.returncode}'])[0][:400]}
    found = json.loads(done.stdout)
    error = max(abs(one['device'] / one['program'] - 1) for one in found['bytes'])
    issued = {'ranks': len(found['ranks']), 'world': found['world'], 'collectives': found['collectives']}
    return {**row, **issued, 'operations': sum(one['count'] for one in found['operations']), 'error': error}


def rows(kind: str, names: list[Any], work: Callable[[Any], Row], now: str) -> list[Row]:
    """Rows of this commit, made where they are not kept."""
    journal = Journal(KEPT, kind=kind, commit=now)
    known: dict[Any, Row] = {row['name']: row for row in journal.rows}
    for name in names:
        if name not in known:
            known[name] = journal.add(name=name, **work(name))
            print(known[name], flush=True)
    return [known[name] for name in names]


def page(examples: list[Row], plans: list[Row], now: str) -> Iterator[str]:
    """What was found."""
    yield page_head('dry_run', commit=now)
    passed = [row for row in examples if not row['exit']]
    yield f'## Examples: {len(passed)} of {len(examples)} pass, {len(examples) - len(passed)} refused'
    yield from (
        '',
        *table('example | ranks | operations | collectives | memory off by | CPU s |', map(cells, examples)),
    )
    if not plans:
        return
    wrong = [row for row in plans if row['wrong']]
    yield from ('', f'## {len(plans)} drawn plans: {len(wrong)} with something wrong', '')
    right = [row for row in plans if not row['wrong']]
    sums = {key: sum(row[key] for row in right) for key in ('slots', 'operations', 'collectives')}
    yield f'Of {", ".join(FRAMEWORKS)} in turn, 8 or 16 ranks, of 16 those that differ: {sums["slots"]:,} slots twice,'
    yield f'{sums["operations"]:,} operations, all in the table of kernels; {sums["collectives"]:,} collectives met.'
    seconds = statistics.median(row['seconds'] for row in right)
    most = max(row['error'] for row in right)
    yield f'Memory is off by {most:.3%} at most. CPU seconds in the median: {seconds:.1f}.'
    often = Counter(key for row in right for key in row['keys'])
    yield f'Their keys: {", ".join(f"`{key}` {count}" for key, count in sorted(often.items()))}.'
    yield from (f'- plan {row["name"]}: {row["wrong"]}' for row in wrong)
    yield ''
    yield from table('sabotage | plans | named | for instance', (sabotaged(what, plans) for what in SABOTAGE))


def cells(row: Row) -> list[Any]:
    """Of an example."""
    if row['exit']:
        return [row['name'], '', '', '', '', row['seconds'], row['said'].replace('|', '/')]
    counts = f'{row["ranks"]} of {row["world"]}', f'{row["operations"]:,}', f'{row["collectives"]:,}'
    return [row['name'], *counts, f'{row["error"]:.3%}', row['seconds'], '']


def sabotaged(what: str, plans: list[Row]) -> list[Any]:
    """How many plans were spoiled in a way, and what was said of it."""
    mine = [row for row in plans if row.get('sabotage') == what]
    named = [row['said'].replace('\n', ' ').replace('|', '/')[:160] for row in mine if row['said']]
    return [what, len(mine), len(named), *named[:1]] if named else [what, len(mine), 0, '']


def main() -> int:
    """All rows; exit code 1 where a plan or an example is wrong, or sabotage is not named."""
    now = (commit('executor', 'simpar'), 'of which rows are kept and told')
    options = arguments(__doc__, plans=100, examples={'nargs': '*'}, write=Path, commit=now)
    warnings.simplefilter('ignore')
    now = options.commit
    names = sorted(path.name for path in (ROOT / 'examples').iterdir() if path.suffix == '.yaml')
    plans = rows('plan', [*range(options.plans)], plan, now)
    examples = rows('example', names if options.examples is None else options.examples, example, now)
    text = '\n'.join(page(examples, plans, now)) + '\n'
    failed = [row for row in examples if row['exit']]
    unnamed = [row for row in plans if row.get('said') == '']
    return end(text, options.write, not (failed or unnamed or any(row['wrong'] for row in plans)), 1)


if __name__ == '__main__':
    sys.exit(main())
