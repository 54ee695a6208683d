"""Lives of tensors, compiled: as numpy finds them, whatever order ops touch them in."""

import importlib
import random

import numpy as np
import pytest
from training_cases import training_case

from simpar.errors import ProgramError
from simpar.machine_code import loader
from simpar.memory.changes import Window, changes
from simpar.memory.lifetimes import Lifetimes, lifetimes
from simpar.program import Csr, OpClass, Program, Role, Tensor
from simpar.program.tensor import KINDS

pytest.importorskip('numba', reason='numba compiles the kernels')
GIVEN = ('parameter', 'state', 'input')


def random_op(draw, number, tensors):
    """Something is read, written, accumulated to or freed; what is not there at first is seldom read alone."""
    lists = [], [], [], []
    for one in draw.sample(tensors, min(draw.randint(0, 3), len(tensors))):
        kind = draw.random()
        if one.kind in GIVEN or kind < 0.1:
            lists[0].append(one.name)
        if kind > 0.05:
            lists[draw.choice((1, 1, 2))].append(one.name)
        if kind > 0.6:
            lists[3].append(one.name)
    return OpClass(f'op{number}', draw.choice(('compute', 'collective')), 'any', 'F', {}, 0.0, 0.0, 'fp32', '', 0, '',
                   *map(tuple, lists))  # fmt: skip


def random_program(draw):
    """A role whose ops come in any order, each for any micro-batch and copy."""
    counts = draw.randint(1, 8), draw.randint(1, 3), draw.randint(1, 3)
    tensors = [
        Tensor(f't{number}', draw.choice(KINDS), (draw.randint(1, 9),), 'fp32', batch_dim=draw.choice((None, 0)))
        for number in range(draw.randint(1, 6))
    ]
    tensors = [
        Tensor(one.name, one.kind, tuple(size * counts[2] for size in one.shape), 'fp32', batch_dim=one.batch_dim)
        for one in tensors
    ]
    slots = draw.randint(1, 60)
    columns = [np.array([draw.randrange(count) for _ in range(slots)]) for count in counts]
    kinds = np.uint32, np.uint16, np.uint16
    op_class, micro_batch, copy = (column.astype(kind) for column, kind in zip(columns, kinds, strict=True))
    nothing = Csr.counted(np.zeros(slots, dtype=np.int64), np.zeros(0, dtype=np.int64))
    role = Role('all', ('compute',), op_class, micro_batch, copy, copy * 0, nothing, nothing)
    ops = tuple(random_op(draw, number, tensors) for number in range(counts[0]))
    return Program((role,), np.zeros(1, dtype=np.int32), {}, ops, tuple(tensors), *counts[1:])


def both(monkeypatch, of):
    """What numpy finds, and what kernels find."""
    # The package has functions of these names.
    homes = [importlib.import_module(f'simpar.memory.{name}') for name in ('lifetimes', 'changes')]
    found = []
    for started in (False, True):
        for home in homes:
            monkeypatch.setattr(home, 'is_started', lambda started=started: started)
        found.append(of())
    return found


def same(monkeypatch, program, role, **given):
    """Both lives, which are the same to the letter."""
    theirs, mine = both(monkeypatch, lambda: lifetimes(program, role, **given))
    for name in Lifetimes.__dataclass_fields__:
        one, other = getattr(theirs, name), getattr(mine, name)
        np.testing.assert_array_equal(other, one, err_msg=name)
        assert other.dtype == one.dtype, name
    return mine


def test_compiled_lives_are_those_of_numpy(monkeypatch):
    """600 random roles: instances that are freed several times, never, first of all, or written behind their free."""
    loader()
    draw, several, over_the_end, refused, wrong = random.Random(1), 0, 0, 0, 0
    for _ in range(600):
        program = random_program(draw)
        always = draw.choice((('parameter', 'state'), ('parameter', 'state', 'gradient'), ('parameter', 'input')))
        try:
            lives = same(monkeypatch, program, program.roles[0], always=always)
        except ProgramError:
            wrong += 1
            # Kernels refuse what numpy refuses, and leave it to numpy to tell it.
            home = importlib.import_module('simpar.memory.lifetimes')
            refused += home._compiled(program, program.roles[0], frozenset(always)) is None
            continue
        instances = np.unique(np.column_stack((lives.tensor, lives.micro_batch, lives.copy)), axis=0)
        several += len(instances) < len(lives)
        over_the_end += lives.before.any()
    # The draws have what is hard.
    assert several > 50
    assert over_the_end > 50
    assert 20 < refused == wrong


def test_compiled_lifetimes_are_those_of_numpy(monkeypatch):
    """Of random training programs: all columns, and what begins and ends at each slot, at whatever times."""
    loader()
    draw, passing = np.random.default_rng(1), 0
    for seed in range(12):
        _, program = training_case(seed)
        for role in program.roles:
            lives = same(monkeypatch, program, role)
            starts, length, step = np.sort(draw.random(len(role))) * 3, draw.random(len(role)), draw.choice((0.0, 1.5))
            window = Window(starts + step, starts, starts + step + length, step, step)
            found = both(monkeypatch, lambda lives=lives, window=window: changes(lives, lives.bytes, window))
            theirs, mine = (np.array(sorted(zip(*map(np.ndarray.tolist, one), strict=True))) for one in found)
            np.testing.assert_array_equal(mine, theirs)
            passing += len(mine)
    assert passing > 100
