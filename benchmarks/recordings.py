"""What `simpar trace` of one rank's recording costs: CPU seconds and memory of the command, by format and size.

A recording repeats a real one of tests/recorded behind itself until it has so many events.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.laps import short

RECORDED: Final = Path(__file__).parent.parent / 'tests' / 'recorded'
SIZES: Final = (10**5, 10**6)
ROUNDS: Final = 3


def kernel_rows(events: int) -> Iterator[str]:
    """Lines of an Ascend ``kernel_details.csv`` of so many kernels."""
    [source, *_] = sorted((RECORDED / 'msprof' / 'qwen3_pp2_dp2').rglob('kernel_details.csv'))
    head, *rows = source.read_text(encoding='utf-8-sig').splitlines()
    names = head.split(',')
    start = names.index('Start Time(us)')
    # No field before it holds a comma.
    cells = [row.split(',') for row in rows]
    begins = [Decimal(row[start].strip()) for row in cells]
    span = max(begins) - min(begins) + 1000
    yield head
    for number in range(events):
        lap, place = divmod(number, len(rows))
        row = cells[place]
        yield ','.join([*row[:start], f'{begins[place] + lap * span}\t', *row[start + 1 :]])


def kineto_events(events: int) -> Iterator[str]:
    """Lines of a Kineto file of so many events."""
    document = json.loads((RECORDED / 'kineto_cases' / 'cuda_attention.json').read_text(encoding='utf-8'))
    real = [one for one in document['traceEvents'] if one.get('ph') == 'X']
    span = max(one['ts'] + one['dur'] for one in real) - min(one['ts'] for one in real) + 10
    rest = {key: value for key, value in document.items() if key != 'traceEvents'}
    yield f'{json.dumps(rest)[:-1]}, "traceEvents": ['
    for number in range(events):
        lap, place = divmod(number, len(real))
        one = real[place]
        args = dict(one.get('args', {}))
        if 'correlation' in args:
            args['correlation'] += lap * 10**6
        yield json.dumps({**one, 'ts': one['ts'] + lap * span, 'args': args}) + (',' if number < events - 1 else '')
    yield ']}'


FORMATS: Final[dict[str, tuple[str, Callable[[int], Iterator[str]]]]] = {
    'kernel_details.csv': ('kernel_details.csv', kernel_rows),
    'Kineto JSON': ('trace.json', kineto_events),
}


def recordings(*, quick: bool) -> Iterator[tuple[str, ...]]:
    """Of each format at each size CPU seconds and memory of the whole command, medians."""
    for (name, (file, lines)), events in product(FORMATS.items(), SIZES[: 1 if quick else None]):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file
            with path.open('w', encoding='utf-8') as out:
                out.writelines(f'{line}\n' for line in lines(events))
            rounds = [_used([sys.executable, '-m', 'simpar', 'trace', str(path)]) for _ in range(ROUNDS)]
        seconds, memory = (median(figures) for figures in zip(*rounds, strict=True))
        yield name, f'{events:,}', short(seconds), short(seconds * 1e6 / events), short(memory / 1e6)


def _used(words: list[str]) -> tuple[float, int]:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
