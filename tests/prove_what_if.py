"""What if, against runs of the executor: record A, ask for B, measure B; six kinds of changes on two ranks.

python -m tests.prove_what_if [--steps N] [--write]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from simpar.case import load_case
from simpar.kineto import write_kineto
from simpar.trace_files import load_trace, to_trace
from tests.proof import ROOT, answer, arguments, end, line, page_head, printed

PAGE = ROOT / 'docs' / 'proofs' / 'what_if_proof.md'
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


def measured(folder: Path, name: str, plan: str, keys: tuple[str, ...], rate: int, steps: int) -> tuple[Path, float]:
    """A run's recording, and its median step."""
    schedule, saved = folder / 'schedule.yaml', folder / f'{name}.json'
    schedule.write_text(f'{MODEL}{plan}\n')
    words = ['--baseline', 'none', '--compute', 'emulated', '--net', NET.format(rate), '--steps', steps]
    printed(
        ['measure', schedule, *words, '--save', saved, *(word for key in keys for word in ('--set', key))], codes=(0, 4)
    )
    trace = to_trace(load_trace(saved), load_case(schedule, list(keys)).program)
    write_kineto(folder / name, trace, library='nccl')
    return folder / name, statistics.median(trace.step_times.tolist()[1:])


def row(folder: Path, pair: tuple[str, str, str, tuple[str, ...], int], steps: int) -> tuple[str, ...]:
    """What is changed, A and B as measured, B as asked for, and the error."""
    what, plan, asked, keys, rate = pair
    recording, before = measured(folder, 'a', plan, (), RATE, steps)
    words = ['--for', folder / 'schedule.yaml'] if '.' in asked.partition('=')[0] else []
    told = answer('trace', recording, *words, '--what-if', asked, codes=(0, 4))['what_if']
    _, after = measured(folder, 'b', plan, keys, rate, steps)
    foretold = told['recorded'] * told['changed'] / told['replayed']
    times = (f'{1e3 * one:.1f} ms' for one in (before, after, foretold))
    return what, f'`{asked}`', *times, f'{foretold / after - 1:+.1%}'


def main() -> int:
    """0 where the median error is within 5 %, and the largest within 10 %."""
    options = arguments(__doc__, steps=12, only={'type': int, 'nargs': '*', 'default': range(len(PAIRS))}, write=False)
    found = []
    for at in options.only:
        with tempfile.TemporaryDirectory() as folder:
            found.append(row(Path(folder), PAIRS[at], options.steps))
            print(line(found[-1]), flush=True)
    errors = [abs(float(cells[-1].rstrip('%'))) / 100 for cells in found]
    told = f'Median error {statistics.median(errors):.1%}, largest {max(errors):.1%}.'
    text = page_head('what_if') + '\n'.join([*map(line, found), '', told, ''])
    return end(text, PAGE if options.write else None, statistics.median(errors) <= USUAL and max(errors) <= MOST, 1)


if __name__ == '__main__':
    sys.exit(main())
