"""Expert parallelism, predicted and measured, and what copies hide of its all-to-alls: ``make prove-experts``.

Four ranks over gloo, compute emulated, messages held back as on links of 100 MB/s and 1 ms: each case with one copy and
with two. Of two runs of each the shorter step counts: others on the machine only ever lengthen one. Prints a table;
ends with an error where a step is off by more than 5 %, or a gain by more than 3 points.
"""

import tempfile
from pathlib import Path

from proof import arguments, commit
from prove_context import BOUND, NET, measured_file

# Devices are slow, so that their compute is as long as messages of links that one machine can pace. With a capacity all
# slots are sent, whatever the router does.
FILE = """simpar: 1
cluster: {{profile: a100-sxm-8, devices: 4, slow: {{0: {speed}, 1: {speed}, 2: {speed}, 3: {speed}}}}}
workload:
  transformer: {{layers: 2, hidden: 512, heads: 8, ffn: 512, vocab: 64, sequence: {sequence}, position: rotary,
                bias: [], experts: {{count: 8, top_k: {top_k}, capacity: 1.0}}}}
  batch: 8
  precision: bf16
plan: {{data: {data}, expert: {expert}, tensor: {tensor}, sequence_parallel: {slices}, copies: {copies}}}
"""
SIZES = ('data', 'expert', 'tensor', 'sequence', 'top_k', 'speed', 'slices')
CASES = {
    'four ranks share the experts': dict(zip(SIZES, (4, 4, 1, 2048, 2, 0.008, 'false'), strict=True)),
    'two share them, twice': dict(zip(SIZES, (4, 2, 1, 2048, 2, 0.008, 'false'), strict=True)),
    'beside tensor ranks': dict(zip(SIZES, (2, 2, 2, 2048, 1, 0.004, 'true'), strict=True)),
}
COPIES = (1, 2)
POINTS = 0.03
"""By how much a gain may be off."""


def main():
    options = arguments(
        __doc__, steps=(6, 'measured steps of each'), runs=(2, 'runs of each, of which the shortest counts')
    )
    print(f'commit {commit()}, {options.steps} steps each, {NET}\n', flush=True)
    print('| case | copies | predicted | measured | error | gain predicted | gain measured |', flush=True)
    print('| --- | ---: | ---: | ---: | ---: | ---: | ---: |', flush=True)
    wrong = []
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'schedule.yaml'
            runs = [(copies, FILE.format(copies=copies, **case)) for _ in range(options.runs) for copies in COPIES]
            found = [(copies, measured_file(path, text, options.steps)) for copies, text in runs]
        steps = [min(pair for one, pair in found if one == copies) for copies in COPIES]
        gains = [1 - last / first for first, last in zip(*steps, strict=True)]
        for copies, (predicted, took) in zip(COPIES, steps, strict=True):
            error = predicted / took - 1
            shown = ' | '.join(f'{gain * 100:.1f} %' if copies > 1 else '' for gain in gains)
            times = f'{predicted * 1e3:.0f} ms | {took * 1e3:.0f} ms | {error * 100:+.1f} %'
            print(f'| {name} | {copies} | {times} | {shown} |', flush=True)
            wrong += [f'{name}, {copies} copies: off by {error:.1%}'] if abs(error) > BOUND else []
        wrong += [f'{name}: gain {gains}'] if abs(gains[0] - gains[1]) > POINTS else []
    if wrong:
        raise SystemExit('\n'.join(wrong))


if __name__ == '__main__':
    main()
