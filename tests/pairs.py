"""Every pair of features, trained: covering arrays of plans, each by the user's path, against torch autograd in fp64.

``python -m tests.pairs`` trains all plans of a page and writes it: docs/proofs/pairs.md, or with ``--page`` another of
``PAGES``; ``--only models-12`` trains some.
A plan is *trained* where every loss, gradient and parameter of two steps is the unsharded model's to 1e-10; *refused*
where simpar says why not; *failed* otherwise. A refusal is for *mathematics* where ``MATHEMATICS`` has its message;
every other one is *not built*.
"""

import json
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from functools import cache
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import pair_chunks
import pair_models
import pair_overlaps
import pair_plans
from covering import Features, covered, rows_of

from simpar.case import load_case
from simpar.errors import Infeasible, ScheduleError
from tests.proof import Journal, arguments, commit, line, page_head, table

FOLDER = HERE.parent / 'docs' / 'proofs'
BEFORE = HERE / 'recorded' / 'pairs_before.json'
STEPS = 2
SMALL = {'operators': 16, 'models': 16, 'chunks': 32, 'overlaps': 16}
"""Stages × ranks of one × slices of the batch of plans that the suite trains, by array."""
LONGEST = 300
"""Letters of a reason on the page."""

ARRAYS = {
    'operators': Features(
        pair_plans.FACTORS, pair_plans.tree_of, pair_plans.size_of, 480, 10, pair_plans.ALONE, pair_plans.EXCUSES,
        pair_plans.UNBUILT, pair_plans.NEVER,
    ),
    'models': Features(
        pair_models.FACTORS, pair_models.tree_of, pair_models.size_of, 300, 20, pair_models.ALONE, pair_models.EXCUSES,
        pair_models.UNBUILT, pair_models.NEVER,
    ),
    'chunks': Features(
        pair_chunks.FACTORS, pair_chunks.tree_of, pair_chunks.size_of, 120, 30, pair_chunks.ALONE, pair_chunks.EXCUSES,
        pair_chunks.UNBUILT, pair_chunks.NEVER,
    ),
    'overlaps': Features(
        pair_overlaps.FACTORS, pair_overlaps.tree_of, pair_overlaps.size_of, 545, 40, unbuilt=pair_overlaps.UNBUILT,
        never=pair_overlaps.NEVER, light=True,
    ),
}  # fmt: skip
"""Strategies, searches and networks; models that people train, and their axes; sequences in chunks; overlaps."""
PAGES = {'pairs': ('operators', 'models', 'chunks'), 'pairs_of_overlaps': ('overlaps',)}
"""Arrays by the page in docs/proofs that tells of them."""
MATHEMATICS = (r'do(es)? not divide',)
"""Messages of refusals that no program could avoid, beside those of pairs that ask for nothing."""


# The covering arrays


@cache
def plans(name):
    """The rows of an array."""
    return rows_of(ARRAYS[name])


class Number(NamedTuple):
    """A plan: of which array, which row; ``models-12`` on the command line."""

    array: str
    row: int

    def __str__(self):
        return '-'.join(map(str, self))

    @property
    def levels(self):
        """Its levels by factor."""
        return plans(self.array)[self.row]

    @property
    def tree(self):
        """The tree of its schedule file."""
        return ARRAYS[self.array].tree(self.levels, self.row)


def numbers_of(name):
    """All plans of an array."""
    return [Number(name, row) for row in range(len(plans(name)))]


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


def outcome(number):
    """Train a plan as `simpar check --numerics` does."""
    features, held = ARRAYS[number.array], set(number.levels.items())
    excuses = tuple(features.excuses[pair[1][0]] for pair in features.alone if set(pair) <= held)
    return outcome_of(number.tree)._replace(excuses=excuses)


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


def small(name, count):
    """So many plans of an array that train fast: the first with few ranks, stages and slices of the batch."""
    features = ARRAYS[name]
    return [number for number in numbers_of(name) if features.size(number.levels) <= SMALL[name]][:count]


def trained(numbers, tell=lambda number, found: None, jobs=1, seconds=float('inf')):
    """Outcomes by number of the plan, of so many processes; of the first plans where the seconds are over before."""
    found, until = {}, time.monotonic() + seconds
    with get_context('spawn').Pool(jobs) if jobs > 1 else nullcontext() as pool:
        told = pool.imap(outcome, numbers, 4) if pool else map(outcome, numbers)
        for number, one in zip(numbers, told, strict=True):
            found[number] = one
            tell(number, one)
            if time.monotonic() > until:
                break
    return found


def kept(journal):
    """Outcomes that a journal has, by number; none where there is no journal."""
    return {Number(*row['plan']): Outcome(*row['outcome']) for row in (journal.rows if journal else ())}


KINDS = {'trained': 'trained', 'mathematics': 'refused for mathematics', 'not built': 'refused, not built',
         'failed': 'failed'}  # fmt: skip


def counts(outcomes):
    """How many plans came out how, and how many pairs of levels some plan that is trained holds; as one object."""
    told = Counter(one.told for one in outcomes.values())
    pairs = {number: list(combinations(number.levels.items(), 2)) for number in outcomes}
    done = [number for number, one in outcomes.items() if one.kind == 'trained']
    return {
        'plans': len(outcomes),
        **{kind: told[kind] for kind in KINDS},
        'pairs': len({pair for of in pairs.values() for pair in of}),
        'pairs trained': len({pair for number in done for pair in pairs[number]}),
        'worst': max((one.error for one in outcomes.values()), default=0.0),
    }


