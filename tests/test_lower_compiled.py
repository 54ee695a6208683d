"""Growing, compiled: tables, and what their rows name, as numpy finds them, or refused where numpy refuses them."""

import random

import numpy as np
import pytest
from grow_cases import compared

from simpar.lower import layered, references
from simpar.lower.layered import Table
from simpar.lower.period import Layers, NotPeriodic, Rows
from simpar.lower.references import References
from simpar.machine_code import loader
from simpar.program import Csr

pytest.importorskip('numba', reason='numba compiles the kernels')
PROPERTIES = ('place', 'model', 'grown', 'at', 'source', 'shift')


def random_rows(draw):
    """Rows that go up and down through layers, some of them ahead of others, mostly evenly."""
    layers = Layers(draw.randint(4, 7), draw.randint(1, 1), draw.randint(1, 5))
    found, key = [], 0
    for _ in range(draw.randint(1, 3)):
        found += [(key, -1)] * draw.randint(0, 1)
        keys = [key + 1 + number for number in range(draw.randint(1, 3))]
        key = keys[-1] + 1
        order = range(layers.count) if draw.random() < 0.6 else reversed(range(layers.count))
        own = [(one, layer) for layer in order for one in keys]
        if draw.random() < 0.3:
            # The last key of a layer begins one layer earlier than the others.
            own = sorted(own, key=lambda row: row[1] - (row[0] == keys[-1]))
        found += own
        found += [(key, draw.choice((0, layers.count - 1)))] * draw.randint(0, 1)
        key += 1
    if draw.random() < 0.3:
        place = draw.randrange(len(found))
        found[place] = draw.choice(found) if draw.random() < 0.5 else (found[place][0], draw.randrange(layers.count))
    return Rows(*np.array(found, dtype=np.int64).T.copy()), layers


def told(table):
    """What numpy says of a table; None where it is not periodic."""
    try:
        return {name: getattr(table, name) for name in PROPERTIES}
    except NotPeriodic:
        return None


def same(one, other):
    np.testing.assert_array_equal(np.stack(one) if isinstance(one, Rows) else one, other)


def test_compiled_tables_are_those_of_numpy():
    draw, periodic = random.Random(1), 0
    for _ in range(400):
        rows, layers = random_rows(draw)
        theirs, mine = told(Table(rows, layers)), layered._compiled(rows, layers)
        assert (theirs is None) == (not mine)
        for name in mine:
            same(theirs[name], mine[name])
        periodic += theirs is not None
    # The draws have both.
    assert 100 < periodic < 350


def random_lists(draw, rows, layers):
    """Two lists a row, of rows at the same distance for all layers, but for a few of them."""
    place = {row: number for number, row in enumerate(zip(*(column.tolist() for column in rows), strict=True))}
    keys = sorted({key for key, _ in place})
    names = {(key, which): [(draw.choice(keys), draw.randint(-1, 1)) for _ in range(draw.randint(0, 2))]
             for key in keys for which in range(2)}  # fmt: skip
    everything = draw.choice(keys)
    lists = []
    for key, layer in place:
        for which in range(2):
            wanted = [(one, layer + away if layer >= 0 else draw.choice((-1, 0))) for one, away in names[key, which]]
            if layer < 0 and draw.random() < 0.3:
                wanted += [(everything, one) for one in range(layers.count)]
            lists.append([place[one] for one in wanted if one in place])
    if draw.random() < 0.2 and any(lists):
        draw.choice([one for one in lists if one])[0] = draw.randrange(len(place))
    counts = np.array(list(map(len, lists)), dtype=np.int64)
    return Csr.counted(counts, np.array([one for own in lists for one in own], dtype=np.int64))


def named(table, lists):
    """What rows to be name, and which rows name other things than their models."""
    try:
        found = References(table, table, lists, 2)
        return found.grown(), found.unlike
    except NotPeriodic:
        return None


def test_what_rows_name_is_compiled_as_numpy_finds_it(monkeypatch):
    draw, found, of_all = random.Random(2), 0, 0
    for _ in range(800):
        rows, layers = random_rows(draw)
        table = Table(rows, layers)
        if told(table) is None:
            continue
        lists = random_lists(draw, rows, layers)
        theirs, mine = (
            monkeypatch.setattr(references, 'is_started', lambda started=started: started) or named(table, lists)
            for started in (False, True)
        )
        assert (theirs is None) == (mine is None)
        if theirs is not None:
            for one, other in ((mine[0].start, theirs[0].start), (mine[0].item, theirs[0].item), (mine[1], theirs[1])):
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype
            found += 1
            of_all += max(theirs[0].count) > max(lists.count)
    assert found > 100
    assert of_all > 10


def test_random_plans_grow_to_the_program_of_all_layers_by_kernels(monkeypatch):
    loader()
    fell_back = []
    looked = References._looked
    monkeypatch.setattr(References, '_looked', lambda self: fell_back.append(looked(self)) or fell_back[-1])
    found = [compared(seed) for seed in range(100, 120)]
    assert 'unequal' not in found
    assert found.count('equal') > 2
    assert sum(one is not None for one in fell_back) > len(fell_back) // 2
