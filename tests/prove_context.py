"""Which kind of context parallelism wins, predicted and measured: ``make prove-context``.

Four ranks over gloo, compute emulated, messages held back as on links of 100 MB/s and 1 ms: three cases, in each of
which another kind is the fastest. Prints a table; ends with an error where a step is off by more than the bound, or
where kinds that are predicted further apart than it are measured in another order.
"""

import contextlib
import io
import json
import tempfile
from itertools import combinations
from pathlib import Path

from proof import arguments, commit
from tables import load_table

from simpar.cli import main as simpar

NET, STEPS, BOUND = 'paced:100MB/s,1ms', 8, 0.05
KINDS = ('all_gather', 'all_to_all', 'ring')
# Devices are slow, so that their compute is as long as messages of links that one machine can pace.
FILE = load_table(__file__, 'FILE')
SIZES = ('heads', 'kv_heads', 'head_dim', 'context', 'data', 'sequence', 'speed')
CASES = {
    'few keys, two ranks': dict(zip(SIZES, (16, 2, 64, 2, 2, 4096, 0.003), strict=True)),
    'as many keys as queries': dict(zip(SIZES, (8, 8, 64, 4, 1, 4096, 0.01), strict=True)),
    'a long sequence': dict(zip(SIZES, (16, 4, 32, 4, 1, 32768, 0.01), strict=True)),
}


def measured_file(path, text, steps):
    """Predicted and measured seconds of a step of a schedule."""
    told = io.StringIO()
    path.write_text(text)
    with contextlib.redirect_stdout(told):
        simpar(['measure', str(path), '--compute', 'emulated', '--net', NET, '--steps', str(steps), '--json'])
    step = json.loads(told.getvalue())['step']
    return step['predicted'], step['measured']


def measured(folder, case, kind, steps):
    """The same of a kind of context parallelism."""
    return measured_file(folder / 'schedule.yaml', FILE.format(kind=kind, **case), steps)


def wrong_order(steps):
    """Pairs of kinds that are predicted apart by more than the bound, and measured the other way round."""
    for one, other in combinations(steps, 2):
        (first, second), (began, ended) = zip(steps[one], steps[other], strict=True)
        if abs(first / second - 1) > BOUND and (first < second) != (began < ended):
            yield f'{one} and {other}'


def main():
    options = arguments(__doc__, steps=(STEPS, 'measured steps of each'))
    print(f'commit {commit()}, {options.steps} steps each, {NET}\n', flush=True)
    print('| case | kind | predicted | measured | error |\n| --- | --- | ---: | ---: | ---: |', flush=True)
    found = []
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            steps = {kind: measured(Path(folder), case, kind, options.steps) for kind in KINDS}
        for kind, (predicted, took) in steps.items():
            shown = f'**{kind}**' if predicted == min(steps.values())[0] else kind
            error = predicted / took - 1
            print(
                f'| {name} | {shown} | {predicted * 1e3:.0f} ms | {took * 1e3:.0f} ms | {error * 100:+.1f} % |',
                flush=True,
            )
            found += [f'{name}, {kind}: off by {error:.1%}'] if abs(error) > BOUND else []
        found += [f'{name}: {pair} in another order' for pair in wrong_order(steps)]
    if found:
        raise SystemExit('\n'.join(found))


if __name__ == '__main__':
    main()
