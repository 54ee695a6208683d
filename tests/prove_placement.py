"""Six placements of eight ranks on two hosts (namespaces of this machine): the predicted order beside the measured one.

    python -m tests.prove_placement [--steps 6] [--write docs/proofs/placement_proof.md]

The cards of the hosts carry 200 Mbit/s, their inside is not held back; compute is emulated. Tensor, data and pipeline
ranks are two each, so that the outermost of the three axes is the one that leaves its host. Nothing is fitted: the
profile says the rate of the card and that of the loopback. Needs root, ``ip``, ``tc`` and ``unshare``; three minutes.
"""

import itertools
import json
import os
import shutil
import sys
import time
from pathlib import Path

from simpar.case import load_case
from simpar.files import write_atomically
from simpar.trace_files import load_trace
from tests.hosts import Hosts, lacking
from tests.proof import arguments, commit

ROOT = Path(__file__).parent.parent
CARD = 200
"""Mbit/s."""
PROFILE = f"""\
extends: cpu-gloo
name: two-hosts
devices: 4
links:
- {{name: host, devices: 4, bandwidth: 2 GB/s, latency: 50 us}}
- {{name: card, devices: 0, per: node, bandwidth: {CARD / 8 * 0.95:.2f} MB/s, latency: 200 us}}
"""
SCHEDULE = {
    'simpar': 1,
    'workload': {
        'transformer': {'layers': 4, 'hidden': 256, 'heads': 4, 'vocab': 512, 'sequence': 128},
        'batch': 16,
    },
    'plan': {'tensor': 2, 'data': 2, 'pipeline': 2, 'micro_batches': 4},
}
APART = 0.1
"""By how much predicted steps must differ before their order counts."""


def orders():
    """The six orders of three axes, context beside tensor."""
    for axes in itertools.permutations(('tensor', 'data', 'pipeline')):
        yield '-'.join(('context', *axes))


def measured(hosts, folder, order, steps):
    """Seconds of a step, the median but for the first, under torchrun on both hosts."""
    saved = folder / f'{order}.json'
    words = f'-m executor run {folder}/schedule.yaml --set plan.placement={order} --compute emulated'
    words += f' --steps {steps} --timeout 60s --no-preflight --save {saved}'
    flags = '--nnodes 2 --nproc-per-node 4 --master-addr node0 --master-port 29500'
    settings = {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    start = f'{sys.executable} -m torch.distributed.run {flags} --node-rank'
    started = [hosts.start(host, f'{start} {host} {words}', log=order, **settings) for host in range(2)]
    end = time.monotonic() + 240
    while time.monotonic() < end and any(one.poll() is None for one in started):
        time.sleep(0.2)
    if not saved.exists():
        raise SystemExit(f'{order}: {hosts.said(log=order)[-800:]}')
    times = load_trace(saved).step_times[1:]
    return sorted(times)[len(times) // 2]


def main():
    options = arguments(__doc__, steps=(6, 'of each run'), write=(Path, 'where the page goes'))
    if lacking() or shutil.which('tc') is None:
        print(f'not run: {lacking() or "tc not found; install iproute2"}')
        return 3
    with Hosts(2) as hosts:
        folder = hosts.folder
        (folder / 'two-hosts.yaml').write_text(PROFILE)
        schedule = {**SCHEDULE, 'cluster': {'profile': './two-hosts.yaml', 'nodes': 2, 'stack': 'none'}}
        (folder / 'schedule.yaml').write_text(json.dumps(schedule))
        for host in range(2):
            hosts.shape(host, f'tbf rate {CARD}mbit burst 16kb latency 500ms')
        rows = []
        for order in orders():
            predicted = load_case(folder / 'schedule.yaml', [f'plan.placement={order}']).predict().step
            rows.append((order, predicted, measured(hosts, folder, order, options.steps)))
            print(*rows[-1], file=sys.stderr, flush=True)
    pairs = [(a, b) for a, b in itertools.combinations(rows, 2) if abs(a[1] / b[1] - 1) > APART]
    right = sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in pairs)
    alike = [abs(a[2] / b[2] - 1) for a, b in itertools.combinations(rows, 2) if abs(a[1] / b[1] - 1) < APART / 10]
    held = bool(pairs) and right == len(pairs)
    lines = [
        '# Placement',
        '',
        f'`make prove NAME=placement` wrote this page at commit {commit()}: eight ranks on two hosts in namespaces,',
        f'cards of {CARD} Mbit/s, compute emulated, {options.steps} steps of each.',
        '',
        f'Of {len(pairs)} pairs whose predicted steps differ by more than {APART:.0%}, {right} are in the predicted',
        f'order{"" if held else ": **does not hold**"}. Placements that are predicted alike differ by at most',
        f'{max(alike, default=0):.1%}.',
        '',
        '| plan.placement, nearest first | leaves its host | predicted | measured | |',
        '|---|---|---|---|---|',
        *(
            f'| {order} | {order.rpartition("-")[2]} | {one * 1e3:.0f} ms | {other * 1e3:.0f} ms '
            f'| {one / other - 1:+.1%} |'
            for order, one, other in sorted(rows, key=lambda row: row[1])
        ),
        '',
    ]
    if options.write:
        write_atomically(options.write, '\n'.join(lines))
    print('\n'.join(lines))
    return 0 if held else 4


if __name__ == '__main__':
    os.chdir(ROOT)
    sys.exit(main())
