"""Several plans of one model, predicted and measured: ``make prove NAME=context`` and ``NAME=experts``.

    python tests/prove_ways.py context|experts [--only WORDS]

Ranks over gloo, compute emulated, messages held back as on links of 100 MB/s and 1 ms. Of the runs of each plan the
shortest step counts: others on the machine only ever lengthen one. Prints a table; ends with an error where a step is
off by more than the bound, where a gain over the first plan is by more points than the table has, or where plans that
are predicted further apart than the bound are measured in another order. ``--only`` takes cases with these words.
"""

import tempfile
from itertools import combinations
from pathlib import Path

from proof import answer, arguments, commit, line, table
from tables import load_tree

NET, BOUND = 'paced:100MB/s,1ms', 0.05
KINDS = ('context', 'experts')


def measured(of, case, options):
    """Predicted and measured seconds of a step of each plan of a case, in turns."""
    # Devices are slow, so that their compute is as long as messages of links that one machine can pace.
    slow = ', '.join(f'{rank}: {case["speed"]}' for rank in range(case['devices']))
    found = {way: [] for way in of[case['ways']]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'schedule.yaml'
        for way, plan in [*of[case['ways']].items()] * options.runs:
            path.write_text(of['file'].format(**{**case, 'slow': slow, 'plan': plan}))
            words = ['--compute', 'emulated', '--net', NET, '--steps', options.steps]
            step = answer('measure', path, *words, codes=(0, 4))['step']
            found[way].append((step['predicted'], step['measured']))
    return {way: min(pairs, key=lambda pair: pair[1]) for way, pairs in found.items()}


def wrong_in(steps, points):
    """What does not hold of a case: errors of steps, gains over the first, and pairs in another order."""
    first = next(iter(steps.values()))
    for way, (predicted, took) in steps.items():
        gains = [1 - own / other for own, other in zip((predicted, took), first, strict=True)]
        if abs(predicted / took - 1) > BOUND:
            yield f'{way}: off by {predicted / took - 1:.1%}'
        if points and abs(gains[0] - gains[1]) > points:
            yield f'{way}: gain {gains}'
    for one, other in combinations(steps, 2):
        (mine, second), (began, ended) = zip(steps[one], steps[other], strict=True)
        if abs(mine / second - 1) > BOUND and (mine < second) != (began < ended):
            yield f'{one} and {other} in another order'


def main():
    options = arguments(
        __doc__,
        {'name': 'kind', 'choices': KINDS},
        steps=(8, 'measured steps of each'),
        runs=(2, 'runs of each, of which the shortest counts'),
        only=('', 'words of the names of cases'),
    )
    of, wrong = load_tree(__file__, options.kind), []
    print(f'commit {commit()}, {options.steps} steps each, {NET}\n')
    print(
        *table('case | plan | predicted | measured | error | gain predicted | gain measured', ()), sep='\n', flush=True
    )
    for name, case in of['cases'].items():
        if options.only in name:
            steps = measured(of, case, options)
            first = next(iter(steps.values()))
            for way, pair in steps.items():
                times = (f'{seconds * 1e3:.0f} ms' for seconds in pair)
                shown = (f'{(1 - own / other) * 100:.1f} %' for own, other in zip(pair, first, strict=True))
                error = f'{(pair[0] / pair[1] - 1) * 100:+.1f} %'
                print(line([name, way, *times, error, *shown]), flush=True)
            wrong += [f'{name}, {what}' for what in wrong_in(steps, of.get('points'))]
    if wrong:
        raise SystemExit('\n'.join(wrong))


if __name__ == '__main__':
    main()
