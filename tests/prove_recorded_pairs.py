"""Steps of plain torch predicted by what torch.profiler recorded; writes a page of docs/proofs with ``--write``.

python -m tests.prove_recorded_pairs [--quick] [--write] [--folder DIR]      by a recording of another plan or size
python -m tests.prove_recorded_pairs --calibrated [--write] [--folder DIR]   of itself, beside `simpar calibrate`
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from simpar.case import load_case
from tests.proof import ROOT, answer, arguments, end, line, page_head, printed

PAGES = ROOT / 'docs' / 'proofs'
SHAPE = {'hidden': 384, 'layers': 4, 'sequence': 128, 'batch': 4}
QUICK = {'hidden': 128, 'layers': 2, 'sequence': 64, 'batch': 4}
SHAPES = [dict(zip(SHAPE, sizes, strict=True)) for sizes in ((128, 4, 128, 8), (256, 2, 256, 4), (512, 2, 64, 8))]
"""Of trainings that are predicted by their own recording; the batch is that of a rank."""
PLANS = {'plain': '{}', 'ddp': '{data: 2}', 'fsdp2': '{data: 2, zero: 3}', 'tensor': '{tensor: 2}'}
TRAININGS = {
    'ddp': ('ddp', {}),
    'fsdp2': ('fsdp2', {}),
    'tensor': ('tensor', {}),
    'ddp, batch doubled': ('ddp', {'batch': 2}),
    'ddp, layers doubled': ('ddp', {'layers': 2}),
    'ddp, sequence doubled': ('ddp', {'sequence': 2}),
}
"""By name the plan, and how many times as large which sizes are."""
PAIRS = [
    ('ddp', 'fsdp2'),
    ('fsdp2', 'ddp'),
    *(('ddp', name) for name in TRAININGS if ',' in name),
    ('tensor', 'fsdp2'),
]
MOST = 0.1
BESIDE = 1.3
"""How many times the error of a calibration that of a recording may be, in the median."""
Training = tuple[str, dict[str, int], bool]
"""A plan, sizes, and whether it is recorded."""


def schedule(path: Path, kind: str, shape: dict[str, int], cluster: str) -> Path:
    """Write the schedule of a training."""
    samples = shape['batch'] * (2 if 'data' in PLANS[kind] else 1)
    model = f'layers: {shape["layers"]}, hidden: {shape["hidden"]}, heads: 4, vocab: 512, sequence: {shape["sequence"]}'
    path.write_text(f"""
simpar: 1
cluster: {{{cluster}}}
workload:
  transformer: {{{model}}}
  batch: {samples}
  optimizer: adam
plan: {PLANS[kind]}
""")
    return path


def recorded(folder: Path, ranks: int, trainings: list[Training], rounds: int, steps: int) -> Any:
    """Run all trainings in turn; seconds of their steps by round."""
    program = Path(__file__).with_name('recorded_pairs.py')
    command = [sys.executable, program, folder, ranks, json.dumps(trainings), rounds, steps]
    subprocess.run(list(map(str, command)), check=True)
    return json.loads((folder / 'steps.json').read_text())


def step_by(path: Path, profile: Path) -> float:
    """Seconds of a step as predicted with a profile."""
    return load_case(path, [f'cluster.profile={profile.resolve()}']).predict().step


def spread(rounds: list[list[float]]) -> float:
    """How far the medians of even and odd rounds lie apart: what two runs of one thing differ by."""
    halves = [statistics.median(chain(*rounds[half::2])) for half in (0, 1)]
    return abs(halves[0] / halves[1] - 1)


def by_others(folder: Path, small: dict[str, int], rounds: int) -> Iterator[tuple[str, ...]]:
    """A row for each pair: A, B, seconds, error, spread, and what was matched."""
    first = {name for name, _ in PAIRS}
    told: list[Training] = [
        (kind, {key: size * more.get(key, 1) for key, size in small.items()}, name in first)
        for name, (kind, more) in TRAININGS.items()
    ]
    seconds = dict(zip(TRAININGS, recorded(folder, 2, told, rounds, 8), strict=True))
    paths, made = {}, {}
    for number, (name, (kind, shape, is_first)) in enumerate(zip(TRAININGS, told, strict=True)):
        path = folder / f'{name.replace(", ", "-").replace(" ", "-")}.yaml'
        paths[name] = schedule(path, kind, shape, 'profile: cpu-gloo, devices: 2, stack: torch-gloo')
        if is_first:
            profile = folder / f'{path.stem}-profile.yaml'
            made[name] = profile, answer('import', folder / str(number), '--for', path, '--output', profile)
    for one, other in PAIRS:
        profile, joined = made[one]
        own, predicted = (step_by(paths[name], profile) for name in (one, other))
        mine, measured = (statistics.median(chain(*seconds[name])) for name in (one, other))
        yield (
            one, other, f'{1e3 * measured:.1f} ms', f'{1e3 * predicted:.1f} ms', f'{predicted / measured - 1:+.1%}',
            f'{own / mine - 1:+.1%}', f'{spread(seconds[other]):.1%}', f'{joined["step"]["share"]:.0%}',
        )  # fmt: skip


def by_itself(folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each training: ranks, sizes, seconds, and both predictions with their errors."""
    base = folder / 'base.yaml'
    if not base.exists():
        printed(['calibrate', base, '--quick'])
    for ranks, kind in ((1, 'plain'), (2, 'ddp')):
        where = folder / kind
        seconds = recorded(where, ranks, [(kind, shape, True) for shape in SHAPES], 10, 5)
        for number, shape in enumerate(SHAPES):
            path, mine = where / f'{number}.yaml', where / f'{number}-mine.yaml'
            schedule(path, kind, shape, f'profile: {base}, devices: {ranks}')
            printed(['import', where / str(number), '--for', path, '--output', mine])
            measured = statistics.median(chain(*seconds[number]))
            found = [step_by(path, profile) for profile in (base, mine)]
            cells = (cell for one in found for cell in (f'{1e3 * one:.1f} ms', f'{one / measured - 1:+.1%}'))
            yield str(ranks), *map(str, shape.values()), f'{1e3 * measured:.1f} ms', *cells


def main() -> int:
    """0 where at most one of the pairs is more than 10 % off, or recordings are as good as a calibration."""
    options = arguments(__doc__, quick=False, calibrated=False, write=False, folder=Path)
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    rows = by_others(folder, QUICK if options.quick else SHAPE, 4 if options.quick else 10)
    for row in by_itself(folder) if options.calibrated else rows:
        found.append(row)
        print(line(row), flush=True)
    if options.calibrated:
        calibrated, own = (statistics.median(abs(float(row[at].rstrip('%'))) for row in found) for at in (7, 9))
        told = f'Median error: {calibrated:.1f}% by `simpar calibrate`, {own:.1f}% by the recording.'
        head, page, held = 'recording', 'recordings_proof', own <= BESIDE * calibrated
    else:
        above = sum(abs(float(row[4].rstrip('%'))) > 100 * MOST for row in found)
        told = f'{len(found) - above} of {len(found)} within {MOST:.0%}.'
        head, page, held = 'recorded_pairs', 'recorded_pairs', above <= 1
    text = page_head(head) + '\n'.join([*map(line, found), '', told, ''])
    return end(text, PAGES / f'{page}.md' if options.write else None, held, 1)


if __name__ == '__main__':
    sys.exit(main())
