"""Steps of an order of F, I and W, a stage on each rank, by numba: as `simpar.pipeline.clock.run` does them."""

from __future__ import annotations

from typing import Final

from simpar.kernels import Array, kernel

_F: Final = 0
_I: Final = 1
_W: Final = 2


@kernel
def steps(rows: Array, seconds: Array, hops: Array, ends: Array, done: Array, free: Array, last: Array) -> None:
    """When each step ends, into ``last``; −1 where ranks wait for each other for ever.

    Arguments: ``rows``, kinds of actions, shape [ranks, actions]; ``free``, when each rank is free, zeros at first.
    """
    ranks, actions = rows.shape
    for step in range(len(last)):
        for kind in range(3):
            for rank in range(ranks):
                done[kind, rank] = 0
        went, going = 0, True
        while going:
            going = False
            for rank in range(ranks):
                while True:
                    at = done[_F, rank] + done[_I, rank] + done[_W, rank]
                    if at == actions:
                        break
                    kind = rows[rank, at]
                    count, now = done[kind, rank], free[rank]
                    if kind == _F and rank:
                        if count >= done[_F, rank - 1]:
                            break
                        now = max(now, ends[_F, rank - 1, count] + hops[rank - 1])
                    if kind != _F and count >= done[kind - 1, rank]:
                        break
                    if kind == _I and rank + 1 < ranks:
                        if count >= done[_I, rank + 1]:
                            break
                        now = max(now, ends[_I, rank + 1, count] + hops[rank])
                    free[rank] = ends[kind, rank, count] = now + seconds[kind, rank]
                    done[kind, rank] += 1
                    went += 1
                    going = True
        last[step] = -1.0
        if went == ranks * actions:
            for rank in range(ranks):
                last[step] = max(last[step], free[rank])
