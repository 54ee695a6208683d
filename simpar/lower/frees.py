"""Frees: an activation ends with the last op of its copy that reads it, so that memory is known and reuse is checked.

A free must wait for all readers. Where a collective and a computation read the same tensor, the free moves on to the
computation that waits for that collective anyway. So frees never add a need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from simpar.program import OpClass, Tensor


@dataclass(slots=True, eq=False)
class _Life:
    """A tensor from an op that writes it anew to the next that does so.

    Arguments: ``first`` and ``last`` op that touches it; ``until``, the op that writes it anew, or their number.
    """

    first: int
    last: int
    until: int
    readers: list[int] = field(default_factory=list)


def add_frees(ops: Sequence[OpClass], tensors: Mapping[str, Tensor], elsewhere: Collection[str] = ()) -> list[OpClass]:
    """The same ops, each freeing the activations that no later one of its copy reads; the loss stays.

    An op that writes a tensor without reading it begins a new life of it: before, the tensor may be gone.
    Arguments: ``ops`` of one copy in issue order; ``elsewhere``, what other stages of the rank read, and end.
    """
    lives = _lives(ops)
    ends: dict[int, list[str]] = {}
    for name, mine in lives.items():
        if tensors[name].kind == 'activation' and name != 'loss' and name not in elsewhere:
            for life in mine:
                ends.setdefault(_end(ops, lives, life), []).append(name)
    return [op.freeing((*op.frees, *ends[i])) if i in ends else op for i, op in enumerate(ops)]


def _lives(ops: Sequence[OpClass]) -> dict[str, list[_Life]]:
    """The lives of every tensor, in order."""
    lives: dict[str, list[_Life]] = {}
    for index, op in enumerate(ops):
        for name in dict.fromkeys((*op.reads, *op.writes)):
            mine, reads = lives.setdefault(name, []), name in op.reads
            # Written without being read: a new life. Read and written, as an in-place sum, it lives on.
            if not mine or not reads:
                if mine:
                    mine[-1].until = index
                mine.append(_Life(index, index, len(ops)))
            life = mine[-1]
            life.last = index
            if reads:
                life.readers.append(index)
    return lives


def _end(ops: Sequence[OpClass], lives: Mapping[str, Sequence[_Life]], life: _Life) -> int:
    """The op that may end a life: its last reader, or the computation that waits for it."""
    readers = life.readers or [life.last]
    collectives = [index for index in readers if ops[index].kind != 'compute']
    # Computations alone are in stream order; of collectives alone the last must wait for the others anyway.
    if not collectives or len(collectives) == len(readers):
        return max(readers)
    found = [_first_reader(lives.get(name, ()), index) for index in collectives for name in ops[index].writes]
    end = max([*readers, *(index for index in found if index is not None)])
    # The op that waits may come after the tensor is written anew; it must not free that.
    # Where W is apart it comes behind the send, which may then not end what W reads.
    late = ops[end].kind == 'send' and any(ops[index].phase == 'W' for index in readers)
    return end if end < life.until and not late else max(readers)


def _first_reader(lives: Sequence[_Life], writer: int) -> int | None:
    """The first op that reads what ``writer`` wrote."""
    return next((life.readers[0] for life in lives if life.first == writer and life.readers), None)
