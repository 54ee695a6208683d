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
import sys
import tempfile
from pathlib import Path

import yaml

from simpar.case import load_case
from simpar.trace_files import load_trace
from tests.hosts import Hosts, lacking
from tests.proof import ROOT, answer, arguments, end, page_head, table, until

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
    model = {'layers': 12, 'hidden': 512, 'heads': 8, 'vocab': 512, 'sequence': 512}
    words = ['--compute', 'emulated', '--net', NET, '--baseline', 'none', '--steps', steps]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'schedule.yaml'
        for (name, (speeds, keys)), stages in itertools.product(UNLIKE.items(), ([], 'balanced')):
            devices = {rank: SLOW * speed for rank, speed in enumerate(speeds)}
            document = {
                'simpar': 1,
                'cluster': {'profile': 'a100-sxm-8', 'devices': 4, 'slow': devices, 'stack': 'none'},
                'workload': {'transformer': model, 'batch': 16, 'precision': 'bf16'},
                'plan': {**keys, 'micro_batches': 8, 'stages': stages},
            }
            path.write_text(yaml.safe_dump(document))
            counts = load_case(path).plan.stages or (12 // keys['pipeline'],) * keys['pipeline']
            step = answer('measure', path, *words, codes=(0, 4))['step']
            yield name, counts, step['predicted'], step['measured']


def unlike_lines(rows):
    """Their part of the page, and whether all are as near as is asked for."""
    near = all(abs(one / other - 1) <= WITHIN for _, _, one, other in rows)
    verdict = 'holds' if near else '**does not hold**'
    shown = ((name, ', '.join(map(str, counts)), *seconds(*both)) for name, counts, *both in rows)
    lines = [*table('devices | layers of stages | predicted | measured |', shown), '']
    return page_head('unlike', net=NET, within=WITHIN, verdict=verdict) + '\n'.join(lines), near


def seconds(one, other):
    """Predicted and measured seconds, and how far they are apart."""
    return f'{one * 1e3:.0f} ms', f'{other * 1e3:.0f} ms', f'{one / other - 1:+.1%}'


def measured(hosts, folder, order, steps):
    """Seconds of a step, the median but for the first, under torchrun on both hosts."""
    saved = folder / f'{order}.json'
    words = f'-m executor run {folder}/schedule.yaml --set plan.placement={order} --compute emulated'
    started = hosts.torchrun(f'{words} --steps {steps} --timeout 60s --no-preflight --save {saved}', 4, log=order)
    until(240, lambda: all(one.poll() is not None for one in started))
    if not saved.exists():
        raise SystemExit(f'{order}: {hosts.said(log=order)[-800:]}')
    times = load_trace(saved).step_times[1:]
    return sorted(times)[len(times) // 2]


def placements(steps):
    """Order, predicted and measured seconds of the six placements: orders of three axes, context beside tensor."""
    with Hosts(2) as hosts:
        folder = hosts.folder
        (folder / 'two-hosts.yaml').write_text(PROFILE)
        schedule = {**SCHEDULE, 'cluster': {'profile': './two-hosts.yaml', 'nodes': 2, 'stack': 'none'}}
        (folder / 'schedule.yaml').write_text(json.dumps(schedule))
        hosts.shape(CARD)
        for axes in itertools.permutations(('tensor', 'data', 'pipeline')):
            order = '-'.join(('context', *axes))
            predicted = load_case(folder / 'schedule.yaml', [f'plan.placement={order}']).predict().step
            yield order, predicted, measured(hosts, folder, order, steps)


def placement_lines(rows, steps):
    """Their part of the page, and whether the order is the predicted one."""
    pairs = [(a, b) for a, b in itertools.combinations(rows, 2) if abs(a[1] / b[1] - 1) > APART]
    right = sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in pairs)
    alike = [abs(a[2] / b[2] - 1) for a, b in itertools.combinations(rows, 2) if abs(a[1] / b[1] - 1) < APART / 10]
    held = bool(pairs) and right == len(pairs)
    head = page_head(
        'placement', card=CARD, steps=steps, pairs=len(pairs), apart=APART, right=right,
        verdict='' if held else ': **does not hold**', alike=max(alike, default=0),
    )  # fmt: skip
    shown = ((one[0], one[0].rpartition('-')[2], *seconds(*one[1:])) for one in sorted(rows, key=lambda row: row[1]))
    heads = 'plan.placement, nearest first | leaves its host | predicted | measured |'
    return head + '\n'.join([*table(heads, shown), '', '']), held


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
    if not options.only and lacking('tc'):
        print(f'not run: {lacking("tc")}')
        return 3
    text, held = ('', True) if options.only else placement_lines(report(placements(options.steps)), options.steps)
    others, near = unlike_lines(report(unlike(options.steps)))
    return end(text + others, None if options.only else options.write, held and near)


if __name__ == '__main__':
    os.chdir(ROOT)
    sys.exit(main())
