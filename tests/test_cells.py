"""Tables of kernels are read in blocks of bytes as ``csv`` reads them row by row."""

import csv
import random
from pathlib import Path

import pytest

from simpar.errors import ScheduleError
from simpar.traces import ascend
from simpar.traces.ascend import COLUMNS, columns_of, duration, nanoseconds, read_kernel_details

HEADS = (
    'Step Id,Model ID,Task ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Input Shapes',
    '"Op Name","OP Type",Task Type,Task Start Time(ns),x,Task Duration(ms),"Input Shapes"',
)
ORDINARY = {
    'step': ('1', '2', 'N/A', ''),
    'core': ('AI_CORE', 'HCCL', 'mix_aic', 'EVENT_WAIT_SQE', ''),
    'begin': ('1700000000881410.320\t', '1700000000881411.320', '12.3', '17'),
    'lasts': ('50.621', '0.000', '7', '1892.920', '1.5'),
}
STRANGE = {
    'begin': ('-1.5', '12.3456', ' 8.125 ', '"9.125\t"', '.500', '5.', '1.5\t\t', '٣.500'),
    'lasts': ('"50.621"', '0.0001', '007', '12\t'),
}
TEXTS = ('op', 'aclnn_MatMul_0', 'hcom_allReduce__868_0_1', '"4096,1024;6144,1024"', '"""4096,1024;1"""', '', 'é x',
    'x' * 300, 'x' * 299 + 'y', '"a\nb"', '"a\r\n,""b"', '""')  # fmt: skip
ODD = ('a"b', 'a"b,c"', '"a"b', ' "c"', '"a""', 'soon', '5' * 16, '1' * 17, '-3', '\udcff')
"""What csv reads otherwise than it writes, and what no time may be."""
Rows = list[tuple[int, int, str, str, str]]


def drawn(rng: random.Random) -> bytes:
    """A table whose cells are ordinary, some of them strange, or a few broken in one way."""
    strange, odd = rng.choice([(0, 0), (0.2, 0), (0.2, 0), (0, 0.01), (0.2, 0.01)])
    head, broken = rng.choice(HEADS), rng.choice(ODD)
    names = next(csv.reader([head]))
    keys = {place: key for key, place in columns_of(names)[0].items()}
    lines = [head]
    for _ in range(rng.randrange(1, 40)):
        row = []
        for place in range(len(names) + (rng.random() < strange)):
            usual = ORDINARY.get(keys.get(place, ''), TEXTS)
            unusual = STRANGE.get(keys.get(place, ''), usual)
            ordinary = rng.choice(unusual if rng.random() < strange else usual)
            row.append(broken if rng.random() < odd else ordinary)
        lines += [','.join(row[: -1 if rng.random() < strange else None]), *[''] * (rng.random() < strange)]
    end = rng.choice(['\n', '\r\n', '\r'])
    text = rng.choice(['', '\ufeff']) + end.join(lines) + rng.choice(['', end])
    return text.encode(errors='surrogateescape')


def by_row(path: Path) -> Rows:
    """Begin, end, name, type and shapes of what computes or communicates. Raises ``ValueError`` with the row."""
    found: Rows = []
    with path.open(encoding='utf-8-sig', newline='') as file:
        head, *rows = filter(None, csv.reader(file))
    place, unit = columns_of(head)
    for number, row in enumerate(rows, 2):
        cells_of = [*row, *[''] * len(head)]
        told = {key: cells_of[place[key]].strip() if key in place else '' for key in COLUMNS}
        talks = told['name'].startswith('hcom_') or told['type'].startswith('hcom_')
        if not talks and told['core'].upper() not in {'AI_CORE', 'HCCL', 'MIX_AIC', ''}:
            continue
        try:
            begin = nanoseconds(cells_of[place['begin']], unit['begin'])
            lasts = duration(cells_of[place['lasts']], unit['lasts'])
        except ValueError:
            raise ValueError(f'{path}:{number}:') from None
        found.append((begin, begin + lasts, told['name'], told['type'], told['shapes']))
    return sorted(found)


def by_blocks(path: Path) -> Rows:
    found: Rows = []
    for trace in read_kernel_details(path):
        assert trace.kernels is not None
        columns = (getattr(trace.kernels, name).tolist() for name in ('begin', 'end', 'name', 'type', 'shapes'))
        found += zip(*columns, strict=True)
    return sorted(found)


def test_drawn_tables_are_read_as_csv_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotes, empty and short rows, ends of lines, marks of byte order, times of any form; refusals name the row."""
    rng, refused = random.Random(7), 0
    for number in range(100):
        path = tmp_path / 'kernel_details.csv'
        path.write_bytes(drawn(rng))
        monkeypatch.setattr(ascend, 'BLOCK', rng.choice([300, 1500, 2**20]))
        words, expected = str(path), list[tuple[int, int, str, str, str]]()
        try:
            expected = by_row(path)
        except (ValueError, csv.Error) as error:
            words = str(error) if type(error) is ValueError else words
        if expected:
            assert by_blocks(path) == expected, number
        else:
            with pytest.raises(ScheduleError, match=words):
                by_blocks(path)
            refused += 1
    assert 10 < refused < 90


def test_a_letter_that_is_none_is_refused_in_columns_that_nobody_reads(tmp_path: Path) -> None:
    row = b'1,2,3,op,Add,AI_CORE,100.000,1.000,'
    path = tmp_path / 'kernel_details.csv'
    path.write_bytes(b'\n'.join([HEADS[0].encode(), *[row + b'0,'] * 999, row + b'\xff,']))
    with pytest.raises(ScheduleError, match='cannot be read'):
        read_kernel_details(path)
