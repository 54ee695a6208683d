"""Predictions by recorded ops, of trainings that simpar did not write; writes docs/proofs/recordings_proof.md.

python tests/prove_recording.py [FOLDER]
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from proof import page_head

from simpar import cli, load_case

ROOT = Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'proofs' / 'recordings_proof.md'
TRAINING = Path(__file__).parent / 'recorded_training.py'
SHAPES = [
    # ranks, hidden, layers, sequence, samples of a rank
    (1, 128, 4, 128, 8),
    (1, 256, 2, 256, 4),
    (1, 512, 2, 64, 8),
    (2, 128, 4, 128, 8),
    (2, 256, 2, 256, 4),
    (2, 512, 2, 64, 8),
]
MOST = 1.3


def schedule(folder, shape, profile):
    """The schedule of a training."""
    ranks, hidden, layers, sequence, samples = shape
    path = folder / 'schedule.yaml'
    path.write_text(f"""
simpar: 1
cluster: {{profile: {profile}, devices: {ranks}}}
workload:
  transformer: {{layers: {layers}, hidden: {hidden}, heads: 4, vocab: 512, sequence: {sequence}}}
  batch: {ranks * samples}
  optimizer: adam
plan: {{data: {ranks}}}
""")
    return path


def row(folder, shape, base):
    """Measured and predicted seconds of one training."""
    where = folder / '-'.join(map(str, shape))
    command = [sys.executable, str(TRAINING), str(where / 'trace'), *map(str, shape)]
    subprocess.run(command, check=True, capture_output=True)
    measured = json.loads((where / 'trace' / 'steps.json').read_text())['median']
    (where / 'trace' / 'steps.json').unlink()
    path, mine = schedule(where, shape, base), where / 'mine.yaml'
    assert cli.main(['import', str(where / 'trace'), '--for', str(path), '--output', str(mine)]) == 0
    found = [load_case(path, [f'cluster.profile={profile}']).predict().step for profile in (base, mine)]
    return measured, *found


def main():
    """Calibrate once, then each training; 0 where recordings are within 1.3 times the error of the calibration."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    base = folder / 'base.yaml'
    assert base.exists() or cli.main(['calibrate', str(base), '--quick']) == 0
    lines, errors = [], ([], [])
    for shape in SHAPES:
        measured, *found = row(folder, shape, base)
        cells = [*map(str, shape), f'{1e3 * measured:.1f} ms']
        for seconds, kept in zip(found, errors, strict=True):
            kept.append(seconds / measured - 1)
            cells += [f'{1e3 * seconds:.1f} ms', f'{kept[-1]:+.1%}']
        lines.append(f'| {" | ".join(cells)} |')
        print(lines[-1], flush=True)
    medians = [statistics.median(map(abs, kept)) for kept in errors]
    end = f'Median error: {medians[0]:.1%} by `simpar calibrate`, {medians[1]:.1%} by the recording.'
    PAGE.write_text(page_head('recording') + '\n'.join([*lines, '', end, '']))
    print(end)
    return 0 if medians[1] <= MOST * medians[0] else 1


if __name__ == '__main__':
    sys.exit(main())
