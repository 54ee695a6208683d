"""Steps of the executor beside the same plan by hand in torch; writes docs/by_hand_proof.md.

python tests/prove_by_hand.py [ROUNDS]
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from simpar.trace_files import load_trace

ROOT = Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'by_hand_proof.md'
BY_HAND = Path(__file__).parent / 'by_hand.py'
HIDDEN, LAYERS, SEQUENCE, BATCH = 512, 4, 128, 8
STEPS, WARM = 14, 4
PLANS = {
    'ddp': ('DDP, buckets of 25 MB', '{data: 2}'),
    'fsdp2': ('FSDP2', '{data: 2, zero: 3}'),
    '1f1b': ('Schedule1F1B, 4 micro-batches', '{pipeline: 2, micro_batches: 4}'),
}
MOST = 1.05
NOISE = 0.02
"""Where by hand and by hand again differ by more, a row cannot be measured."""
HEAD = """\
# The executor beside torch by hand

Written by `make prove-by-hand` at commit {commit}.

`tests/by_hand.py` trains the same GPT by hand in torch: two ranks with a thread each for computing, gloo, fp32, Adam,
hidden {hidden}, {layers} layers, sequence {sequence}, batch {batch}. Both take turns, {rounds} rounds of {steps} steps
behind {warm} that do not count. A number is the median over rounds of the median step. By hand again: the same by hand,
in the same turns; what it differs by is noise.

| by hand | plan | by hand | by hand again | executor | ratio | noise |
|---|---|---|---|---|---|---|
"""


def by_hand(engine, folder):
    """The median step by hand."""
    for old in folder.glob('*'):
        old.unlink()
    sizes = map(str, (STEPS + WARM, HIDDEN, LAYERS, SEQUENCE, BATCH))
    subprocess.run([sys.executable, str(BY_HAND), engine, str(folder), *sizes], check=True, capture_output=True)
    ends = [json.loads((folder / f'rank{rank}.json').read_text()) for rank in range(2)]
    last = np.max(ends, axis=0)
    return float(np.median(np.diff(last)[WARM - 1 :]))


def by_executor(plan, folder):
    """The median step of the executor."""
    schedule, saved = folder / 'schedule.yaml', folder / 'trace.json'
    schedule.write_text(f"""
simpar: 1
cluster: cpu-gloo
workload:
  transformer: {{layers: {LAYERS}, hidden: {HIDDEN}, heads: 4, vocab: 512, sequence: {SEQUENCE}}}
  batch: {BATCH}
  optimizer: adam
plan: {plan}
""")
    command = ['measure', str(schedule), '--steps', str(STEPS + WARM), '--save', str(saved), '--json']
    done = subprocess.run([sys.executable, '-m', 'simpar', *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(np.median(load_trace(saved).step_times[WARM:]))


def main():
    """All plans in turns; 0 where the executor takes at most 1.05 times as long, and no row is noisy."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    lines, ratios, noisy = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / 'hand').mkdir()
        for engine, (title, plan) in PLANS.items():
            turns = [
                (by_hand(engine, folder / 'hand'), by_executor(plan, folder), by_hand(engine, folder / 'hand'))
                for _ in range(rounds)
            ]
            hand, ours, again = (statistics.median(times) for times in zip(*turns, strict=True))
            ratio, noise = ours / statistics.median([hand, again]), again / hand - 1
            (ratios if abs(noise) <= NOISE else noisy).append(ratio)
            cells = [title, f'`{plan}`', *(f'{1e3 * seconds:.0f} ms' for seconds in (hand, again, ours))]
            lines.append(f'| {" | ".join([*cells, f"{ratio:.3f}", f"{noise:+.1%}"])} |')
            print(lines[-1], flush=True)
    words = ['git', 'rev-parse', '--short', 'HEAD']
    commit = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    sizes = {'hidden': HIDDEN, 'layers': LAYERS, 'sequence': SEQUENCE, 'batch': BATCH}
    head = HEAD.format(commit=commit, rounds=rounds, steps=STEPS, warm=WARM, **sizes)
    told = f'{statistics.median(ratios):.3f}' if ratios else 'not known'
    end = f'Rows that noise of more than {NOISE:.0%} makes unmeasurable: {len(noisy)}. '
    end += f'The median ratio of the others is {told}.'
    PAGE.write_text(head + '\n'.join([*lines, '', end, '']))
    print(end)
    return 0 if not noisy and statistics.median(ratios) <= MOST else 1


if __name__ == '__main__':
    sys.exit(main())
