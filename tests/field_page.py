"""Predict what practitioners reported (measured_steps/field), and write the table of docs/proofs/field.md.

Each schedule is predicted as it was written: its plan is kept, and what it is silent on is its framework's default.
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from simpar.case import load_case
from simpar.files import read_csv
from simpar.units import format_size, format_time, parse
from tests.proof import line, table

HERE = Path(__file__).parent
FOLDER = HERE.parent / 'measured_steps' / 'field'
PAGE = HERE.parent / 'docs' / 'proofs' / 'field.md'
BEGIN, END = '<!-- rows -->', '<!-- end of rows -->'
APART = 0.03
"""Pairs whose measured steps differ by less say no sign."""
FITS = {True: 'yes', False: 'no', None: 'not known'}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A reported row beside its prediction: seconds of a step, bytes, and whether it fits (None: not known)."""

    name: str
    settings: str
    measured: float | None
    reported_peak: float | None
    ran_out: bool
    batch: int
    stack: str
    step: float
    peak: float
    taken: float
    fits: bool | None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.step / self.measured - 1 if self.measured else None

    @property
    def peak_error(self) -> float | None:
        """The same of the peak of memory, where one was reported."""
        return self.peak / self.reported_peak - 1 if self.reported_peak else None


def predicted(name: str, row: dict) -> Field:
    """One schedule's prediction."""
    case = load_case(FOLDER / f'{name}.yaml')
    answer = case.predict(tell=False)
    found = {'step': answer.step, 'peak': answer.memory.peak, 'taken': answer.room.taken(answer.memory.peak)}
    return _field(name, row, stack=answer.stack or 'none', fits=answer.fits, **found)


def _field(name: str, row: dict, **found) -> Field:
    return Field(
        name=name, settings=row['settings'], measured=row['measured_step'], ran_out=row['oom'], batch=row['batch'],
        reported_peak=row['measured_gib'] and row['measured_gib'] * 2**30, **found,
    )  # fmt: skip


def shown(told: dict) -> dict[str, Field]:
    """All rows as the page tells them, in four digits."""
    found = {}
    for told_line in PAGE.read_text(encoding='utf-8').partition(BEGIN)[2].splitlines():
        name, *cells = (cell.strip() for cell in told_line[1:-1].split('|'))
        if name in told['rows']:
            stack, _, step, _, _, peak, fits = cells[2:]
            size = parse(peak, 'size')
            words = {text: one for one, text in FITS.items()}
            found[name] = _field(
                name, told['rows'][name], stack=stack, step=parse(step, 'time'), peak=size, taken=size, fits=words[fits]
            )
    return found


def signs(rows: dict[str, Field], pairs: list) -> list[tuple[str, float, float, bool]]:
    """Pairs at least 3 % apart: name, measured and predicted change of seconds a sample, and whether the sign is right.

    A prediction that shows no change of 0.05 % is a tie, which is wrong.
    """
    found = []
    for words, one, other in pairs:
        mine, second = rows[one], rows[other]
        if not (mine.measured and second.measured):
            continue
        measured = (second.measured / second.batch) / (mine.measured / mine.batch) - 1
        change = (second.step / second.batch) / (mine.step / mine.batch) - 1
        if abs(measured) >= APART:
            found.append((words, measured, change, measured * change > 0 and abs(change) >= 5e-4))
    return found


def main() -> None:
    """Predict all rows, print the table, and write it into the page with ``--write``."""
    told = json.loads((FOLDER / 'rows.json').read_text())
    began = time.process_time()
    rows = {name: predicted(name, row) for name, row in told['rows'].items()}
    lines = list(page(rows, signs(rows, told['pairs'])))
    print('\n'.join(lines))
    print(f'{len(rows)} of {len(told["rows"])} rows in {time.process_time() - began:.0f} CPU seconds')
    if '--write' in sys.argv:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f'{head}{BEGIN}\n' + '\n'.join(lines) + f'\n{END}{rest.partition(END)[2]}')


def page(rows: dict[str, Field], pairs: list[tuple[str, float, float, bool]]):
    """The lines of the tables."""
    sources = {row['id']: row for row in read_csv(FOLDER / 'sources.csv')}
    full = [row for row in rows.values() if row.settings == 'full' and row.error is not None]
    steps = [row for row in rows.values() if row.error is not None]
    yield (
        f'Of {len(rows)} rows {len(steps)} have a step, {len(full)} all settings, '
        f'{sum(row.ran_out for row in rows.values())} ran out of memory. Of those with all settings the error is '
        f'{100 * statistics.median(abs(row.error) for row in full):.1f} % in the median '
        f'({100 * statistics.mean(abs(row.error) for row in full):.1f} % in the mean). '
        f'Signs are right in {sum(pair[3] for pair in pairs)} of {len(pairs)} pairs that are at least 3 % apart.'
    )
    peaks = [100 * (row.taken / row.reported_peak - 1) for row in rows.values() if row.reported_peak]
    yield (
        f'{len(peaks)} rows tell their memory: what is predicted, tensors with context and fragmentation, is '
        f'{min(peaks):+.0f} to {max(peaks):+.0f} % from it, {statistics.median(peaks):+.0f} % in the median.'
    )
    heads = 'row | framework | devices | stack | measured | predicted | error | memory measured | predicted | fits'
    yield from ('', *table(heads, ()))
    for row in rows.values():
        of = sources.get(row.name, {})
        measured = format_time(row.measured) if row.measured else 'out of memory' if row.ran_out else 'a ratio'
        error = f'{100 * row.error:+.1f} %' if row.error is not None else '–'
        held = format_size(row.reported_peak) if row.reported_peak else ''
        devices = f'{of.get("devices", "")} × {of.get("hardware", "")}'
        told = row.stack, measured, format_time(row.step), error, held, format_size(row.peak), FITS[row.fits]
        yield line([row.name, of.get('framework', ''), devices, *told])
    found = (
        (words, f'{100 * measured:+.1f} %', f'{100 * change:+.1f} %', 'right' if right else 'wrong')
        for words, measured, change, right in pairs
    )
    yield from ('', *table('pair | measured | predicted | sign', found))


if __name__ == '__main__':
    main()
