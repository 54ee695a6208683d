"""Every pair of features, trained: a covering array of plans, each by the user's path, against torch autograd in fp64.

``python -m tests.pairs`` trains all plans and writes docs/pairs.md; ``--only N,N`` trains some and tells why not.
A plan is *trained* where every loss, gradient and parameter of two steps is the unsharded model's to 1e-10; *refused*
where simpar says why not; *failed* otherwise. A refusal is for *mathematics* where ``MATHEMATICS`` has its message;
every other one is *not built*.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from pair_plans import FUSIONS, OPTIMIZERS, ORDERS, PATTERNS, SHARDING, size_of, tree_of

from simpar.case import load_case
from simpar.errors import Infeasible, ScheduleError

PAGE = HERE.parent / 'docs' / 'pairs.md'
BEFORE = HERE / 'recorded' / 'pairs_before.json'
SEED, PLANS = 10, 480
CANDIDATES = 10
STEPS = 2
SMALL = 16
"""Stages × ranks of one × slices of the batch of plans that the suite trains."""
LONGEST = 300
"""Letters of a reason on the page."""

FACTORS = {
    'model': tuple(PATTERNS),
    'data': (1, 2, 3),
    'tensor': (1, 2, 3, 4),
    'sequence_parallel': (False, True),
    'strategies': ('none', 'one', 'all', 'layouts'),
    'search': ('none', 'sharding-propagation', 'double-recursive', 'exact'),
    'copies': (1, 2, 3),
    'order': tuple(ORDERS),
    'sharding': tuple(SHARDING),
    'form': ('none', 'dim', 'padded', 'flat'),
    'fusion': tuple(FUSIONS),
    'recompute': ('none', 'full', 'selective', 'patterns'),
    'tiles': (1, 2),
    'reduce': ('early', 'late'),
    'optimizer': tuple(OPTIMIZERS),
}
SELECTIVE = 'it is the scores of attention that are made again, and there are none'
MEANINGLESS = {
    (('tensor', 1), ('sequence_parallel', True)): 'one tensor rank has no other to share a sequence with',
    (('strategies', 'none'), ('search', 'sharding-propagation')): 'there is no strategy to propagate',
    (('model', 'chain'), ('recompute', 'selective')): SELECTIVE,
    (('model', 'convolution'), ('recompute', 'selective')): SELECTIVE,
    (('model', 'embedding'), ('recompute', 'selective')): SELECTIVE,
}
"""Pairs that ask for nothing: each is in one plan, and in no other, so that they take no other pair's place."""
REFUSALS = {
    'sequence_parallel': r'^plan\.sequence_parallel: ',
    'search': r'^plan\.search: ',
    'recompute': r'^plan\.recompute: ',
}
"""How a refusal of such a pair begins, by its second feature."""
IMPOSSIBLE = (
    *((('sharding', 'off'), ('form', form)) for form in FACTORS['form'][1:]),
    *((('sharding', sharding), ('form', 'none')) for sharding in FACTORS['sharding'][1:]),
)
"""Pairs that no schedule can write: a form is that of what is sharded."""
MATHEMATICS = (r'do(es)? not divide',)
"""Messages of refusals that no program could avoid, beside those of pairs that ask for nothing."""


# The covering array


@cache
def plans(count=PLANS):
    """Rows of levels by factor: every pair of levels is in one, and most triples; fewer are the first of them."""
    return tuple(_Array(random.Random(SEED)).rows(count))


class _Array:
    """Takes of some random rows the one that brings most pairs, and then most triples, that no row had.

    Levels are numbers here, counted through all factors; a row has one of each factor.
    """

    def __init__(self, draw):
        self.draw = draw
        self.levels = [(name, level) for name, levels in FACTORS.items() for level in levels]
        number = {level: place for place, level in enumerate(self.levels)}
        self.choices = [[number[name, level] for level in levels] for name, levels in FACTORS.items()]
        self.alone = [tuple(sorted(number[level] for level in pair)) for pair in MEANINGLESS]
        self.never = [tuple(sorted(number[level] for level in pair)) for pair in IMPOSSIBLE]
        pairs = (pair for one, other in combinations(self.choices, 2) for pair in product(one, other))
        # A dict, as its order is the same in every run.
        self.missing = dict.fromkeys(pair for pair in pairs if pair not in {*self.alone, *self.never})
        self.triples = set()

    def rows(self, count):
        found = [self._row(pair) for pair in self.alone]
        for row in found:
            self._seen(row)
        while len(found) < count:
            start = self.draw.choice(list(self.missing)) if self.missing else ()
            found.append(max((self._row(start) for _ in range(CANDIDATES)), key=self._brings))
            self._seen(found[-1])
        return [dict(self.levels[level] for level in row) for row in found]

    def _row(self, start):
        """A random row with these levels and no other pair that asks for nothing or cannot be."""
        while True:
            row = [next((one for one in start if one in able), None) or self.draw.choice(able) for able in self.choices]
            held = set(row)
            if not any(held.issuperset(pair) for pair in (*self.never, *self.alone) if pair != start):
                return row

    def _brings(self, row):
        pairs = sum(pair in self.missing for pair in combinations(row, 2))
        return pairs, sum(triple not in self.triples for triple in combinations(row, 3))

    def _seen(self, row):
        for pair in combinations(row, 2):
            self.missing.pop(pair, None)
        self.triples.update(combinations(row, 3))


