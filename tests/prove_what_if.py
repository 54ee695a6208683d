"""What if, against runs of the executor: record A, ask for B, measure B; six kinds of changes on two ranks.

python -m tests.prove_what_if [--steps N] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from simpar.case import load_case
from simpar.kineto import write_kineto
from simpar.trace_files import load_trace, to_trace
from tests.proof import page_head

PAGE = Path(__file__).parent.parent / 'docs' / 'proofs' / 'what_if_proof.md'
MODEL = """simpar: 1
cluster: {profile: cpu-gloo, devices: 2}
workload:
  transformer: {layers: 4, hidden: 256, heads: 4, vocab: 512, sequence: 128}
  batch: 16
plan: """
NET = 'paced:{}MB/s,0us'
RATE = 200
DATA, TENSOR, STAGES = '{data: 2}', '{tensor: 2}', '{pipeline: 2, micro_batches: 4, order: 1f1b}'
PAIRS: list[tuple[str, str, str, tuple[str, ...], int]] = [
    # What is changed; the plan; how it is asked; keys and rate of B.
    ('link at half the rate', TENSOR, 'link=0-1:2', (), RATE // 2),
    ('rank 1 at 2/3 of its speed', DATA, 'rank=1:1.5', ('cluster.slow={1: 0.6666667}',), RATE),
    ('copies 1 to 2', TENSOR, 'plan.copies=2', ('plan.copies=2',), RATE),
    ('1f1b to zero bubble', STAGES, 'plan.order=zb-h1', ('plan.order=zb-h1',), RATE),
    ('a message a layer to one', DATA, 'plan.fusion=all', ('plan.fusion=all',), RATE),
    ('batch 16 to 32', DATA, 'workload.batch=32', ('workload.batch=32',), RATE),
]
USUAL, MOST = 0.05, 0.1


def simpar(*words: str) -> str:
    """What a command prints."""
    command = [sys.executable, '-m', 'simpar', *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4):
        raise SystemExit(f'{" ".join(words)}\n{done.stderr[-2000:]}')
    return done.stdout


def measured(folder: Path, name: str, plan: str, keys: tuple[str, ...], rate: int, steps: int) -> tuple[Path, float]:
    """A run's recording, and its median step."""
    schedule, saved = folder / 'schedule.yaml', folder / f'{name}.json'
    schedule.write_text(f'{MODEL}{plan}\n')
    net = NET.format(rate)
    words = ['--baseline', 'none', '--compute', 'emulated', '--net', net, '--steps', str(steps), '--save', str(saved)]
    simpar('measure', str(schedule), *words, *(word for key in keys for word in ('--set', key)))
    trace = to_trace(load_trace(saved), load_case(schedule, list(keys)).program)
    write_kineto(folder / name, trace, library='nccl')
    return folder / name, statistics.median(trace.step_times.tolist()[1:])


def row(folder: Path, pair: tuple[str, str, str, tuple[str, ...], int], steps: int) -> tuple[str, ...]:
    """What is changed, A and B as measured, B as asked for, and the error."""
    what, plan, asked, keys, rate = pair
    recording, before = measured(folder, 'a', plan, (), RATE, steps)
    words = ['--for', str(folder / 'schedule.yaml')] if '.' in asked.partition('=')[0] else []
    told = json.loads(simpar('trace', str(recording), *words, '--what-if', asked, '--json'))['what_if']
    _, after = measured(folder, 'b', plan, keys, rate, steps)
    answer = told['recorded'] * told['changed'] / told['replayed']
    cells = (
        what,
        f'`{asked}`',
        *(f'{1e3 * one:.1f} ms' for one in (before, after, answer)),
        f'{answer / after - 1:+.1%}',
    )
    print('| ' + ' | '.join(cells) + ' |', flush=True)
    return cells


def main() -> int:
    """0 where the median error is within 5 %, and the largest within 10 %."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--steps', type=int, default=12)
    parser.add_argument('--only', type=int, nargs='*')
    parser.add_argument('--write', action='store_true')
    options = parser.parse_args()
    found = []
    for pair in [PAIRS[at] for at in options.only] if options.only else PAIRS:
        with tempfile.TemporaryDirectory() as folder:
            found.append(row(Path(folder), pair, options.steps))
    errors = [abs(float(cells[-1].rstrip('%'))) / 100 for cells in found]
    end = f'Median error {statistics.median(errors):.1%}, largest {max(errors):.1%}.'
    print(end)
    if options.write:
        table = ['| ' + ' | '.join(cells) + ' |' for cells in found]
        PAGE.write_text(page_head('what_if') + '\n'.join([*table, '', end, '']))
    return int(statistics.median(errors) > USUAL or max(errors) > MOST)


if __name__ == '__main__':
    sys.exit(main())
