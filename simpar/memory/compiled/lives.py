"""Kernels over the touches of a role: which instances it has, and the lives of these."""

from __future__ import annotations

from typing import Final

import numpy as np

from simpar.jit import Array, kernel, part
from simpar.memory.touches import BATCHED, GIVEN, HELD, LOADED, ONE, VIEW

HELPERS: Final = 'd08741290bae2600'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""
_NONE: Final = -1
_NEVER: Final = 2**31 - 1
"""A slot behind all, in 32 bits."""


@kernel
def count_cells(
    op_class: Array, micro_batch: Array, copy: Array, start: Array, item: Array, flags: Array, base: Array,
    used: Array, counts: Array,
) -> int:  # fmt: skip
    """Write the first cell of each tensor that slots touch, one for each instance that a role may have.

    Arguments:
        op_class to copy: of slots.
        start, item: what op classes read, write, accumulate to and free, as of ``Program.named``.
        flags: of tensors, as of ``touches``.
        base: of each tensor and one more, -1 at first.
        used: of op classes, nothing at first.
        counts: how many micro-batches, copies and cells there are.
    Returns how many lives there are at most.
    """
    ends, micro_batches, copies = 0, 1, 1
    for slot in range(len(op_class)):
        number = op_class[slot]
        micro_batches, copies = max(micro_batches, micro_batch[slot] + 1), max(copies, copy[slot] + 1)
        ends += start[4 * number + 4] - start[4 * number + 3]
        if not used[number]:
            used[number] = True
            for touch in range(start[4 * number], start[4 * number + 4]):
                base[item[touch]] = 0
    count = 0
    for which in range(len(flags)):
        if base[which] != _NONE:
            base[which] = count
            count += 1 if flags[which] & ONE else micro_batches * copies
    counts[0], counts[1], counts[2] = micro_batches, copies, count
    return count + ends


@part
def _live(
    op_class: Array, micro_batch: Array, copy: Array, start: Array, item: Array, flags: Array, base: Array,
    copies: int, computes: Array, loads: Array, ends: Array, lives: Array,
) -> None:  # fmt: skip
    """Write the lives of all cells, in the order in which they begin; arguments as of ``write_lifetimes``."""
    begun = 0
    for slot in range(len(op_class)):
        number = 4 * op_class[slot]
        since, writes, frees, until = start[number], start[number + 1], start[number + 3], start[number + 4]
        # An op without tensors, as a pure barrier, is done wherever it is issued.
        sliced, shift = since == frees, micro_batch[slot] * copies + copy[slot]
        for touch in range(since, until):
            which = item[touch]
            flag = flags[which]
            sliced |= touch < frees and flag & BATCHED != 0
            cell = base[which] if flag & ONE else base[which] + shift
            at = ends[cell, 1]
            if at == _NONE or lives[at, 3]:
                if at == _NONE:
                    ends[cell, 0] = begun
                else:
                    lives[at, 4] = begun
                at = ends[cell, 1] = begun
                lives[at, 0], lives[at, 2], lives[at, 3], lives[at, 4] = slot, _NEVER, 0, _NONE
                begun += 1
            lives[at, 1] = slot
            if touch >= frees:
                # Only reads hold on to what lives always or, being an input, until its last reader.
                lives[at, 3] = 0 if flag & HELD else 1
            elif touch >= writes and lives[at, 2] == _NEVER:
                lives[at, 2] = slot
        if sliced and loads[micro_batch[slot]] == _NONE and computes[op_class[slot]]:
            loads[micro_batch[slot]] = slot


