"""Expert parallelism, predicted and measured, and what hides its all-to-alls: ``make prove-experts``.

Ranks over gloo, compute emulated, messages held back as on links of 100 MB/s and 1 ms: each case in turns, with two
copies, and with a forward beside a backward. Of two runs of each the shorter step counts: others on the machine only
ever lengthen one. Prints a table; ends with an error where a step is off by more than 5 %, or a gain by more than 3
points. ``--only`` takes cases whose names have these words.
"""

import tempfile
from pathlib import Path

from proof import arguments, commit
from prove_context import BOUND, NET, measured_file
from tables import load_table

# Devices are slow, so that their compute is as long as messages of links that one machine can pace. With a capacity all
# slots are sent, whatever the router does.
FILE = load_table(__file__, 'FILE')
SIZES = ('data', 'expert', 'tensor', 'sequence', 'top_k', 'speed', 'slices', 'batch', 'layers', 'pipeline')
COPIES = {'in turns': '', 'two copies': 'copies: 2'}
FOUR = 'micro_batches: 4'
PAIRS = {
    'in turns': FOUR,
    'two copies': f'{FOUR}, copies: 2',
    'pairs': f'{FOUR}, pairs: overlap',
    'pairs, delayed': f'{FOUR}, pairs: overlap, weight_gradients: delayed',
    'pairs, memory': f'{FOUR}, pairs: memory',
}
STAGES = 'pipeline: 2, order: interleaved-1f1b, chunks: 2, micro_batches: 4'
CASES = {
    'four ranks share the experts': ((4, 4, 1, 2048, 2, 0.008, 'false', 8, 2, 1), COPIES),
    'two share them, twice': ((4, 2, 1, 2048, 2, 0.008, 'false', 8, 2, 1), COPIES),
    'beside tensor ranks': ((2, 2, 2, 2048, 1, 0.004, 'true', 8, 2, 1), COPIES),
    'pairs, two ranks': ((2, 2, 1, 1024, 2, 0.004, 'false', 16, 2, 1), PAIRS),
    'pairs, virtual stages': (
        (2, 2, 1, 1024, 2, 0.004, 'false', 16, 4, 2),
        {'in turns': STAGES, 'pairs': f'{STAGES}, pairs: overlap'},
    ),
    'pairs, nothing to exchange': (
        (1, 1, 1, 512, 1, 0.002, 'false', 8, 2, 2),
        {'in turns': f'pipeline: 2, {FOUR}', 'pairs': f'pipeline: 2, {FOUR}, pairs: overlap'},
    ),
}
POINTS = 0.03
"""By how much a gain may be off."""


def file_of(sizes, plan):
    """The schedule of a case."""
    said = dict(zip(SIZES, sizes, strict=True))
    devices = said['data'] * said['tensor'] * said['pipeline']
    slow = ', '.join(f'{rank}: {said["speed"]}' for rank in range(devices))
    return FILE.format(devices=devices, slow=slow, plan=plan, **said)


def main():
    options = arguments(
        __doc__,
        steps=(6, 'measured steps of each'),
        runs=(2, 'runs of each, of which the shortest counts'),
        only=('', 'words of the names of cases'),
    )
    print(f'commit {commit()}, {options.steps} steps each, {NET}\n', flush=True)
    print('| case | plan | predicted | measured | error | gain predicted | gain measured |', flush=True)
    print('| --- | --- | ---: | ---: | ---: | ---: | ---: |', flush=True)
    wrong = []
    for name, (sizes, ways) in CASES.items():
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'schedule.yaml'
            runs = [(way, file_of(sizes, plan)) for _ in range(options.runs) for way, plan in ways.items()]
            found = [(way, measured_file(path, text, options.steps)) for way, text in runs]
        steps = {way: min((pair for one, pair in found if one == way), key=lambda pair: pair[1]) for way in ways}
        first = steps['in turns']
        for way, (predicted, took) in steps.items():
            error = predicted / took - 1
            gains = [1 - own / other for own, other in zip((predicted, took), first, strict=True)]
            shown = ' | '.join(f'{gain * 100:.1f} %' if way != 'in turns' else '' for gain in gains)
            times = f'{predicted * 1e3:.0f} ms | {took * 1e3:.0f} ms | {error * 100:+.1f} %'
            print(f'| {name} | {way} | {times} | {shown} |', flush=True)
            wrong += [f'{name}, {way}: off by {error:.1%}'] if abs(error) > BOUND else []
            wrong += [f'{name}, {way}: gain {gains}'] if abs(gains[0] - gains[1]) > POINTS else []
    if wrong:
        raise SystemExit('\n'.join(wrong))


if __name__ == '__main__':
    main()
