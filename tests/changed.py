"""Changes of what a file holds, by its form: JSON, YAML and pickles as trees, CSV as rows, databases by SQL, bytes.

``changed`` is always the same for the same random numbers. Deep nesting and long numbers are written into the text, for
no writer of Python gives them.
"""

import gzip
import io
import json
import pickle
import random
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

DEEP, DIGITS = '@deep@', '@digits@'
LEAVES: Final = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, -(2**63), 10**300, 0.0, -0.0, 1e308, 5e-324, float('nan'),
    float('inf'), float('-inf'), '', ' ', 'x' * 70_000, '0', 'nan', '1e999', '٣', '\0', '\ud800', '\u2028', '😀',
    '../..', '%s', '{0}', '$HOME', '/dev/zero', [], {}, [[]], [None], {'': None}, DEEP, DIGITS,
)  # fmt: skip
CELLS: Final = (
    '', '-1', '0', '1e999', 'nan', 'inf', '-inf', '1' * 400, '9' * 25, 'x' * 140_000, '"', '\0', '\ud800', 'a;b', '٣',
    '0x10', 'True', ' 1 ', '1_0', '-0', '1,2',
)  # fmt: skip
"""One is longer than the cells that Python's csv takes."""


def changed(drawn: random.Random, data: bytes, form: str) -> bytes:
    """The content of a file with some changes. Arguments: ``form``, a key of ``FORMS``; else its bytes are changed."""
    for number in range(1 + int(drawn.expovariate(1))):
        # A pickle that was changed as bytes is never loaded: it might run code.
        known = None if number and form == 'pickle' else FORMS.get(form)
        if known and drawn.random() < 0.75:
            # What earlier changes broke, in any way, is changed as bytes.
            with suppress(Exception):
                data = known(drawn, data)
                continue
        data = spliced(drawn, data)
    return data


# trees


def _deep(drawn: random.Random, text: str) -> str:
    times = drawn.choice((30, 1_000, 100_000))
    for quote in '"\'':
        text = text.replace(f'{quote}{DEEP}{quote}', '[' * times + ']' * times)
        text = text.replace(f'{quote}{DIGITS}{quote}', '1' * 5_000)
    return text


def _json(drawn: random.Random, data: bytes) -> bytes:
    text = json.dumps(grown(drawn, json.loads(data)), ensure_ascii=drawn.random() < 0.8)
    return _deep(drawn, text).encode('utf-8', errors='surrogatepass')


def _yaml(drawn: random.Random, data: bytes) -> bytes:
    tree = grown(drawn, yaml.safe_load(data.decode()))
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=drawn.random() < 0.5)
    return _deep(drawn, text).encode('utf-8', errors='surrogatepass')


def _pickle(drawn: random.Random, data: bytes) -> bytes:
    return pickle.dumps(grown(drawn, pickle.loads(data)), protocol=drawn.randint(0, 5))


def grown(drawn: random.Random, tree: Any) -> Any:
    """A tree with one of its values or keys lost, doubled, swapped, renamed, or of another kind."""
    at, path = tree, []
    while isinstance(at, (dict, list)) and at:
        key = drawn.choice(list(at)) if isinstance(at, dict) else drawn.randrange(len(at))
        path.append((at, key))
        at = at[key]
        if drawn.random() < 0.25:
            break
    if not path:
        return deepcopy(drawn.choice(LEAVES))
    holder, key = path[-1]
    drawn.choice(_CHANGES)(drawn, holder, key)
    return tree


def _lose(drawn: random.Random, holder: Any, key: Any) -> None:
    del holder[key]


def _leaf(drawn: random.Random, holder: Any, key: Any) -> None:
    holder[key] = deepcopy(drawn.choice(LEAVES))


