"""What the search of zero-bubble orders asks kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simpar.pipeline.clock import StageTimes
from simpar.pipeline.compiled.greedy import shortlist as _shortlist
from simpar.pipeline.compiled.steps import steps as _steps
from simpar.pipeline.greedy import Letters, Rule, Setting

_LETTERS: Final = np.frombuffer(b'FIW', dtype=np.uint8)


def shortlist(setting: Setting, rules: Sequence[Rule], most: int) -> list[Letters]:
    """As `simpar.pipeline.greedy.shortlist`, to the bit."""
    ranks, actions = setting.ranks, 3 * setting.micro_batches
    seconds, hops = _given(setting.times)
    facts = np.array([(one.gap, one.level, one.turns, one.delay, one.ahead, setting.kept) for one in rules], np.float64)
    limits, first = np.array(setting.limits, dtype=np.float64), np.array(setting.first_gradients())
    rows, found = np.zeros((most + 1, ranks, actions), dtype=np.int8), np.full(most, np.inf)
    places = np.arange(most + 1)
    ends, done = np.zeros((3, ranks, setting.micro_batches)), np.zeros((3, ranks), dtype=np.int64)
    # By rank: when it is free, when it began, how long it idled.
    clock, work = np.zeros((3, ranks)), seconds.sum(axis=0) * setting.micro_batches
    # Each action takes one entry off the heap and puts at most two there.
    size = ranks * (actions + 1) + 1
    heap, place, asleep = np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(ranks, dtype=np.bool_)
    _shortlist(facts, seconds, hops, limits, first, rows, places, found, ends, done, clock, work, asleep, heap, place)
    return [_letters(rows[at]) for at in places[:most][found < np.inf]]


def last_ends(rows: Letters, times: StageTimes, steps: int) -> list[float]:
    """When the last rank ends each of some steps that are run back to back; −1 where ranks wait for ever."""
    seconds, hops = _given(times)
    codes = np.array([np.frombuffer(row.encode(), dtype=np.uint8) for row in rows])
    kinds = ((codes == _LETTERS[1]) + 2 * (codes == _LETTERS[2])).astype(np.int8)
    ends, done = np.zeros((3, len(rows), kinds.shape[1])), np.zeros((3, len(rows)), dtype=np.int64)
    last = np.zeros(steps)
    _steps(kinds, seconds, hops, ends, done, np.zeros(len(rows)), last)
    found: list[float] = last.tolist()
    return found


def _given(times: StageTimes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # A gap that no stage has, so that the array is there for a single rank too.
    return np.array([times.forward, times.input, times.weight]), np.array([*times.communication, 0.0])


def _letters(kinds: NDArray[np.int8]) -> Letters:
    return tuple(_LETTERS[row].tobytes().decode() for row in kinds)
