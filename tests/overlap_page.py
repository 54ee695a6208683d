"""Each overlap of docs/overlaps.md alone: a picture, and what `simpar why-not` says of a case that gains and of others.

    python tests/overlap_page.py                     write all pictures and tables
    python tests/overlap_page.py gradients tiles     write those of these

``overlap_rows.csv`` has the cases. A picture holds its own words, so that a test sees when it is old.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from docs_blocks import DOCS, ROOT

from simpar.case import case_of, load_case
from simpar.files import read_csv
from simpar.headline import gain_in_words
from simpar.schedule.schedule import with_changes
from simpar.sweep.why_not import NOTHING, Tried, why_not
from simpar.units import format_size, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simpar.schedule import Schedule

PAGE = DOCS / 'overlaps.md'
FOLDER = DOCS / 'images' / 'overlaps'
HEAD = 'case | without | with it | gain | hidden | tax | memory'


class Row(NamedTuple):
    """A case. Arguments: ``case``, in words; ``example``, its file; ``sets``, what changes there, as for a shell."""

    overlap: str
    case: str
    example: str
    sets: str

    @property
    def flags(self) -> list[str]:
        """Its changes as a command has them."""
        return [word for one in shlex.split(self.sets) for word in ('--set', one)]

    @property
    def command(self) -> str:
        """What prints its figures."""
        return shlex.join(['simpar', 'why-not', f'examples/{self.example}', '--overlap', self.overlap, *self.flags])


class Found(NamedTuple):
    """What is predicted of a case. Arguments: ``off`` and ``on``, the plan without its overlap and with it."""

    schedule: Schedule
    off: Tried
    on: Tried


def rows() -> dict[str, list[Row]]:
    """Cases by overlap; the first has the picture, and all others change that one."""
    found: dict[str, list[Row]] = {}
    for row in read_csv(Path(__file__).with_name('overlap_rows.csv')):
        found.setdefault(row['overlap'], []).append(Row(**row))
    return found


@cache
def found_of(example: str, sets: str, overlap: str) -> Found:
    """The plan without the overlap and with it."""
    case = load_case(ROOT / 'examples' / example, shlex.split(sets))
    tried = {one.name: one for one in why_not(case, [overlap]).rows}
    return Found(case.schedule, tried[NOTHING], tried[overlap])


def table(overlap: str) -> list[str]:
    """A line for each case."""
    first, *others = rows()[overlap]
    lines = [_line(first.case, found_of(first.example, first.sets, overlap))]
    for one in others:
        told = f'{one.case}: `{shlex.join(one.flags)}`'
        lines.append(_line(told, found_of(first.example, f'{first.sets} {one.sets}', overlap)))
    return [f'| {overlap}: {HEAD} |', '|---|---|---|---|---|---|---|', *lines]


def _line(told: str, found: Found) -> str:
    off, on = found.off, found.on
    assert off.step is not None
    assert on.step is not None
    assert on.tax is not None
    hidden = ' → '.join(f'{100 * (one.hidden or 0.0):.0f} %' for one in (off, on))
    tax = f'{"-" if on.tax < 0 else ""}{format_time(abs(on.tax))}'
    room = ' → '.join(format_size(one.peak) + (' (too much)' if one.reason else '') for one in (off, on))
    gain = gain_in_words(off.step / on.step - 1)
    return f'| {" | ".join((told, format_time(off.step), format_time(on.step), gain, hidden, tax, room))} |'


def picture(overlap: str) -> Figure:
    """The step with the overlap below the one without it, as `simpar run --plot` draws them."""
    first = rows()[overlap][0]
    schedule, off, on = found_of(first.example, first.sets, overlap)
    changes = {key: value for key, value in on.changes.items() if schedule.value(key) != value}
    plan = with_changes(schedule, changes) if changes else schedule
    against = {key: value for key, value in off.changes.items() if plan.value(key) != value}
    return case_of(replace(plan, against=against)).predict().timeline()


def words_of(figure: Figure) -> str:
    """The title of a picture and of its panels, with all figures."""
    return ' | '.join((figure.texts[0].get_text(), *(axes.get_title(loc='left') for axes in figure.axes)))


def path_of(overlap: str) -> Path:
    """Where its picture lies."""
    return FOLDER / f'{overlap.replace(" ", "_")}.png'


TABLES = [(PAGE, f'| {overlap}: case |', '|', partial(table, overlap)) for overlap in rows()]


def main() -> int:
    """Draw, check and write pictures; write the tables."""
    import docs_tables
    from pictures import check, small

    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:] or list(rows())
    for overlap in wanted:
        figure = picture(overlap)
        check(figure)
        small(figure, path_of(overlap), words_of(figure))
        print(overlap, words_of(figure), sep=': ', flush=True)
    docs_tables.write(one for overlap, one in zip(rows(), TABLES, strict=True) if overlap in wanted)
    return 0


if __name__ == '__main__':
    sys.exit(main())
