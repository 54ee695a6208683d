"""Needs are those of a plain walk over two steps, and no fewer: on random slots and templates, to the pair."""

from dataclasses import dataclass, field

import numpy as np
from every import draws
from hypothesis import given
from hypothesis import strategies as st

from simpar.program import OpClass, Slots, Template, Tensor, derive, instance, named_by, plain_slots, touches_of

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
    touches, count = touches_of(named_by(op_classes, TENSORS.values()), [*TENSORS.values()]), len(slots)
    found, carry = derive(slots, touches, STREAMS)
    assert found.rows() == [tuple(mine) for mine in kept[:count]]
    assert carry.rows() == [tuple(sorted(need for need in mine if need < count)) for mine in kept[count:]]


@draws(120)
@given(rows, op_classes, afters)
def test_needs_are_those_of_a_walk(rows, op_classes, afters):
    rows = [(op % len(op_classes), *place) for op, *place in rows]
    after = sorted({(slot, earlier % slot) for slot, earlier in afters if slot < len(rows)})
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    slots = plain_slots(*columns, np.array(after, dtype=np.int64).reshape(-1, 2))
    compare(slots, op_classes, thin(rows, walk(rows, op_classes, after)))


runs = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, STREAMS - 1), st.integers(0, 1), st.integers(0, 1)),
    min_size=1, max_size=6,
)  # fmt: skip
pairs_of_micro_batches = st.lists(st.integers(0, 3), min_size=2, max_size=2, unique=True)
blocks_of = st.lists(st.tuples(st.integers(0, 99), pairs_of_micro_batches), min_size=1, max_size=14)


def blocks(templates, issued, late):
    """Slots of random templates.

    Arguments: ``late``, (template, slot) that wait for the slot before, if they are not the first of all.
    """
    which = [number % len(templates) for number, _ in issued]
    used = sorted(set(which))
    made = [Template(*np.array(templates[number], dtype=np.int64).T) for number in used]
    slots = Slots(
        made,
        np.array([used.index(number) for number in which]),
        np.array([micro_batches for _, micro_batches in issued]),
        np.zeros((0, 2), dtype=np.int64),
    )
    waits = {(number % len(templates), place) for number, place in late}
    slow = [
        start + place
        for start, number in zip(slots.start.tolist(), which, strict=False)
        for place in range(len(templates[number]))
        if (number, place) in waits and start + place
    ]
    after = np.array([(slot, slot - 1) for slot in slow], dtype=np.int64).reshape(-1, 2)
    return Slots(made, slots.which, slots.micro_batches, after)


def columns(slots):
    """Op class, stream, micro-batch and copy of every slot."""
    of = (lambda template: template.op_class, lambda template: template.stream, lambda template: template.copy)
    op_class, stream, copy = (slots.column(column, np.int64) for column in of)
    return op_class, stream, slots.micro_batch(np.int64), copy


@draws(120)
@given(
    st.lists(runs, min_size=1, max_size=4), op_classes, blocks_of,
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=3),
)  # fmt: skip
def test_needs_of_blocks_are_those_of_a_walk_over_their_slots(templates, op_classes, issued, late):
    templates = [[(op % len(op_classes), *place) for op, *place in run] for run in templates]
    slots = blocks(templates, issued, late)
    rows = [*zip(*(column.tolist() for column in columns(slots)), strict=True)]
    compare(slots, op_classes, thin(rows, walk(rows, op_classes, slots.after.tolist())))
