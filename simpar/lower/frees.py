"""Frees: an activation ends with the last op of its copy that reads it, so that memory is known and reuse is checked.

A free must wait for all readers. Where a collective and a computation read the same tensor, the free moves on to the
computation that waits for that collective anyway. So frees never add a need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from simpar.program import OpClass, Tensor

_Life = tuple[int, list[int]]
"""A tensor from an op that writes it anew to the next that does so: the op that begins it, and those that read it."""


def add_frees(ops: Sequence[OpClass], tensors: Mapping[str, Tensor], elsewhere: Collection[str] = ()) -> list[OpClass]:
    """The same ops, each freeing the activations that no later one of its copy reads; the loss stays.

    An op that writes a tensor without reading it begins a new life of it: before, the tensor may be gone.
    Arguments: ``ops`` of one copy in issue order; ``elsewhere``, what other stages of the rank read, and end.
    """
    lives = _lives(ops)
    ends: dict[int, list[str]] = {}
    for name, mine in lives.items():
        if tensors[name].kind == 'activation' and name != 'loss' and name not in elsewhere:
            for place, (first, readers) in enumerate(mine):
                # Most are read once, and end there.
                end = readers[0] if len(readers) == 1 else _end(ops, lives, mine, place) if readers else first
                ends.setdefault(end, []).append(name)
    return [op.freeing((*op.frees, *ends[i])) if i in ends else op for i, op in enumerate(ops)]


def _lives(ops: Sequence[OpClass]) -> dict[str, list[_Life]]:
    """The lives of every tensor, in order."""
    lives: dict[str, list[_Life]] = {}
    for index, op in enumerate(ops):
        reads = op.reads
        for name in reads if len(reads) < 2 else dict.fromkeys(reads):
            mine = lives.get(name)
            if mine is None:
                lives[name] = [(index, [index])]
            else:
                mine[-1][1].append(index)
        # Written without being read: a new life. Read and written, as an in-place sum, it lives on.
        for name in op.writes:
            if name not in reads:
                lives.setdefault(name, []).append((index, []))
    return lives


def _end(ops: Sequence[OpClass], lives: Mapping[str, Sequence[_Life]], mine: Sequence[_Life], place: int) -> int:
    """The op that may end a life, one of a tensor's: its last reader, or the computation that waits for it."""
    readers = mine[place][1]
    collectives = [index for index in readers if ops[index].kind != 'compute']
    # Computations alone are in stream order; of collectives alone the last must wait for the others anyway.
    if not collectives or len(collectives) == len(readers):
        return max(readers)
    found = [_first_reader(lives.get(name, ()), index) for index in collectives for name in ops[index].writes]
    end = max([*readers, *(index for index in found if index is not None)])
    # The op that waits may come after the tensor is written anew; it must not free that.
    until = mine[place + 1][0] if place + 1 < len(mine) else len(ops)
    # Where W is apart it comes behind the send, which may then not end what W reads.
    late = ops[end].kind == 'send' and any(ops[index].phase == 'W' for index in readers)
    return end if end < until and not late else max(readers)


def _first_reader(lives: Sequence[_Life], writer: int) -> int | None:
    """The first op that reads what ``writer`` wrote."""
    return next((readers[0] for first, readers in lives if first == writer and readers), None)
