"""Plans go out in a framework's words and come back: `make prove NAME=round_trip`.

    python -m tests.prove_round_trip field [LAUNCHER [N M]]  recorded public files that import, of all or N to M, in the
                                                             words of their framework; their plan must not touch them
    python -m tests.prove_round_trip drawn FRAMEWORK N M     drawn plans N to M of a framework, or of all

What came back is judged by all keys of the schedule, and a drawn plan by its program, too: where export lists keys, by
that of the rest. Printed are files that come back the same, those of which export lists what the framework cannot say,
and those that come back otherwise without a word, of which there must be none; -v names the keys. Of drawn plans it is
printed how many have each further key, for there must be some.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from simpar.case import case_of
from simpar.errors import ScheduleError
from simpar.exporting.export import TARGETS, Export, Unsaid, different, export, framework_defaults, reimported
from simpar.exporting.onto import onto
from simpar.exporting.settings import Values, values_of
from simpar.importing.mapping import schedule_text
from simpar.importing.mindspore import plan_of
from simpar.schedule import Schedule, load_schedule, written
from tests.drawn_further import OPTIONS, with_further
from tests.drawn_plans import DRAWN
from tests.field_score import files, made_of

FRAMEWORK = {'MindSpeed-LLM': 'mindspeed', 'MindFormers': 'mindformers'}
"""Of a launcher; others go out as Megatron-LM's."""


@dataclass(frozen=True)
class Plan:
    """A schedule that goes out in the words of a framework: read of a ``file``, or ``drawn`` so."""

    launcher: str
    framework: str
    schedule: Schedule
    file: Path | None = None
    drawn: str = ''


def returned(plan: Plan) -> tuple[str, list[str]]:
    """What became of a schedule that went out and came back, and the keys that are not the same."""
    target, values = TARGETS[plan.framework], values_of(plan.schedule)
    made = export(plan.schedule, plan.framework)
    again = _again(plan, made)
    keys = sorted(
        one.key for one in different(values, values_of(again), target=target, full=True) if _counts(one.key, values)
    )
    listed = {one.key for one in made.unsaid}
    kind = 'the same' if not keys else 'listed' if set(keys) <= listed else 'SILENT'
    if plan.file is None and kind != 'SILENT' and (kind == 'the same' or target.source is not None):
        rest = _again(plan, made, _said_beside(plan.schedule, made.unsaid))
        if case_of(plan.schedule).program.hash != case_of(rest).program.hash:
            return 'SILENT', ['the program']
    if kind == 'the same' and plan.file is not None and (edited := _touched(plan)):
        return 'TOUCHED', edited
    return kind, [key for key in keys if kind == 'listed' or key not in listed]


def _again(plan: Plan, made: Export, beside: Iterable[str] = ()) -> Schedule:
    """The schedule that comes back. Lines of MindSpore have a plan alone, which stands in the place of the first.

    Arguments: ``beside``, overrides of what a file says.
    """
    target, values = TARGETS[plan.framework], values_of(plan.schedule)
    if target.source is not None:
        back = reimported(target, made.text, values, made.beside)
        return load_schedule(schedule_text(back, f'{plan.framework}{target.suffix}'), list(beside))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in made.beside.items():
            (Path(folder) / name).write_text(text, encoding='utf-8')
        keys, _ = plan_of(made.text, Path(folder) / 'lines.py', values.ranks)
    # Of which the plan alone is taken: a chain and a batch that any plan fits.
    network = [{'dense': {'in': 1, 'out': 1}}] * 64
    usual = {key: value for key, value in framework_defaults(target.title).items() if key.startswith('plan.')}
    said = {key.removeprefix('plan.'): value for key, value in {**usual, **keys}.items() if value is not None}
    tree = {'simpar': 1, 'cluster': {'profile': 'ascend910a-8'}, 'workload': {'network': network, 'batch': 2**20}}
    return replace(plan.schedule, plan=load_schedule({**tree, 'plan': said, 'against': {}}).plan)


