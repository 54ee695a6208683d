"""Steps of plain torch predicted by a recording of another plan or size; writes docs/proofs/recorded_pairs.md.

python -m tests.prove_recorded_pairs [--quick] [--write] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path

from simpar.case import load_case
from tests.proof import page_head

ROOT = Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'proofs' / 'recorded_pairs.md'
SHAPE = {'hidden': 384, 'layers': 4, 'sequence': 128, 'batch': 4}
QUICK = {'hidden': 128, 'layers': 2, 'sequence': 64, 'batch': 4}
PLANS = {
    'ddp': '{data: 2}',
    'fsdp2': '{data: 2, zero: 3}',
    'tensor': '{tensor: 2}',
}
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


def shape_of(name: str, small: dict[str, int]) -> dict[str, int]:
    """The sizes of a training."""
    return {key: size * TRAININGS[name][1].get(key, 1) for key, size in small.items()}


def schedule(folder: Path, name: str, shape: dict[str, int]) -> Path:
    """The schedule of a training."""
    kind = TRAININGS[name][0]
    path = folder / f'{name.replace(", ", "-").replace(" ", "-")}.yaml'
    samples = shape['batch'] * (1 if kind == 'tensor' else 2)
    model = f'layers: {shape["layers"]}, hidden: {shape["hidden"]}, heads: 4, vocab: 512, sequence: {shape["sequence"]}'
    path.write_text(f"""
simpar: 1
cluster: {{profile: cpu-gloo, devices: 2, stack: torch-gloo}}
workload:
  transformer: {{{model}}}
  batch: {samples}
  optimizer: adam
plan: {PLANS[kind]}
""")
    return path


def recorded(folder: Path, small: dict[str, int], rounds: int, steps: int) -> dict[str, list[list[float]]]:
    """Run all trainings in turn; seconds of their steps by round."""
    first = {name for name, _ in PAIRS}
    told = [(TRAININGS[name][0], shape_of(name, small), name in first) for name in TRAININGS]
    program = Path(__file__).with_name('recorded_pairs.py')
    command = [sys.executable, str(program), str(folder), json.dumps(told), str(rounds), str(steps)]
    subprocess.run(command, check=True)
    return dict(zip(TRAININGS, json.loads((folder / 'steps.json').read_text()), strict=True))


def imported(folder: Path, name: str, path: Path) -> tuple[Path, dict[str, object]]:
    """The profile made of a training's recording, and what was joined."""
    profile, answer = folder / f'{path.stem}-profile.yaml', folder / f'{path.stem}.json'
    trace = folder / str(list(TRAININGS).index(name))
    words = [
        sys.executable,
        '-m',
        'simpar',
        'import',
        str(trace),
        '--for',
        str(path),
        '--output',
        str(profile),
        '--json',
    ]
    answer.write_text(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return profile, json.loads(answer.read_text())


def spread(rounds: list[list[float]]) -> float:
    """How far the medians of even and odd rounds lie apart: what two runs of one thing differ by."""
    halves = [statistics.median(chain(*rounds[half::2])) for half in (0, 1)]
    return abs(halves[0] / halves[1] - 1)


def rows(folder: Path, small: dict[str, int], rounds: int, steps: int) -> list[tuple[str, ...]]:
    """A row for each pair: A, B, seconds, error, spread, and what was matched."""
    seconds = recorded(folder, small, rounds, steps)
    paths = {name: schedule(folder, name, shape_of(name, small)) for name in TRAININGS}
    made = {name: imported(folder, name, paths[name]) for name in dict.fromkeys(first for first, _ in PAIRS)}
    found = []
    for first, second in PAIRS:
        profile, told = made[first]
        own, predicted = (
            load_case(paths[name], [f'cluster.profile={profile.resolve()}']).predict().step for name in (first, second)
        )
        mine, measured = (statistics.median(chain(*seconds[name])) for name in (first, second))
        found.append((
            first, second, f'{1e3 * measured:.1f} ms', f'{1e3 * predicted:.1f} ms', f'{predicted / measured - 1:+.1%}',
            f'{own / mine - 1:+.1%}', f'{spread(seconds[second]):.1%}', f'{told["step"]["share"]:.0%}',
        ))  # fmt: skip
        print('| ' + ' | '.join(found[-1]) + ' |', flush=True)
    return found


def main() -> int:
    """0 where at most one of the pairs is more than 10 % off."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--write', action='store_true')
    parser.add_argument('--folder', type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    found = rows(folder, QUICK if options.quick else SHAPE, 4 if options.quick else 10, 8)
    above = sum(abs(float(row[4].rstrip('%'))) > 100 * MOST for row in found)
    end = f'{len(found) - above} of {len(found)} within {MOST:.0%}.'
    print(end)
    if options.write:
        table = ['| ' + ' | '.join(row) + ' |' for row in found]
        PAGE.write_text(page_head('recorded_pairs') + '\n'.join([*table, '', end, '']))
    return int(above > 1)


if __name__ == '__main__':
    sys.exit(main())
