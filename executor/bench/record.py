"""The record of a bench: one JSON object, every line with its count, median, 10th percentile, IQR and CV."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from typing import Any, Final

import torch

from executor.bench.item import Item
from executor.bench.on import On
from executor.bench.overlap import Stretch
from executor.bench.sample import Samples
from executor.measure import Statistics
from simpar import __version__

FORMAT: Final = 'simpar bench 1'
TABLES: Final = ('matmul', 'attention', 'operator', 'collective')
DIGITS: Final = 5
"""Significant digits of a time: more would be noise."""
FAMILIES: Final = {'x86_64': 'x86', 'amd64': 'x86', 'aarch64': 'ARM', 'arm64': 'ARM'}


def table_rows(items: Sequence[Item], samples: Sequence[Samples]) -> dict[str, list[dict[str, Any]]]:
    """Rows of every table, in the order of the items."""
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for item, found in zip(items, samples, strict=True):
        computes = item.ops[-1].kind == 'compute'
        # Messages wait for other ranks, so wall time beyond CPU time is no sign of a disturbance there.
        kept = found.kept if computes else found
        row: dict[str, Any] = {**item.key, 'weight': item.weight}
        # Wall time of all repeats, CPU time of quiet ones: their distance tells a reader how busy the machine was.
        # Of messages a step has many, one after the other: what they take in quick steps counts.
        low = None if computes or not found.quick else found.quick
        row |= {'wall': figures(found.wall, low), 'cpu': figures(kept.cpu)}
        if computes:
            row['quiet'] = round(float(found.quiet.mean()), 3)
        tables[item.table].append(row)
    return tables


def figures(samples: Any, low: float | None = None) -> dict[str, float] | None:
    """What a reader must know of some repeats; None where there are none.

    Arguments: ``low``, the number to use of them, where it is not their 10th percentile.
    """
    if not len(samples):
        return None
    statistics = Statistics(samples)
    return {
        'n': statistics.count,
        'median': _short(statistics.median),
        'p10': _short(statistics.p10),
        'iqr': _short(statistics.iqr),
        'cv': round(statistics.cv, 4),
        **({} if low is None else {'low': _short(low)}),
    }


def overlap_rows(found: Sequence[Stretch]) -> list[dict[str, Any]]:
    """One row for everything that was measured beside something else; ``factor`` of its time alone."""
    return [{'what': one.what, 'beside': one.beside, 'factor': figures(one.factor.samples)} for one in found]


def environment(ranks: int, net: str, on: On | None = None, per_host: int = 0) -> dict[str, Any]:
    """Where the times are from, in general words."""
    on = on or On()
    return {
        'format': FORMAT,
        'date': datetime.date.today().isoformat(),
        'machine': machine() if on.threads else on.name,
        'cores': os.cpu_count() or 1,
        'memory': memory() if on.threads else on.memory,
        'software': {'Python': platform.python_version(), 'torch': str(torch.__version__), 'simpar': __version__},
        'ranks': ranks,
        'hosts': ranks // per_host if per_host else 1,
        'net': net,
        **({} if on.threads else {'device': on.device, 'dtype': on.dtype or 'fp32', 'library': on.library}),
    }


def machine() -> str:
    """The kind of this machine, e.g. ``2-core x86 CPU (AVX512)``."""
    family = FAMILIES.get(platform.machine().lower(), platform.machine())
    vectors = torch.backends.cpu.get_cpu_capability()
    return f'{os.cpu_count()}-core {family} CPU' + (f' ({vectors})' if vectors != 'DEFAULT' else '')


def memory() -> int:
    """Bytes of this machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    except (ValueError, OSError, AttributeError):
        return 0


def _short(seconds: float) -> float:
    return float(f'{seconds:.{DIGITS}g}')