def _said_beside(schedule: Schedule, unsaid: Iterable[Unsaid]) -> Iterator[str]:
    """What the framework cannot say, as overrides of what it says."""
    for one in unsaid:
        if not one.key.startswith('workload.optimizer'):
            yield f'{one.key}={json.dumps(one.value)}'
    if any(one.key.startswith('workload.optimizer') for one in unsaid):
        yield f'workload.optimizer={json.dumps(written(schedule)["workload"]["optimizer"])}'


def _touched(plan: Plan) -> list[str]:
    """Lines of the own file that its own plan changes, where the framework is that of the file."""
    assert plan.file is not None
    if plan.launcher not in ('Megatron-LM, examples', *FRAMEWORK):
        return []
    edited = onto(plan.schedule, plan.framework, plan.file, given=_given(plan.file))
    return edited.difference.splitlines()[3:9]


def _given(path: Path) -> dict[str, str]:
    """Devices of a file that does not say them, as it was imported."""
    text, names = path.read_text(encoding='utf-8').replace('_', '-'), ('nnodes', 'nproc-per-node')
    known = path.suffix != '.sh' or all(f'--{name}' in text for name in names)
    return {} if known else dict.fromkeys(names, '8')


def _counts(key: str, values: Values) -> bool:
    """Whether a key is one of those that the schedule has, or of a plan that was given another."""
    return key in values.every or not key.startswith('cluster.')


def of_field(folder: Path, rows: Iterable[dict]) -> Iterator[Plan]:
    """Each recorded file that imports."""
    for row in rows:
        made = made_of(row, folder)
        if isinstance(made, str):
            continue
        name, framework = Path(row['path']).name, FRAMEWORK.get(row['launcher'], 'megatron')
        try:
            yield Plan(row['launcher'], framework, load_schedule(schedule_text(made, name)), folder / name)
        except ScheduleError as error:
            print(f'{row["path"]}: {str(error)[:200]}')


def of_draws(framework: str, first: int, last: int, further: dict[str, Counter[str]]) -> Iterator[Plan]:
    """Drawn plans of a framework, with further keys. Arguments: ``further``, is filled: how many plans have each."""
    for name in list(DRAWN) if framework == 'all' else [framework]:
        counts = further.setdefault(name, Counter({key: 0 for keys, _ in OPTIONS.get(name, ()) for key in keys}))
        for seed in range(first, last):
            tree, taken = with_further(name, DRAWN[name](seed), seed)
            counts.update(key for keys in taken for key in keys)
            drawn = f'seed {seed}, {" and ".join(", ".join(keys) for keys in taken)}'
            yield Plan(name, name, load_schedule(tree), drawn=drawn)


def main(words: list[str]) -> int:
    """Prints a line for each launcher, and with -v each file that is not the same."""
    named = [word for word in words[1:] if word != '-v']
    counts: dict[str, Counter[str]] = {}
    further: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if words[0] == 'drawn':
            chosen = of_draws(named[0], int(named[1]), int(named[2]), further)
        else:
            rows = [row for row in files() if not named or row['launcher'] == named[0]]
            chosen = of_field(Path(folder), rows[slice(*map(int, named[1:3]))] if named[1:] else rows)
        for plan in chosen:
            try:
                kind, keys = returned(plan)
            except ScheduleError as error:
                kind, keys = 'refused', [str(error)[:160]]
            counts.setdefault(plan.launcher, Counter())[kind] += 1
            if keys and '-v' in words:
                place = plan.file.name if plan.file else plan.drawn
                print(f'{plan.launcher}: {place}: {kind}: {", ".join(keys)}', flush=True)
    for launcher, kinds in counts.items():
        print(f'{launcher}: ' + ', '.join(f'{kind} {count}' for kind, count in sorted(kinds.items())))
    for name, kinds in further.items():
        print(f'{name}, further keys: ' + ', '.join(f'{key} {count}' for key, count in sorted(kinds.items())))
    return int(any(kinds['SILENT'] or kinds['TOUCHED'] or kinds['refused'] for kinds in counts.values()))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:] or ['field']))
