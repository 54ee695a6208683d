"""Samples: items in shuffled orders on one set of ranks, warm-ups dropped, every repeat kept."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.bench.item import Item, program_of
from executor.bench.ranks import Timed, Timer
from simpar.trace import Times

WARM_UP = 2
"""Steps of every run that do not count."""
QUIET = 0.02
TICK = 5e-6
"""Wall time may exceed CPU time by this share, or by so many seconds of reading clocks."""
ENOUGH = 8
QUICKEST: Final = 0.25
"""The share of steps that is quick: where they scatter normally, its mean is their 10th percentile."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Repeats of one item on all ranks: seconds by the clock and of CPU time.

    Arguments: ``quick``, the mean by the clock over the steps in which all items together were quickest; 0: not known.
    """

    wall: Times
    cpu: Times
    quick: float = 0.0

    @property
    def quiet(self) -> NDArray[np.bool_]:
        """Which repeats had the processor to themselves: hardly longer than their CPU time."""
        return self.wall - self.cpu < np.maximum(QUIET * self.wall, TICK)

    @property
    def kept(self) -> Samples:
        """The quiet repeats, as far as there are enough; all of them otherwise."""
        # A quantile over a handful of repeats would be worse than one over disturbed ones.
        return Samples(self.wall[self.quiet], self.cpu[self.quiet]) if self.quiet.sum() >= ENOUGH else self


def sample(
    pool: Timer, items: Sequence[Item], orders: int, trials: int, seed: int, said: Callable[[], None] = lambda: None
) -> list[Samples]:
    """Run all items ``orders`` × ``trials`` times on every rank, one after the other without a pause.

    Arguments:
        orders: how many shuffled orders there are.
        trials: how many steps of each order count.
        said: called after each order.
    """
    shuffled, found = random.Random(seed), defaultdict[str, list[tuple[Times, Times]]](list)
    for _ in range(orders):
        # A new order each time: what ran before an op leaves caches in another state, and drift must not favour one
        # item.
        order = list(items)
        shuffled.shuffle(order)
        run = pool.timed(program_of(order, pool.world), WARM_UP + trials)
        for name, wall, cpu in seconds_by_op(run):
            found[name].append((wall, cpu))
        said()
    walls, cpus = ([np.concatenate([pair[which] for pair in found[item.name]]) for item in items] for which in (0, 1))
    # Repeats are [orders, ranks, steps], one behind the other.
    by_step = [wall.reshape(orders, -1, trials).mean(1).ravel() for wall in walls]
    first = quickest(np.sum(by_step, axis=0))
    means = [float(seconds[first].mean()) for seconds in by_step]
    return [Samples(*one) for one in zip(walls, cpus, means, strict=True)]


def quickest(totals: Times) -> NDArray[np.int64]:
    """Which steps are quick, by what each took."""
    return np.argsort(totals)[: max(1, round(QUICKEST * len(totals)))]


def seconds_by_op(run: Timed) -> list[tuple[str, Times, Times]]:
    """Op class, seconds from start to end and CPU seconds of every slot, over steps that count and all ranks.

    CPU seconds are those of the op's thread for compute, of the whole process for communication.
    """
    role = run.trace.program.role(0)
    representatives = run.trace.representatives
    # From start, not arrival: the wait for peers is not the op's own time.
    wall_RKS = np.array([rank_times.end_KS - rank_times.start_KS for rank_times in representatives])[:, WARM_UP:]
    ops = [run.trace.program.op(role, slot) for slot in range(len(role))]
    computes = np.array([op.kind == 'compute' for op in ops])
    cpu_RKS = np.where(computes, run.thread_RKS, run.process_RKS)[:, WARM_UP:]
    return [(op.name, wall_RKS[:, :, slot].ravel(), cpu_RKS[:, :, slot].ravel()) for slot, op in enumerate(ops)]
