"""Kernels that say what rows will name: the same as ``references`` says in numpy."""

from __future__ import annotations

from typing import Final

from simpar.jit import Array, kernel, part

HELPERS: Final = 'd08741290bae2600'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""
_NONE: Final = -1
_NOWHERE: Final = 2**40


@part
def _away(own: int, other: int) -> int:
    """How many layers behind one a row stands that it names."""
    return _NOWHERE if min(own, other) == _NONE else other - own


@kernel
def look(
    start: Array, item: Array, each: int, own: Array, model: Array, to_key: Array, to_layer: Array,
    layers: int, edge: int, more: int, near: int, unlike: Array, key: Array, layer: Array, moves: Array, of_all: Array,
    last: Array,
) -> int:  # fmt: skip
    """Write what lists name as seen from their rows; return -1 where ``references`` tells what is wrong, else 0.

    Arguments:
        start, item: as of ``Csr``, so many lists ``each`` row.
        own, model: of the naming table, layers and as of ``Table``. ``to_key``, ``to_layer``: of the other one.
        layers to more: as of ``Layers``.
        unlike: of rows; ``of_all``, of lists, both not at first.
        key, layer, moves: of items, the layer as it will be unless it moves with the row.
        last: of each key the list that named it last in a far layer, -1 at first.
    """
    cut = layers // 2 - 1
    for row in range(len(own)):
        mine, like = own[row], model[row]
        core = edge <= mine < layers - edge
        for one in range(each):
            begin, end = start[row * each + one], start[row * each + one + 1]
            other = start[like * each + one]
            if like != row and end - begin != start[like * each + one + 1] - other:
                unlike[row] = True
            for place in range(begin, end):
                named = item[place]
                far = to_layer[named]
                away = _away(mine, far)
                key[place], moves[place] = to_key[named], abs(away) <= near
                layer[place] = far + more if not moves[place] and far > cut else far
                if core and far != _NONE and not moves[place]:
                    return _NONE
                if not moves[place] and edge <= far < layers - edge:
                    if last[key[place]] == row * each + one:
                        if mine != _NONE:
                            return _NONE
                        of_all[row * each + one] = True
                    last[key[place]] = row * each + one
                if like != row and not unlike[row]:
                    model_of = item[other + place - begin]
                    if to_key[model_of] != key[place] or _away(own[like], to_layer[model_of]) != away:
                        unlike[row] = True
        if core and unlike[row]:
            return _NONE
        if (like == row or unlike[row]) and not core:
            for place in range(start[row * each], start[(row + 1) * each]):
                if moves[place] and (mine > cut) != (to_layer[item[place]] > cut):
                    return _NONE
    return 0


@kernel
def stamp(
    start: Array, key: Array, layer: Array, moves: Array, each: int, source: Array, shift: Array, at: Array,
    start_to_be: Array, item_to_be: Array, way: int,
) -> int:  # fmt: skip
    """Write the lists of rows to be; return how many items there are, -1 where ``references`` tells what is wrong.

    Arguments:
        start to moves: lists and their items, as ``look`` has written them.
        source, shift: as of ``Table``, of the naming table; ``at``, of the other one.
        way: items of a list are put in order, 1 where they rise, -1 where they fall; 0, they keep theirs.
    """
    count, most = 0, at.shape[1] - 1
    for row in range(len(source)):
        for one in range(each):
            begin = start[source[row] * each + one]
            start_to_be[row * each + one] = count
            for place in range(begin, start[source[row] * each + one + 1]):
                own = layer[place]
                if moves[place]:
                    own += shift[row]
                if own < _NONE or own > most:
                    return _NONE
                found = at[key[place], own if own != _NONE else most]
                if found == _NONE:
                    return _NONE
                # Lists that are put in order are short: they have an item for each stream at most.
                last, first = count, start_to_be[row * each + one]
                while way != 0 and last > first and way * item_to_be[last - 1] > way * found:
                    item_to_be[last] = item_to_be[last - 1]
                    last -= 1
                item_to_be[last] = found
                count += 1
    start_to_be[len(source) * each] = count
    return count
