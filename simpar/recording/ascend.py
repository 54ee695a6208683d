"""An Ascend recording joined with a Program: kernels told by type and shapes, and what each op of the program took."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import permutations
from math import prod
from statistics import fmean, median
from typing import Final, NamedTuple

from simpar.program import Program
from simpar.recording.join import OPERATOR, Join, Joined, Key, keys_of
from simpar.traces import Kernels, RankTrace, step_figures
from simpar.traces.summary import whole
from simpar.traces.table import COMPUTE, NANOSECOND

Shape = tuple[int, ...]
_TILE: Final = 16
"""Width of the tiles of FRACTAL_NZ: [columns / 16, rows / 16, 16, 16]."""
_READ_AND_WRITTEN: Final = 3
"""Tensors that an addition touches: two are read, one is written."""
_HALF: Final = 2
"""Bytes of a number of 16 bits, which activations are."""


class _Family(NamedTuple):
    """What kernels of a type do.

    Arguments:
        operators: of the program; none: all that an update does.
        phases: that one call does. bytes: of the op, where they tell it; else 0.
    """

    operators: frozenset[str]
    phases: str
    bytes: int = 0

    def does(self, key: Key) -> bool:
        """Whether it is what an op of the program does."""
        _, operator, phase, size = key
        return str(phase) in self.phases and operator in (self.operators or {operator}) and self.bytes in (0, size)


@lru_cache(maxsize=1)
def _families() -> Mapping[str, _Family]:
    text = files(__package__).joinpath('ascend_ops.csv').read_text(encoding='utf-8')
    rows = csv.DictReader(text.splitlines())
    return {row['type']: _Family(frozenset(row['operators'].split()), row['phases']) for row in rows}


_ADDITIONS: Final = frozenset({'residual', 'add'})
_UPDATE: Final = _Family(frozenset(), 'U')


def join_ascend(program: Program, traces: Sequence[RankTrace]) -> Join:
    """Join an Ascend recording with the Program of its schedule, by type and shapes of kernels.

    Products and attention are told by their sizes. Kernels of other operators share what their type took by bytes. A
    kernel that no operator is called by (a slice, a cast, zeros) counts with the memory-bound operator before it on the
    device, and with the update where none was before it.
    Does not model which layer a kernel is of; collectives, whose bytes a table of kernels does not have.
    """
    wanted = Counter(keys_of(program, traces[0].rank))
    exact: dict[Key, list[float]] = defaultdict(list)
    spent: dict[_Family, float] = defaultdict(float)
    calls: Counter[_Family] = Counter()
    steps = 0
    lasts: list[float] = []
    for trace in traces:
        kernels = whole(trace)
        if kernels is None:
            continue
        found = [one.span for _, one in step_figures(trace)]
        steps, lasts = steps + len(found), lasts + found
        for key, family, seconds in _told(kernels.of(kernels.kind == COMPUTE), wanted):
            if key:
                exact[key].append(seconds)
            else:
                spent[family] += seconds
                calls[family] += 1
    lines = (*_sized(wanted, exact, steps), *_shared(wanted, spent, calls, steps))
    known = {line.key for line in lines}
    return Join(
        lines=lines,
        missing=tuple((key, often) for key, often in wanted.items() if key not in known),
        host=False,
        step=median(lasts) if lasts else 0.0,
        matched=sum(line.seconds * line.program for line in lines),
    )


def _told(kernels: Kernels, wanted: Mapping[Key, int]) -> Iterator[tuple[Key | None, _Family, float]]:
    """The key of each product and attention, else the family that its seconds count with."""
    families, before = _families(), _UPDATE
    sums = {int(key[3]) for key in wanted if key[0] == OPERATOR and key[1] in _ADDITIONS}
    columns = (kernels.type.tolist(), kernels.shapes.tolist(), kernels.results.tolist())
    seconds = ((kernels.end - kernels.begin) * NANOSECOND).tolist()
    for kind, read, written, took in zip(*columns, seconds, strict=True):
        key = _product(kind, read, written, wanted) or _attention(kind, read, wanted)
        family = families.get(kind)
        if kind == 'Add' and (moved := _READ_AND_WRITTEN * _HALF * _size(written)) in sums:
            family = _Family(_ADDITIONS, 'FIW', moved)
        if not key:
            before = family or before
        yield key, before, took


def _shapes(text: str) -> list[Shape]:
    """``"4096,1024;6144,1024"``, with its own quotes, as shapes; absent tensors are empty."""
    parts = text.strip().strip('"').split(';')
    return [tuple(int(n) for n in part.split(',') if n.strip().isdigit()) for part in parts]


def _size(text: str) -> int:
    shapes = _shapes(text)
    return prod(shapes[0]) if shapes and shapes[0] else 0


def _matrix(shape: Shape) -> tuple[int, int] | None:
    """Rows and columns of an operand; leading dims count as rows, tiles as what they cover."""
    if len(shape) == 4 and shape[2:] == (_TILE, _TILE):
        return shape[1] * _TILE, shape[0] * _TILE
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else None


def _product(kind: str, read: str, written: str, wanted: Mapping[Key, int]) -> Key | None:
    """The product of the program that two operands and a result are of, whichever of them lies transposed."""
    if not kind.startswith(('MatMul', 'BatchMatMul')):
        return None
    operands = [one for shape in _shapes(read)[:2] if (one := _matrix(shape))]
    results = [one for shape in _shapes(written)[:1] if (one := _matrix(shape))]
    if len(operands) < 2 or not results:
        return None
    (left, right), result = operands, results[0]
    for m, k in permutations(left):
        for other, n in permutations(right):
            if other == k and (m, n) == result:
                for key in (('matmul', m, n, k), ('matmul', n, m, k)):
                    if key in wanted:
                        return key
    return None


def _attention(kind: str, read: str, wanted: Mapping[Key, int]) -> Key | None:
    """The program's attention whose queries have as many numbers, in any layout."""
    if not kind.startswith('FlashAttention'):
        return None
    phase, numbers = 'I' if 'Grad' in kind else 'F', _size(read)
    for key in wanted:
        if key[0] == 'attention' and key[-1] == phase and prod(int(n) for n in key[2:5]) == numbers:
            return key
    return None


def _sized(wanted: Mapping[Key, int], exact: Mapping[Key, list[float]], steps: int) -> Iterator[Joined]:
    for key, times in exact.items():
        recorded = len(times) / steps
        yield Joined(key=key, seconds=fmean(times), times=len(times), program=wanted[key], recorded=recorded)


def _shared(
    wanted: Mapping[Key, int], spent: Mapping[_Family, float], calls: Counter[_Family], steps: int
) -> Iterator[Joined]:
    """What kernels of a family took, shared by bytes among the ops of the program that they do."""
    for family, seconds in spent.items():
        mine = {key: often for key, often in wanted.items() if key[0] == OPERATOR and family.does(key)}
        moved = sum(int(key[3]) * often for key, often in mine.items())
        for key, often in mine.items() if moved else ():
            share = seconds / steps * int(key[3]) / moved
            yield Joined(key=key, seconds=share, times=calls[family], program=often, recorded=calls[family] / steps)