def covered(rows, count):
    """Share of the combinations of so many levels of different factors that some row has, and how many can be."""
    found = {one for row in rows for one in combinations(row.items(), count)}
    banned = [set(pair) for pair in IMPOSSIBLE] + [set(pair) for pair in MEANINGLESS] * (count > 2)
    whole = 0
    for names in combinations(FACTORS, count):
        able = product(*(product([name], FACTORS[name]) for name in names))
        whole += sum(not any(pair.issubset(one) for pair in banned) for one in able)
    return sum(not any(pair.issubset(one) for pair in banned) for one in found) / whole, whole


# Training


class Outcome(NamedTuple):
    """What became of a plan: ``trained`` (``error``, the worst), ``refused`` or ``failed`` (``message``).

    ``excuses`` are patterns of further reasons that are mathematics here.
    """

    kind: str
    error: float = 0.0
    message: str = ''
    excuses: tuple[str, ...] = ()

    @property
    def reasons(self):
        """Every reason once, without what is of one plan alone; of a failure the first line."""
        lines = self.message.split('\n') if self.kind == 'refused' else self.message.split('\n')[:1]
        return tuple(dict.fromkeys(_general(line) for line in lines if not re.search(r'and \d+ more$', line)))

    @property
    def mathematics(self):
        """Whether it is refused, and all for reasons that no program could avoid."""
        return self.kind == 'refused' and all(map(self.excused, self.reasons))

    def excused(self, reason):
        """Whether no program could avoid a reason."""
        return any(re.search(pattern, reason) for pattern in (*MATHEMATICS, *self.excuses))

    @property
    def told(self):
        """How the page counts it."""
        return self.kind if self.kind != 'refused' else 'mathematics' if self.mathematics else 'not built'


def _general(line):
    """A line's kind: without places, numbers and names of layers."""
    text = re.sub(r'^\S*schedule\.yaml:\d+: ', '', line)
    text = re.sub(r'(layers|strategies|layouts)\.[\w.]+: ', r'\1.…: ', text)
    text = re.sub(r'reads \w+ of stage', 'reads … of stage', re.sub(r'(on from stage \d+ is) \w+', r'\1 …', text))
    text = re.sub(r'^\w+(\.\w+)+ ', '… ', text)
    return re.sub(r'\d+(\.\d+)?', 'N', text)


def outcome(row, number):
    """Train a row's schedule as `simpar check --numerics` does."""
    excuses = tuple(REFUSALS[pair[1][0]] for pair in MEANINGLESS if set(pair) <= set(row.items()))
    return outcome_of(tree_of(row, number))._replace(excuses=excuses)


def outcome_of(tree):
    """The same of a tree."""
    from executor.numerics import check

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'schedule.yaml'
        path.write_text(json.dumps(tree), encoding='utf-8')
        try:
            case = load_case(path)
            report = check(case.program, case.schedule.workload, case.schedule.plan, STEPS)
        except (ScheduleError, Infeasible) as error:
            return Outcome('refused', message=str(error).replace(f'{folder}/', ''))
        except Exception as error:  # one that breaks must not hide the others
            return Outcome('failed', message=f'{type(error).__name__}: {error}')
    return Outcome('trained', error=float(report.worst.error))


def small(count):
    """Numbers of so many plans that train fast: the first with few ranks, stages and slices of the batch."""
    rows = enumerate(plans())
    return [number for number, row in rows if size_of(row) <= SMALL][:count]


def trained(numbers=None, tell=lambda number, row, found: None):
    """Outcomes by number of the plan."""
    found = {}
    for number, row in enumerate(plans()):
        if numbers is None or number in numbers:
            found[number] = outcome(row, number)
            tell(number, row, found[number])
    return found


KINDS = {'trained': 'trained', 'mathematics': 'refused for mathematics', 'not built': 'refused, not built',
         'failed': 'failed'}  # fmt: skip


def counts(outcomes):
    """How many plans came out how, and how many pairs of levels some plan that is trained holds; as one object."""
    rows = plans()
    done = [row for number, row in enumerate(rows) if number in outcomes and outcomes[number].kind == 'trained']
    told = Counter(one.told for one in outcomes.values())
    return {
        'plans': len(outcomes),
        **{kind: told[kind] for kind in KINDS},
        'pairs': len({pair for row in rows for pair in combinations(row.items(), 2)}),
        'pairs trained': len({pair for row in done for pair in combinations(row.items(), 2)}),
        'worst': max((one.error for one in outcomes.values()), default=0.0),
    }