# The page


TITLES = {
    'operators': 'Operators, strategies and searches',
    'models': 'Models, experts and shared sequences',
    'chunks': 'Sequences in chunks',
    'overlaps': 'Overlaps, offload, further tokens and stages',
}


def page(name, outcomes, commit, before):
    """The text of a page of ``PAGES``."""
    arrays = {name: {number: one for number, one in outcomes.items() if number.array == name} for name in PAGES[name]}
    found = {name: covered(plans(name), ARRAYS[name], 3) for name in arrays}
    told = ', '.join(f'{share:.0%} of {whole:,}' for share, whole in found.values())
    now = {name: counts(of) for name, of in arrays.items()}
    new = sum(pair_overlaps.has_overlap(number.levels) for number in arrays.get('overlaps', ()))
    lines = [
        page_head(
            name,
            plans=len(outcomes),
            rows=sum(ARRAYS[of].rows for of in arrays),
            new=new,
            triples=told,
            steps=STEPS,
            commit=commit,
            before=before,
        ),
        *table(' | '.join(('plans', *arrays)), ()),
        line(['seed', *(ARRAYS[name].seed for name in arrays)]),
        line(['all', *(one['plans'] for one in now.values())]),
        *(line([name, *(f'{one[kind]} ({one[kind] / one["plans"]:.1%})' for one in now.values())])
          for kind, name in KINDS.items()),
        line(['pairs of levels that a trained plan holds',
              *(f'{one["pairs trained"]} of {one["pairs"]}' for one in now.values())]),
        line(['worst relative error of a trained plan', *(f'{one["worst"]:.1e}' for one in now.values())]),
        *(text for name, of in arrays.items() for text in _section(name, of)),
    ]  # fmt: skip
    return '\n'.join(lines) + '\n'


def _section(name, outcomes):
    """Levels of an array, and what of it was not trained."""
    features = ARRAYS[name]
    return [
        '',
        f'## {TITLES[name]}',
        '',
        *table('feature | levels', ((one, ', '.join(map(_level, levels))) for one, levels in features.factors.items())),
        '',
        'A form is that of what is sharded: none is for sharding off alone. These pairs ask for nothing, and a refusal',
        'for that is mathematics. Each is in one plan, and in no other:',
        '',
        *([f'- {_name(one)} with {_name(other)}: {why}' for (one, other), why in features.alone.items()] or ['None.']),
        '',
        'These pairs are refused by name, not built. Each is in one plan, and in no other:',
        '',
        *_unbuilt(features),
        '',
        *_reasons(outcomes),
    ]


def _unbuilt(features):
    """Pairs that are refused, those of one level together."""
    found = {}
    for one, other in features.unbuilt:
        found.setdefault((one, other[0]), []).append(_level(other[1]))
    return [f'- {_name(one)} with {factor} {", ".join(levels)}' for (one, factor), levels in found.items()] or ['None.']


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
        *table(
            'plans | kind | reason | plan',
            ((len(of), kind, reason.replace('|', '/'), of[0]) for (kind, reason), of in ordered),
        ),
    ]


def main():
    """The command line."""
    options = arguments(
        __doc__,
        page={'choices': PAGES, 'default': 'pairs', 'help': 'which page (default: pairs)'},
        only=('', 'plans to train, as models-12; no page is written'),
        tree=(False, 'print the schedules of these plans'),
        seconds=(float('inf'), 'for so long, the smallest plans first'),
        journal=(Path, 'outcomes stand here, and are not trained again'),
        mended=(str, 'outcomes of this commit count too, where the plan did not fail'),
        jobs=(2, 'processes'),
    )
    asked = [one.rsplit('-', 1) for one in options.only.split(',') if one]
    numbers = [Number(name, int(row)) for name, row in asked] or [
        one for name in PAGES[options.page] for one in numbers_of(name)
    ]
    if options.seconds < float('inf'):
        numbers.sort(key=lambda number: ARRAYS[number.array].size(number.levels))
    began, at = time.monotonic(), commit('simpar', 'executor')
    journal, older = ((options.journal and Journal(options.journal, commit=one)) for one in (at, options.mended))
    older = kept(older)
    failed = [number for number, one in older.items() if one.kind == 'failed']
    done = {number: one for number, one in older.items() if number not in failed} | kept(journal)

    def tell(number, found):
        if journal:
            journal.add(plan=number, outcome=found)
        if asked or found.told in ('failed', 'not built'):
            print(number, found.told, f'{found.error:.1e}', found.message, number.levels, sep='; ')
        if options.tree:
            print(json.dumps(number.tree))

    rest = [number for number in numbers if number not in done]
    found = {**done, **trained(rest, tell, 1 if asked else options.jobs, options.seconds)}
    now = counts(found)
    print(', '.join(f'{name} {value}' for name, value in now.items()) + f'; {time.monotonic() - began:.0f} s')
    if not asked:
        before = json.loads(BEFORE.read_text(encoding='utf-8'))
        mended = f'{options.mended}`; what failed there is mended, and ran again: `{", ".join(map(str, failed))}'
        text = page(options.page, found, mended if failed else options.mended or at, before)
        (FOLDER / f'{options.page}.md').write_text(text, encoding='utf-8')
    return 1 if now['failed'] else 0


if __name__ == '__main__':
    sys.exit(main())
