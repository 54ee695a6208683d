"""Lives of tensors, in whatever order ops touch them: as a walk with a dictionary finds them."""

import math
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from training_cases import training_case

from simpar.errors import ProgramError
from simpar.memory.lifetimes import Window, changes, lifetimes
from simpar.program import (
    KINDS,
    PER_RANK,
    Csr,
    OpClass,
    Program,
    Role,
    Slots,
    Tensor,
    derive,
    instance,
    is_batched,
    named_by,
)

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


@dataclass
class Life:
    """From the first touch of an instance to the one that frees it."""

    first: int
    last: int = -1
    write: int | None = None
    freed: bool = False
    before: int = 0


class Walk:
    """The lives of a role's instances, found slot after slot."""

    def __init__(self, program, role, always):
        self.program, self.always = program, always
        self.lives, self.loads = {}, {}
        for slot in range(len(role)):
            self.touch(program.op(role, slot), slot, int(role.micro_batch[slot]), int(role.copy[slot]))

    def touch(self, op, slot, micro_batch, copy):
        """What an op does, in the order of reads, writes and frees."""
        touched = [self.program.tensor[name] for name in (*op.reads, *op.writes, *op.accumulates)]
        if op.kind == 'compute' and (any(map(is_batched, touched)) or not (touched or op.frees)):
            self.loads.setdefault(micro_batch, slot)
        for place, names in enumerate((op.reads, op.writes, op.accumulates, op.frees)):
            for name in names:
                kind = self.program.tensor[name].kind
                lives = self.lives.setdefault((name, *((-1, -1) if kind in PER_RANK else (micro_batch, copy))), [])
                if not lives or lives[-1].freed:
                    lives.append(Life(slot))
                lives[-1].last = slot
                if place in (1, 2) and lives[-1].write is None:
                    lives[-1].write = slot
                # What lives always, and inputs, nobody frees.
                lives[-1].freed |= place == 3 and kind not in self.always and kind != 'input'

    def rows(self):
        """Tensor, micro-batch, copy, bytes, writer, begin, end and before of each life; raises ``ProgramError``."""
        found = []
        for number, tensor in enumerate(self.program.tensors):
            for key in sorted(key for key in self.lives if key[0] == tensor.name):
                lives = self.lives[key]
                # Written behind the last free of a step: what the first life of the next step begins with.
                if len(lives) > 1 and not lives[-1].freed:
                    rest = lives.pop()
                    if rest.write is not None:
                        lives[0].write, lives[0].before = rest.write, 1
                for life in lives:
                    if life.write is None and (life.freed or tensor.kind not in GIVEN):
                        raise ProgramError(f'nothing has written {tensor.name}')
                    begin, end = (life.write, life.last) if life.freed else (-1, -1)
                    if tensor.kind == 'input' and 'input' not in self.always:
                        begin, end = min(self.loads.get(key[1], life.first), life.first), life.last
                    writer = -1 if life.write is None else life.write
                    row = (number, *key[1:], self.program.local_bytes(tensor), writer, begin, end, life.before)
                    found += [row] * (tensor.kind != 'view')
        return found


def rows_of(lives):
    columns = (lives.tensor, lives.micro_batch, lives.copy, lives.bytes, lives.writer, lives.begin, lives.end)
    return [*zip(*(column.tolist() for column in (*columns, lives.before.astype(int))), strict=True)]


def test_lives_are_those_of_a_walk():
    """600 random roles: instances that are freed several times, never, first of all, or written behind their free."""
    draw, several, over_the_end, wrong = random.Random(1), 0, 0, 0
    for _ in range(600):
        program = random_program(draw)
        always = draw.choice((('parameter', 'state'), ('parameter', 'state', 'gradient'), ('parameter', 'input')))
        walk = Walk(program, program.roles[0], always)
        try:
            expected = walk.rows()
        except ProgramError:
            wrong += 1
            with pytest.raises(ProgramError, match=r'reads or frees t\d+, which nothing has written'):
                lifetimes(program, program.roles[0], always=always)
            continue
        assert rows_of(lifetimes(program, program.roles[0], always=always)) == expected
        several += len({row[:3] for row in expected}) < len(expected)
        over_the_end += any(row[-1] for row in expected)
    # The draws have what is hard.
    assert several > 50
    assert over_the_end > 50
    assert wrong > 20


def test_lives_of_training_programs_change_what_is_held_as_a_walk_says():
    """All columns, and what begins and ends at each slot, at whatever times."""
    draw = np.random.default_rng(1)
    for seed in range(12):
        _, program = training_case(seed)
        for role in program.roles:
            lives = lifetimes(program, role)
            assert rows_of(lives) == Walk(program, role, ('parameter', 'state')).rows()
            starts, length, step = np.sort(draw.random(len(role))) * 3, draw.random(len(role)), draw.choice((0.0, 1.5))
            window = Window(starts + step, starts, starts + step + length, step, step)
            times, change = changes(lives, lives.bytes, window)
            assert sorted(zip(times.tolist(), change.tolist(), strict=True)) == sorted(changed(lives, window))