@kernel
def write_lifetimes(
    op_class: Array, micro_batch: Array, copy: Array, start: Array, item: Array, flags: Array, base: Array,
    copies: int, computes: Array, loads: Array, ends: Array, lives: Array, size: Array, columns: Array,
) -> int:  # fmt: skip
    """Write the columns of ``Lifetimes``; return how many rows there are, -1 where something was never written.

    Arguments:
        op_class to flags, ``base`` as written, and ``copies``: as of ``count_cells``.
        computes: of op classes.
        loads: of each micro-batch the first slot that computes with what is split into micro-batches; -1 at first.
        ends: of each cell its first life and its last one, -1 at first.
        lives: shape [lives, 5]: the first slot, the last, the first that writes or ``_NEVER``, whether the last one
            frees it, the next life of the same cell or -1.
        size: bytes of each tensor.
        columns: shape [8, lives].
    """
    _live(op_class, micro_batch, copy, start, item, flags, base, copies, computes, loads, ends, lives)
    count = 0
    for which in range(len(flags)):
        if base[which] == _NONE:
            continue
        flag = flags[which]
        for number in range(1 if flag & ONE else len(loads) * copies):
            at, last = ends[base[which] + number, 0], ends[base[which] + number, 1]
            before = 0
            # Written behind the last free of a step: in the steady state this is what the first life of the next step
            # begins with.
            stop = last if at != last and not lives[last, 3] else _NONE
            if stop != _NONE and lives[stop, 2] != _NEVER:
                lives[at, 2], before = lives[stop, 2], 1
            while at != stop:
                first, end, write, freed = lives[at, 0], lives[at, 1], lives[at, 2], lives[at, 3]
                if write == _NEVER and (freed or not flag & GIVEN):
                    return _NONE
                # A view was checked like all tensors, and takes no memory.
                if not flag & VIEW:
                    columns[0, count] = which
                    columns[1, count] = _NONE if flag & ONE else number // copies
                    columns[2, count] = _NONE if flag & ONE else number % copies
                    columns[3, count] = size[which]
                    columns[4, count] = _NONE if write == _NEVER else write
                    if flag & LOADED:
                        load = loads[number // copies]
                        columns[5, count] = first if load == _NONE else min(load, first)
                        columns[6, count] = end
                    else:
                        # What nobody frees stays allocated through all steps.
                        columns[5, count] = write if freed else _NONE
                        columns[6, count] = end if freed else _NONE
                    columns[7, count] = before
                    count += 1
                at, before = lives[at, 4], 0
    return count


@part
def _folded(time: float, step: float) -> tuple[float, float]:
    """A time as (which step, seconds from its begin), as ``fold`` has it."""
    if step <= 0:
        return 0.0, 0.0
    which = np.floor(time / step)
    rest = time - which * step
    if rest >= step:
        which += 1.0
    elif rest < 0:
        which -= 1.0
    return which, time - which * step


@kernel
def write_changes(
    size: Array, begin: Array, end: Array, before: Array, starts: Array, earlier: Array, ends: Array, window: Array,
    sums: Array, there: Array, times: Array, change: Array,
) -> int:  # fmt: skip
    """Write the times at which what is held grows or shrinks, and by how much; return how many there are.

    Arguments: size to before: as of ``Lifetimes``. starts to ends: as of ``Window``. ``window``, its begin
    and its step. ``sums`` and ``there``: shape [slots, 3], of what begins here and in the step before, and of what
    ends; bytes, and whether there are any; nothing at first.
    """
    held = 0
    for life in range(len(size)):
        if end[life] == _NONE:
            held += size[life]
            continue
        row = 1 if before[life] else 0
        sums[begin[life], row] += size[life]
        sums[end[life], 2] += size[life]
        there[begin[life], row] = there[end[life], 2] = True
    count = 1
    for slot in range(len(starts)):
        for row in range(3):
            if there[slot, row]:
                time = ends[slot] if row == 2 else earlier[slot] if row else starts[slot]
                which, times[count] = _folded(time - window[0], window[1])
                change[count] = -sums[slot, row] if row == 2 else sums[slot, row]
                # What lives over the end of the step is there at its begin.
                held -= int(which) * change[count]
                count += 1
    times[0], change[0] = 0.0, held
    return count
