"""Figures of a device that a record has beside its kernels: what the host takes to issue, and the clock under load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simpar.calibrate.number import Number
from simpar.calibrate.record import LaunchRow, Record
from simpar.calibrate.table import MOST_SPREAD

NO_HOST: Final = 'a thread for each stream calls its kernels itself: there is no host beside the device'
CALLS: Final = 'small products, one behind the other, while the device waits for the host'


def host(record: Record) -> dict[str, Number]:
    """Seconds to issue an op in every mode that was measured, and the clock that a device keeps."""
    if not record.launches:
        return {'host.issue.eager': Number(value=0.0, kind='time', source=NO_HOST)}
    found = {}
    for mode in dict.fromkeys(row.mode for row in record.launches):
        rows = [row for row in record.launches if row.mode == mode]
        found[f'host.issue.{mode}'] = _seconds(rows, 'op', f'{CALLS}; {mode}')
    eager = [row for row in record.launches if row.mode == 'eager']
    for key, phase in (('stack.forward', 'F'), ('stack.backward', 'I')):
        found[key] = _seconds([row for row in eager if row.phase == phase], 'op', f'{CALLS}; phase {phase}')
    found['stack.step'] = _seconds(eager, 'step', 'what steps of few products take beyond them')
    return found | _sustained(record)


def _seconds(rows: Sequence[LaunchRow], what: str, source: str) -> Number:
    """The mean over phases of what is usual."""
    figures = [getattr(row, what) for row in rows]
    wide = max((one.cv for one in figures), default=0.0)
    flags = (f'varies by {wide:.0%}',) if wide > MOST_SPREAD else ()
    value = sum(one.median for one in figures) / max(len(figures), 1)
    return Number(value=value, kind='time', source=source, flags=flags, guessed=not figures)


def _sustained(record: Record) -> dict[str, Number]:
    if record.sustained is None:
        return {}
    row = record.sustained
    kept = min(1.0, row.early.median / row.late.median)
    source = f'products of {row.size} cubed, the last of {row.seconds:g} s of nothing else against the first'
    return {'device.sustained': Number(value=kept, source=source)}