def changed(lives, window):
    """Times, and by how much what is held grows with each, one slot and side after the other."""
    sides = {'begin': window.starts, 'before': window.earlier, 'end': window.ends}
    sums, held = {}, 0
    for size, begin, end, before in zip(lives.bytes, lives.begin, lives.end, lives.before, strict=True):
        if end < 0:
            held += int(size)
            continue
        for key, sign in ((('before' if before else 'begin', int(begin)), 1), (('end', int(end)), -1)):
            sums[key] = sums.get(key, 0) + sign * int(size)
    for (side, slot), change in sums.items():
        which, _ = divided(sides[side][slot] - window.begin, window.step)
        held -= which * change
    rest = [
        (divided(sides[side][slot] - window.begin, window.step)[1], change) for (side, slot), change in sums.items()
    ]
    return [(0.0, held), *rest]


def divided(time, step):
    """In which step a time is, and seconds from its begin."""
    if step <= 0:
        return 0, 0.0
    which = math.floor(time / step)
    which += int(time - which * step >= step) - int(time - which * step < 0)
    return which, time - which * step


# Needs are those of a plain walk over two steps, and no fewer: on random slots and templates, to the pair


STREAMS = 4
TENSORS = {
    name: Tensor(name, kind, (1,), 'fp32')
    for name, kind in [('w', 'parameter'), ('dw', 'gradient'), *((name, 'activation') for name in 'abcd')]
}
names = st.lists(st.sampled_from(sorted(TENSORS)), max_size=3, unique=True).map(tuple)
op_classes = st.lists(
    st.builds(
        OpClass, name=st.just('op'), kind=st.just('compute'), operator=st.just('op'), phase=st.just('F'),
        reads=names, writes=names, accumulates=names, frees=names,
    ),
    min_size=1, max_size=5,
)  # fmt: skip
rows = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, STREAMS - 1), st.integers(0, 2), st.integers(0, 1)), max_size=25
)
afters = st.lists(st.tuples(st.integers(1, 99), st.integers(0, 99)), max_size=4)


@dataclass
class History:
    """Who last changed a tensor, and who has read it since."""

    writer: int = -1
    readers: list[int] = field(default_factory=list)


def touch(position, row, op, history):
    """The slots that this one must come after, as the definition says it; records what it does."""
    before = set()
    changed = (*op.writes, *op.accumulates, *op.frees)
    keys = {name: instance(TENSORS[name], *row[2:]) for name in (*op.reads, *changed)}
    for name in op.reads:
        past = history.setdefault(keys[name], History())
        before.add(past.writer)
        past.readers.append(position)
    for name in changed:
        past = history.setdefault(keys[name], History())
        before.update([past.writer, *past.readers])
    history.update({keys[name]: History(writer=position) for name in changed})
    return before - {-1, position}


def walk(rows, op_classes, after):
    """Every pair (slot, slot that it must come after) of two steps in a row; needs of a slot, not yet thinned."""
    history = {}
    wanted = []
    for position in range(2 * len(rows)):
        step, slot = divmod(position, len(rows))
        before = touch(position, rows[slot], op_classes[rows[slot][0]], history)
        wanted.append(before | {step * len(rows) + earlier for later, earlier in after if later == slot})
    return wanted


def thin(rows, wanted):
    """The needs that neither stream order nor another need implies: those of which no other's past has them."""
    count = len(rows)
    kept, past = [], []
    for position, before in enumerate(wanted):
        same_stream = [p for p in range(position) if rows[p % count][1] == rows[position % count][1]]
        known = set().union(*(past[p] | {p} for p in same_stream))
        mine = []
        for need in sorted(before, reverse=True):
            if need not in known:
                known |= past[need] | {need}
                mine.append(need)
        kept.append(mine)
        past.append(known)
    return kept


def compare(slots, op_classes, kept):
    """The needs are those that a walk over two steps keeps."""
    named, count = named_by(op_classes, TENSORS.values()), len(slots)
    found, carry = derive(slots, named, np.array([one.kind in PER_RANK for one in TENSORS.values()]), STREAMS)
    assert found.rows() == [tuple(mine) for mine in kept[:count]]
    assert carry.rows() == [tuple(sorted(need for need in mine if need < count)) for mine in kept[count:]]


@draws(120)
@given(rows, op_classes, afters)
def test_needs_are_those_of_a_walk(rows, op_classes, afters):
    rows = [(op % len(op_classes), *place) for op, *place in rows]
    after = sorted({(slot, earlier % slot) for slot, earlier in afters if slot < len(rows)})
    op_class, stream, micro_batch, copy = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    slots = Slots.of(op_class, micro_batch, copy, stream, np.array(after, dtype=np.int64).reshape(-1, 2))
    compare(slots, op_classes, thin(rows, walk(rows, op_classes, after)))