# The page


def page(outcomes, commit, before):
    """The text of docs/pairs.md."""
    rows = plans()
    now, (triples, whole) = counts(outcomes), covered(rows, 3)
    lines = [
        '# Every pair of features',
        '',
        f'{len(rows)} small plans hold every pair of the levels below, and {triples:.0%} of the {whole:,} triples.',
        'Each goes the way of a user: a schedule file, its checks, what is open resolved, lowered, and trained in',
        f'process for {STEPS} steps in fp64.',
        '',
        '- *Trained*: every loss, gradient and parameter is that of the unsharded model in torch, to 1e-10 in norm.',
        '- *Refused for mathematics*: lengths do not divide, or what is asked for is not defined.',
        '- *Refused, not built*: for any other reason.',
        '- *Failed*: trained otherwise than the unsharded model, or broken.',
        '',
        f'`make prove-pairs` trains them and writes this page. Seed {SEED}; now is commit `{commit}`.',
        '',
        f'| plans | before, `{before["commit"]}` | now |',
        '|---|---|---|',
        f'| all | {before["plans"]} | {now["plans"]} |',
        *(f'| {name} | {_share(before, kind)} | {_share(now, kind)} |' for kind, name in KINDS.items()),
        f'| pairs of levels that a trained plan holds | {_of_pairs(before)} | {_of_pairs(now)} |',
        f'| worst relative error of a trained plan | {before["worst"]:.1e} | {now["worst"]:.1e} |',
        '',
        '## Levels',
        '',
        '| feature | levels |',
        '|---|---|',
        *(f'| {name} | {", ".join(map(_level, levels))} |' for name, levels in FACTORS.items()),
        '',
        'A form is that of what is sharded: none is for sharding off alone. These pairs ask for nothing, and a refusal',
        'for that is mathematics. Each is in one plan, and in no other:',
        '',
        *(f'- {_name(one)} with {_name(other)}: {why}' for (one, other), why in MEANINGLESS.items()),
        '',
        '## Refusals and failures',
        '',
        *_reasons(outcomes),
    ]
    return '\n'.join(lines) + '\n'


def _share(of, kind):
    return f'{of[kind]} ({of[kind] / of["plans"]:.1%})'


def _of_pairs(of):
    return f'{of["pairs trained"]} of {of["pairs"]}'


def _level(level):
    return ('on' if level else 'off') if isinstance(level, bool) else str(level)


def _name(pair):
    return f'{pair[0]} {_level(pair[1])}'


def _reasons(outcomes):
    """One table; a plan with several reasons counts for each."""
    found = {}
    for number, one in outcomes.items():
        for reason in one.reasons if one.kind != 'trained' else ():
            kind = 'failed' if one.kind == 'failed' else 'mathematics' if one.excused(reason) else 'not built'
            found.setdefault((kind, reason[:LONGEST]), []).append(number)
    if not found:
        return ['None.']
    ordered = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    return [
        'A plan with several reasons counts for each. N stands for a number, … for a name. The last column has one',
        'plan by its number, for `python -m tests.pairs --only`.',
        '',
        '| plans | kind | reason | plan |',
        '|---|---|---|---|',
        *(
            f'| {len(numbers)} | {kind} | {reason.replace("|", "/")} | {numbers[0]} |'
            for (kind, reason), numbers in ordered
        ),
    ]


def _commit():
    """The last that changed what is trained."""
    command = ['git', 'log', '-1', '--format=%h', '--abbrev=9', '--', 'simpar', 'executor']
    found = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    return found.stdout.strip() or 'unknown'


def main(arguments=None):
    """The command line."""
    parser = argparse.ArgumentParser(prog='python -m tests.pairs', description='Train every pair of features.')
    parser.add_argument('--only', default='', metavar='N,N', help='plans to train, by number; no page is written')
    parser.add_argument('--tree', action='store_true', help='print the schedules of these plans')
    parser.add_argument('--before', action='store_true', help='keep the counts as those of before')
    options = parser.parse_args(arguments)
    numbers = {int(number) for number in options.only.split(',')} if options.only else None
    began = time.process_time()

    def tell(number, row, found):
        if numbers is not None or found.kind == 'failed':
            print(number, found.kind, f'{found.error:.1e}', found.message, row, sep='; ')
        if options.tree:
            print(json.dumps(tree_of(row, number)))

    found = trained(numbers, tell)
    now = counts(found)
    print(', '.join(f'{name} {value}' for name, value in now.items()) + f'; {time.process_time() - began:.0f} s CPU')
    if numbers is None:
        if options.before:
            BEFORE.write_text(json.dumps({'commit': _commit(), **now}, indent=1) + '\n', encoding='utf-8')
        before = json.loads(BEFORE.read_text(encoding='utf-8'))
        PAGE.write_text(page(found, _commit(), before), encoding='utf-8')
    return 1 if now['failed'] else 0


if __name__ == '__main__':
    sys.exit(main())
