"""Names of kernels: which of them communicate or copy, whatever library they are of."""

import csv
import re
from functools import lru_cache
from importlib.resources import files
from typing import Literal

KernelKind = Literal['compute', 'communication', 'memory', 'other']
_WAITS = re.compile(r'.*Sync')


@lru_cache(maxsize=4096)
def kind_of(name: str) -> KernelKind:
    """What a kernel does, by its name. Source: the table ``kernels.csv`` beside this file."""
    for kind, pattern in _patterns():
        if pattern.search(name):
            return kind
    return 'other' if _WAITS.match(name) else 'compute'


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[KernelKind, re.Pattern[str]], ...]:
    rows = list(csv.DictReader(files(__package__).joinpath('kernels.csv').read_text(encoding='utf-8').splitlines()))
    kinds: tuple[KernelKind, ...] = ('compute', 'communication', 'memory')
    return tuple(
        (kind, re.compile('|'.join(f'(?:{row["pattern"]})' for row in rows if row['kind'] == kind), re.IGNORECASE))
        for kind in kinds
    )
