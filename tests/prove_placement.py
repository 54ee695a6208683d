"""Six placements of eight ranks on two hosts (namespaces of this machine): the predicted order beside the measured one.

    python -m tests.prove_placement [--steps 6] [--only unlike] [--write docs/proofs/placement_proof.md]

The cards of the hosts carry 200 Mbit/s, their inside is not held back; compute is emulated. Tensor, data and pipeline
ranks are two each, so that the outermost of the three axes is the one that leaves its host. Nothing is fitted: the
profile says the rate of the card and that of the loopback. Needs root, ``ip``, ``tc`` and ``unshare``; three minutes.

Behind it, stages on devices of two speeds: layers in equal counts, and shared out by speed (`stages: balanced`). Four
ranks over a paced link, compute emulated, each rank at the speed of its device.
"""

import itertools
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from executor.ranks.pool import Pool
from executor.state import Request
from simpar.case import load_case, on_net
from simpar.files import write_atomically
from simpar.hardware.net import parse_net
from simpar.trace_files import load_trace
from tests.hosts import Hosts, lacking
from tests.proof import arguments, commit, steady_steps

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


UNLIKE = {
    # Speeds of the devices; keys of the plan.
    'two stages, the second half as fast': ((1, 1, 0.5, 0.5), {'pipeline': 2, 'data': 2}),
    'two stages, the first 3/4 as fast': ((0.75, 0.75, 1, 1), {'pipeline': 2, 'data': 2}),
    'four stages, the last two half as fast': ((1, 1, 0.5, 0.5), {'pipeline': 4}),
}
NET, WITHIN = 'paced:100MB/s,1ms', 0.03
SLOW = 0.03
"""Of an A100, so that its compute is as long as messages of links that one machine can pace."""


def unlike(steps):
    """For each row and each way to share layers out: stages, predicted and measured seconds of a step."""
    net, model = parse_net(NET), {'layers': 12, 'hidden': 512, 'heads': 8, 'vocab': 512, 'sequence': 512}
    with Pool(4, net=net, timeout=60.0, pinned=True) as pool:
        for name, (speeds, keys) in UNLIKE.items():
            for stages in ([], 'balanced'):
                devices = {rank: SLOW * speed for rank, speed in enumerate(speeds)}
                document = {
                    'simpar': 1,
                    'cluster': {'profile': 'a100-sxm-8', 'devices': 4, 'slow': devices, 'stack': 'none'},
                    'workload': {'transformer': model, 'batch': 16, 'precision': 'bf16'},
                    'plan': {**keys, 'micro_batches': 8, 'stages': stages},
                }
                case = on_net(load_case(document), net)
                found, counts = case.predict(), case.plan.stages or (12 // keys['pipeline'],) * keys['pipeline']
                request = Request(compute='emulated', costs=found.costs, steps=steps)
                yield name, counts, found.step, statistics.median(steady_steps(pool.perform(case.program, request)))


def unlike_lines(rows):
    """Their part of the page, and whether all are as near as is asked for."""
    near = all(abs(one / other - 1) <= WITHIN for _, _, one, other in rows)
    verdict = 'holds' if near else '**does not hold**'
    lines = [
        '## Stages on unlike devices',
        '',
        f'Four ranks over {NET}, each at the speed of its device, compute emulated: layers in equal counts, then as',
        f'`stages: balanced` shares them out by speed. Steps within {WITHIN:.0%}: {verdict}.',
        '',
        '| devices | layers of stages | predicted | measured | |',
        '|---|---|---|---|---|',
    ]
    for name, counts, one, other in rows:
        cells = f'{one * 1e3:.0f} ms | {other * 1e3:.0f} ms | {one / other - 1:+.1%}'
        lines.append(f'| {name} | {", ".join(map(str, counts))} | {cells} |')
    return [*lines, ''], near


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


def placements(steps):
    """Order, predicted and measured seconds of the six placements."""
    with Hosts(2) as hosts:
        folder = hosts.folder
        (folder / 'two-hosts.yaml').write_text(PROFILE)
        schedule = {**SCHEDULE, 'cluster': {'profile': './two-hosts.yaml', 'nodes': 2, 'stack': 'none'}}
        (folder / 'schedule.yaml').write_text(json.dumps(schedule))
        for host in range(2):
            hosts.shape(host, f'tbf rate {CARD}mbit burst 16kb latency 500ms')
        for order in orders():
            predicted = load_case(folder / 'schedule.yaml', [f'plan.placement={order}']).predict().step
            yield order, predicted, measured(hosts, folder, order, steps)


def placement_lines(rows, steps):
    """Their part of the page, and whether the order is the predicted one."""
    pairs = [(a, b) for a, b in itertools.combinations(rows, 2) if abs(a[1] / b[1] - 1) > APART]
    right = sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in pairs)
    alike = [abs(a[2] / b[2] - 1) for a, b in itertools.combinations(rows, 2) if abs(a[1] / b[1] - 1) < APART / 10]
    held = bool(pairs) and right == len(pairs)
    lines = [
        '# Placement',
        '',
        f'`make prove NAME=placement` wrote this page at commit {commit()}: eight ranks on two hosts in namespaces,',
        f'cards of {CARD} Mbit/s, compute emulated, {steps} steps of each.',
        '',
        f'Of {len(pairs)} pairs whose predicted steps differ by more than {APART:.0%}, {right} are in the predicted',
        f'order{"" if held else ": **does not hold**"}. Placements that are predicted alike differ by at most',
        f'{max(alike, default=0):.1%}.',
        '',
        '| plan.placement, nearest first | leaves its host | predicted | measured | |',
        '|---|---|---|---|---|',
    ]
    for order, one, other in sorted(rows, key=lambda row: row[1]):
        cells = f'{one * 1e3:.0f} ms | {other * 1e3:.0f} ms | {one / other - 1:+.1%}'
        lines.append(f'| {order} | {order.rpartition("-")[2]} | {cells} |')
    return [*lines, ''], held


def report(rows):
    """The rows, each printed as it comes."""
    found = []
    for row in rows:
        found.append(row)
        print(*row, file=sys.stderr, flush=True)
    return found


def main():
    options = arguments(
        __doc__, steps=(6, 'of each run'), only={'choices': ['unlike']}, write=(Path, 'where the whole page goes')
    )
    if not options.only and (lacking() or shutil.which('tc') is None):
        print(f'not run: {lacking() or "tc not found; install iproute2"}')
        return 3
    lines, held = ([], True) if options.only else placement_lines(report(placements(options.steps)), options.steps)
    others, near = unlike_lines(report(unlike(options.steps)))
    if options.write and not options.only:
        write_atomically(options.write, '\n'.join([*lines, *others]))
    print('\n'.join([*lines, *others]))
    return 0 if held and near else 4


if __name__ == '__main__':
    os.chdir(ROOT)
    sys.exit(main())
