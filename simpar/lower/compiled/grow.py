"""The kernel that grows the rows of a table: the same as ``period`` and ``layered`` say in numpy."""

from __future__ import annotations

from typing import Final

from simpar.jit import Array, kernel, part

HELPERS: Final = 'd08741290bae2600'
"""Of the files without this line, as a test says it: numba's cache on disk looks at a kernel's own file alone."""
_NONE: Final = -1


@part
def _end(place: Array, key: int, begin: int, end: int, way: int, step: int) -> int:
    """The last row of a key that follows those before it by its step, from a layer on up or down."""
    found: int = place[key, begin]
    for layer in range(begin + way, end, way):
        if place[key, layer] == _NONE or place[key, layer] != found + way * step:
            break
        found = place[key, layer]
    return found


@part
def _period(place: Array, key: int, layers: int, edge: int, steps: Array) -> int:
    """Write the step of a key that goes through the layers, and return its first row; -1 where layers are uneven."""
    cut = layers // 2 - 1
    step = place[key, cut + 1] - place[key, cut]
    for layer in range(edge, layers - edge):
        if place[key, layer] == _NONE or (layer > edge and place[key, layer] - place[key, layer - 1] != step):
            return _NONE
    steps[key] = step
    if step > 0:
        return _end(place, key, cut, _NONE, -1, step)
    return _end(place, key, cut + 1, layers, 1, step)


@kernel
def grow(
    key: Array, layer: Array, layers: int, edge: int, more: int, place: Array, model: Array, steps: Array,
    first_key: Array, begins: Array, windows: Array, key_to_be: Array, layer_to_be: Array, at: Array, source: Array,
    shift: Array,
) -> int:  # fmt: skip
    """Write what ``Table`` says of rows; return how many rows there will be, -1 where ``period`` tells what is wrong.

    Arguments:
        key, layer: of rows; ``layers`` to ``more``: as of ``Layers``.
        place to shift: as of ``Table``; ``place`` and ``at`` -1 at first; of rows to be there is room for all keys.
        steps: of each key the rows from one layer to the next, 0 at first.
        first_key: of each row the key that begins there, -1 at first.
        begins: of each key the first row of its period.
        windows: shape [2, keys], of each period its first row and its length.
    """
    rows, keys, cut, total = len(key), place.shape[0], layers // 2 - 1, layers + more
    for row in range(rows):
        column = layer[row] if layer[row] != _NONE else layers
        if place[key[row], column] != _NONE:
            return _NONE
        place[key[row], column] = row
    for row in range(rows):
        model[row] = row
        if layer[row] != _NONE and place[key[row], cut] != _NONE:
            model[row] = place[key[row], cut]
    for one in range(keys):
        begins[one] = 0
        if place[one, cut] == _NONE and place[one, cut + 1] == _NONE:
            for column in range(edge, layers - edge):
                if place[one, column] != _NONE:
                    return _NONE
        else:
            first = _period(place, one, layers, edge, steps)
            if first == _NONE:
                return _NONE
            first_key[first] = one
    # Periods, in the order of their rows: as many keys as a period is long, one at each place of it.
    count, row, done = 0, 0, 0
    while row < rows:
        if first_key[row] == _NONE:
            row += 1
            continue
        step = steps[first_key[row]]
        length, begin, own = abs(step), _NONE, 0
        # Which keys a period has: those with the next first rows.
        start = row
        while row < rows and own < length:
            if first_key[row] != _NONE:
                own += 1
                begin = row
                if steps[first_key[row]] != step:
                    return _NONE
            row += 1
        if own < length or begin < done:
            return _NONE
        for place_of_it in range(length):
            # Not yet known to be there.
            shift[place_of_it] = 0
        for other in range(start, begin + 1):
            one = first_key[other]
            if one == _NONE:
                continue
            if shift[other % length]:
                return _NONE
            shift[other % length] = 1
            last = _end(place, one, cut + 1, layers, 1, step)
            if step < 0:
                last = _end(place, one, cut, _NONE, -1, step)
            if last < begin + length:
                return _NONE
            begins[one] = begin
        windows[0, count], windows[1, count] = begin, length
        count += 1
        done = begin + length
    # Rows to be: each period so many times more.
    made, done = 0, 0
    for number in range(count + 1):
        begin = windows[0, number] if number < count else rows
        length = windows[1, number] if number < count else 0
        for row in range(done, begin):
            source[made] = row
            shift[made] = 0
            made += 1
        for passed in range(more + 1):
            for row in range(begin, begin + length):
                source[made] = row
                shift[made] = passed
                made += 1
        done = begin + length
    for row in range(made):
        old = source[row]
        one, passed = key[old], shift[row]
        step, own = steps[one], layer[old]
        if step == 0:
            own = own + more if own > cut else own
        else:
            if old < begins[one]:
                passed = 0
            elif old >= begins[one] + abs(step):
                passed = more
            own += passed if step > 0 else more - passed
        key_to_be[row], layer_to_be[row] = one, own
        if own < _NONE or own >= total:
            return _NONE
        column = own if own != _NONE else total
        if at[one, column] != _NONE:
            return _NONE
        at[one, column] = row
        like = layers
        if own != _NONE:
            like = min(own, cut) + max(own - cut - more, 0)
        source[row] = place[one, like]
        if source[row] == _NONE:
            return _NONE
        shift[row] = own - layer[source[row]] if own != _NONE else 0
    return made
