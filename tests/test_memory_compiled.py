"""Lives of tensors, compiled: as numpy finds them, whatever order ops touch them in."""

import importlib
import random

import numpy as np
import pytest
from training_cases import training_case

from simpar.machine_code import loader
from simpar.memory.lifetimes import Lifetimes, lifetimes
from simpar.memory.parts import Parts, parts_of
from simpar.memory.touches import FREE, READ, WRITE, Table, touches_of
from simpar.program import Csr, Role

pytest.importorskip('numba', reason='numba compiles the kernels')


def random_table(draw, ops, tensors):
    """What ops do to tensors: reads, then writes, then frees, of any tensors, each of them once."""
    every = [(does, tensor) for does in (READ, WRITE, FREE) for tensor in range(tensors)]
    each = [sorted(draw.sample(every, draw.randint(0, min(4, len(every))))) for _ in range(ops)]
    does, tensor = np.array([one for some in each for one in some], dtype=np.int64).reshape(-1, 2).T
    return Table(
        start=np.cumsum([0, *map(len, each)]),
        tensor=tensor.copy(),
        does=does.copy(),
        kinds=np.zeros(tensors, dtype=np.int64),
        one=np.array([draw.random() < 0.3 for _ in range(tensors)]),
        held=np.array([draw.random() < 0.2 for _ in range(tensors)]),
    )


def random_role(draw, ops, slots):
    counts = draw.randint(1, 3), draw.randint(1, 3)
    columns = [np.array([draw.randrange(count) for _ in range(slots)], dtype=np.int32) for count in (ops, *counts)]
    nothing = Csr.counted(np.zeros(slots, dtype=np.int64), np.zeros(0, dtype=np.int64))
    return Role('all', ('compute',), columns[0], columns[0] * 0, columns[1], columns[2], nothing, nothing)


def test_compiled_lives_are_those_of_numpy():
    """200 random roles: instances that are freed several times, never, first of all, or written behind their free."""
    loader()
    draw, several, over_the_end = random.Random(1), 0, 0
    for _ in range(200):
        ops, tensors = draw.randint(1, 12), draw.randint(1, 12)
        table, role = random_table(draw, ops, tensors), random_role(draw, ops, draw.randint(1, 60))
        theirs, mine = Parts.of(touches_of(table, role)), parts_of(table, role)
        for name, one, other in zip(Parts._fields, theirs, mine, strict=True):
            np.testing.assert_array_equal(other, one, err_msg=name)
            assert other.dtype == one.dtype, name
        instances = np.unique(np.column_stack(mine[:3]), axis=0)
        several += len(instances) < len(mine.tensor)
        over_the_end += mine.before.any()
    # The draws have what is hard.
    assert several > 50
    assert over_the_end > 50


def test_compiled_lifetimes_are_those_of_numpy(monkeypatch):
    """Of random training programs: all columns, and what begins and ends at each slot."""
    loader()
    # The package has a function of this name.
    home = importlib.import_module('simpar.memory.lifetimes')
    passing = 0
    for seed in range(12):
        _, program = training_case(seed)
        for role in program.roles:
            theirs, mine = (
                monkeypatch.setattr(home, 'is_started', lambda started=started: started)
                or (found := lifetimes(program, role), found.by_slot)
                for started in (False, True)
            )
            columns = [vars(found[0]) for found in (theirs, mine)]
            for name in Lifetimes.__dataclass_fields__:
                np.testing.assert_array_equal(columns[1][name], columns[0][name], err_msg=name)
                assert columns[1][name].dtype == columns[0][name].dtype, name
            for one, other in zip(theirs[1], mine[1], strict=True):
                np.testing.assert_array_equal(other, one)
            passing += len(mine[1].begin)
    assert passing > 100
