"""Plans go out in a framework's words and come back: `make prove NAME=round_trip`.

    python -m tests.prove_round_trip field      every recorded public file that imports, in the words of its framework;
                                                with a launcher behind it those of that one
    python -m tests.prove_round_trip drawn 200  so many drawn plans for each framework that reads them back

Printed are files that come back the same, those of which export lists what the framework cannot say, and those that
come back otherwise without a word, of which there must be none.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from simpar.errors import ScheduleError
from simpar.exporting.export import TARGETS, different, export, reimported
from simpar.exporting.settings import Values, values_of
from simpar.importing.mapping import schedule_text
from simpar.schedule import Schedule, load_schedule
from tests.field_score import files, made_of

FRAMEWORK = {'MindSpeed-LLM': 'mindspeed', 'MindFormers': 'mindformers'}
"""Of a launcher; others go out as Megatron-LM's."""


def returned(schedule: Schedule, framework: str) -> tuple[str, list[str]]:
    """What became of a schedule that went out and came back, and the keys that are not the same."""
    target, values = TARGETS[framework], values_of(schedule)
    made = export(schedule, framework)
    back = reimported(target, made.text, values, made.beside)
    other = values_of(load_schedule(schedule_text(back, f'{framework}{target.suffix}')))
    keys = sorted(one.key for one in different(values, other, target=target, full=True) if _counts(one.key, values))
    listed = {one.key for one in made.unsaid}
    kind = 'the same' if not keys else 'listed' if set(keys) <= listed else 'SILENT'
    return kind, [key for key in keys if kind == 'listed' or key not in listed]


def _counts(key: str, values: Values) -> bool:
    """Whether a key is one of those that the schedule has, or of a plan that was given another."""
    return key in values.every or not key.startswith('cluster.')


def of_field(launcher: str = '') -> Iterator[tuple[str, str, Schedule]]:
    """The launcher, framework and schedule of each recorded file that imports."""
    with tempfile.TemporaryDirectory() as folder:
        for row in files():
            if launcher and row['launcher'] != launcher:
                continue
            made = made_of(row, Path(folder))
            if isinstance(made, str):
                continue
            try:
                yield (
                    row['launcher'],
                    FRAMEWORK.get(row['launcher'], 'megatron'),
                    load_schedule(schedule_text(made, Path(row['path']).name)),
                )
            except ScheduleError as error:
                print(f'{row["path"]}: {str(error)[:200]}')


def of_draws(count: int) -> Iterator[tuple[str, str, Schedule]]:
    """Drawn plans of the frameworks that say all of them."""
    sys.path.insert(0, str(Path(__file__).parent))
    import test_export
    import test_export_mindspore

    for seed in range(count):
        yield 'megatron', 'megatron', load_schedule(test_export.drawn('megatron', seed))
        yield 'mindformers', 'mindformers', load_schedule(test_export_mindspore.drawn(seed))


def main(words: list[str]) -> int:
    """Prints a line for each launcher, and each file that is not the same."""
    named = [word for word in words[1:] if word != '-v']
    chosen = of_draws(int(named[0])) if words[0] == 'drawn' else of_field(*named[:1])
    counts: dict[str, Counter[str]] = {}
    for launcher, framework, schedule in chosen:
        try:
            kind, keys = returned(schedule, framework)
        except ScheduleError as error:
            kind, keys = 'refused', [str(error)[:160]]
        counts.setdefault(launcher, Counter())[kind] += 1
        if keys and '-v' in words:
            print(f'{launcher}: {schedule.where()}: {kind}: {", ".join(keys)}')
    for launcher, kinds in counts.items():
        print(f'{launcher}: ' + ', '.join(f'{kind} {count}' for kind, count in sorted(kinds.items())))
    return int(any(kinds['SILENT'] for kinds in counts.values()))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:] or ['field']))
