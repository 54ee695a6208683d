"""Kernels over the touches of a role: which instances it has, and the lives of these."""

from __future__ import annotations

from typing import Final

from simpar.jit import Array, kernel
from simpar.memory.touches import FREE, WRITE

HELPERS: Final = 'c2ca1a8d1f7409ff'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""
_NONE: Final = -1


@kernel
def count_cells(
    op_class: Array, start: Array, tensor: Array, does: Array, one: Array, each: int, uses: Array, base: Array
) -> int:
    """Write the first cell of each tensor that slots touch, and behind all how many cells there are.

    Arguments: ``op_class`` of slots. start to one: as of ``Table``. ``each``, the cells of a tensor that is there for
    every micro-batch and copy. ``uses`` of each op class, zeros at first. ``base``, -1 at first.
    Returns how many lives there are at most.
    """
    for slot in range(len(op_class)):
        uses[op_class[slot]] += 1
    ends = 0
    for number in range(len(uses)):
        if uses[number]:
            for touch in range(start[number], start[number + 1]):
                base[tensor[touch]] = 0
                ends += uses[number] if does[touch] == FREE else 0
    count = 0
    for number in range(len(one)):
        if base[number] != _NONE:
            base[number] = count
            count += 1 if one[number] else each
    base[len(one)] = count
    return count + ends


@kernel
def write_lives(
    op_class: Array, number: Array, start: Array, tensor: Array, does: Array, one: Array, held: Array, base: Array,
    head: Array, life: Array, following: Array, first: Array, last: Array, write: Array, freed: Array, lives: Array,
    copies: int, never: int,
) -> int:  # fmt: skip
    """Write the lives of all cells, those of a cell in order; return how many there are.

    What is written behind the last free of a step is joined to the first life.
    Arguments:
        number: of the micro-batch and copy of slots.
        start to held: as of ``Table``.
        base: as written by ``count_cells``.
        head, life: of each cell, its first life and the one under way, -1 at first.
        following to freed: what lives are, in the order in which they begin.
        lives: shape [8, lives], columns as of ``Parts``.
        never: a slot behind all.
    """
    begun = 0
    for slot in range(len(op_class)):
        for touch in range(start[op_class[slot]], start[op_class[slot] + 1]):
            which = tensor[touch]
            cell = base[which] if one[which] else base[which] + number[slot]
            at = life[cell]
            if at == _NONE or freed[at]:
                if at == _NONE:
                    head[cell] = begun
                else:
                    following[at] = begun
                at = life[cell] = begun
                first[at], write[at], freed[at], following[at] = slot, never, False, _NONE
                begun += 1
            last[at] = slot
            if does[touch] == WRITE:
                write[at] = min(write[at], slot)
            elif does[touch] == FREE and not held[which]:
                freed[at] = True
    done = 0
    for which in range(len(one)):
        if base[which] == _NONE:
            continue
        end = which + 1
        while base[end] == _NONE:
            end += 1
        for cell in range(base[which], base[end]):
            at, opens = head[cell], done
            while at != _NONE:
                if not freed[at] and done > opens:
                    # Written behind the last free of a step: in the steady state this is what the first life of the
                    # next step begins with.
                    if write[at] != never:
                        lives[5, opens] = write[at]
                        lives[7, opens] = 1
                    break
                lives[0, done] = which
                lives[1, done] = (cell - base[which]) // copies
                lives[2, done] = (cell - base[which]) % copies
                lives[3, done], lives[4, done], lives[5, done] = first[at], last[at], write[at]
                lives[6, done], lives[7, done] = freed[at], 0
                done += 1
                at = following[at]
    return done


@kernel
def write_lifetimes(
    tensor: Array, micro_batch: Array, copy: Array, first: Array, last: Array, write: Array, freed: Array,
    before: Array, given: Array, view: Array, loaded: Array, one: Array, size: Array, loads: Array, columns: Array,
    late: Array, never: int,
) -> int:  # fmt: skip
    """Write the columns of ``Lifetimes``; return how many rows there are, -1 where something was never written.

    Arguments:
        tensor to before: as of ``Parts``.
        given to size: of tensors: whether they are there unwritten, are views, begin with a micro-batch, are there once
            for all; and their bytes.
        loads: of each micro-batch its first slot.
        columns: shape [7, lives]; ``late``, the last column, ``before``.
        never: a slot behind all.
    """
    count = 0
    for life in range(len(tensor)):
        number = tensor[life]
        if write[life] == never and (freed[life] or not given[number]):
            return _NONE
        if view[number]:
            continue
        begin, end = write[life], last[life]
        if loaded[number]:
            begin = min(loads[micro_batch[life]], first[life])
        elif not freed[life]:
            begin, end = _NONE, _NONE
        columns[0, count] = number
        columns[1, count] = _NONE if one[number] else micro_batch[life]
        columns[2, count] = _NONE if one[number] else copy[life]
        columns[3, count] = size[number]
        columns[4, count] = _NONE if write[life] == never else write[life]
        columns[5, count] = begin
        columns[6, count] = end
        late[count] = before[life]
        count += 1
    return count


@kernel
def sum_by_slot(size: Array, begin: Array, end: Array, before: Array, sums: Array, there: Array) -> int:
    """Write the bytes that begin at each slot of this step and of the one before, and those that end; return the rest.

    Arguments: size to before: as of ``Lifetimes``. ``sums`` and ``there``: shape [3, slots], of what begins here and
    in the step before, and of what ends; bytes, and whether there are any; nothing at first.
    """
    always = 0
    for life in range(len(size)):
        if end[life] == _NONE:
            always += size[life]
            continue
        row = 1 if before[life] else 0
        sums[row, begin[life]] += size[life]
        there[row, begin[life]] = True
        sums[2, end[life]] += size[life]
        there[2, end[life]] = True
    return always