def _double(drawn: random.Random, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.insert(drawn.randrange(len(holder) + 1), holder[key])
    else:
        holder[drawn.choice(('', 'name', f'{key}_', f'{key}.{key}', str(key).upper()))] = holder[key]


def _swap(drawn: random.Random, holder: Any, key: Any) -> None:
    other = drawn.choice(list(holder)) if isinstance(holder, dict) else drawn.randrange(len(holder))
    holder[key], holder[other] = holder[other], holder[key]


def _number(drawn: random.Random, holder: Any, key: Any) -> None:
    value = holder[key]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        holder[key] = drawn.choice((-value, value + 1, value * 1000, str(value), [value], float(value) / 3))
    else:
        _leaf(drawn, holder, key)


def _wrap(drawn: random.Random, holder: Any, key: Any) -> None:
    holder[key] = drawn.choice(([holder[key]], {'a': holder[key]}, [holder[key]] * 50, str(holder[key])[:5_000]))


_CHANGES: Final[tuple[Callable[[random.Random, Any, Any], None], ...]] = (
    _lose, _leaf, _leaf, _double, _swap, _number, _number, _wrap,
)  # fmt: skip


# rows


def _csv(drawn: random.Random, data: bytes) -> bytes:
    rows = [line.split(',') for line in data.decode('utf-8', errors='surrogatepass').splitlines()]
    what, row = drawn.randrange(6), drawn.randrange(len(rows))
    wide = len(rows[0])
    one, other = drawn.randrange(wide), drawn.randrange(wide)
    if what == 0:
        rows = [[cell for at, cell in enumerate(cells) if at != one] for cells in rows]
    elif what == 1:
        for cells in rows:
            if max(one, other) < len(cells):
                cells[one], cells[other] = cells[other], cells[one]
    elif what == 2:
        rows.insert(drawn.randrange(len(rows) + 1), rows[row])
    elif what == 3:
        del rows[row]
    else:
        rows[row][drawn.randrange(len(rows[row]))] = drawn.choice(CELLS)
    return '\n'.join(','.join(cells) for cells in [*rows, []]).encode('utf-8', errors='surrogatepass')


# databases


def _sqlite(drawn: random.Random, data: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'a.db'
        path.write_bytes(data)
        base = sqlite3.connect(path)
        try:
            tables = [row[0] for row in base.execute("select name from sqlite_master where type = 'table'")]
            table = drawn.choice(sorted(tables))
            column = drawn.choice([row[1] for row in base.execute(f'pragma table_info("{table}")')])
            value = drawn.choice((None, -1, 0, 2**62, -(2**62), 1e308, 'x', '', b'\xff\x00', 10**18))
            some = drawn.choice(('', ' where rowid % 2', ' where rowid = 1'))
            drawn.choice((
                lambda: base.execute(f'drop table "{table}"'),
                lambda: base.execute(f'alter table "{table}" rename column "{column}" to "other"'),
                lambda: base.execute(f'update "{table}" set "{column}" = ?{some}', (value,)),
                lambda: base.execute(f'update "{table}" set "{column}" = ?{some}', (value,)),
                lambda: base.execute(f'delete from "{table}"{some}'),
                lambda: base.execute(f'insert into "{table}" select * from "{table}"'),
            ))()  # fmt: skip
            base.commit()
        finally:
            base.close()
        return path.read_bytes()


# bytes


def spliced(drawn: random.Random, data: bytes) -> bytes:
    """Bytes that are cut, lost, doubled, overwritten, or moved."""
    begin = drawn.randrange(len(data) + 1)
    end = min(len(data), begin + drawn.choice((1, 2, 4, 8, 64, 4096)))
    part = data[begin:end]
    return drawn.choice((
        lambda: data[:begin],
        lambda: data[:begin] + data[end:],
        lambda: data[:end] + part * drawn.choice((1, 3, 2_000)) + data[end:],
        lambda: data[:begin] + bytes(drawn.randrange(256) for _ in part) + data[end:],
        lambda: data[:begin] + drawn.choice((b'\xff', b'\0', b'\x80')) * len(part) + data[end:],
        lambda: data[:begin] + drawn.choice((b'\xed\xa0\x80', b'\xff\xfe', b'\xef\xbb\xbf', b'\x1b[2J')) + data[begin:],
        lambda: data[begin:] + data[:begin],
    ))()  # fmt: skip


def _gzip(drawn: random.Random, data: bytes) -> bytes:
    """What is inside of it, of any form that it looks like."""
    inside = gzip.decompress(data)
    form = 'json' if inside[:1] in b'{[' else 'csv'
    return gzip.compress(changed(drawn, inside, form), 1, mtime=0)


def _zip(drawn: random.Random, data: bytes) -> bytes:
    """An archive of arrays or tensors with one of its files changed, and its sums right."""
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, 'w') as new:
        names = old.namelist()
        wrong = drawn.choice(names)
        for name in names:
            if name != wrong or drawn.random() < 0.9:
                new.writestr(name, spliced(drawn, old.read(name)) if name == wrong else old.read(name))
    return out.getvalue()


FORMS: Final[dict[str, Callable[[random.Random, bytes], bytes]]] = {
    'json': _json, 'yaml': _yaml, 'yml': _yaml, 'csv': _csv, 'db': _sqlite, 'sqlite': _sqlite, 'pickle': _pickle,
    'gz': _gzip, 'npz': _zip, 'pt': _zip,
}  # fmt: skip
"""By what the name of a file ends with."""
