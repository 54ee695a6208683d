"""Arithmetic of sets of time intervals, exact for times on the grid of 2⁻⁴⁰ s; arrays of shape [n, 2], (begin, end)."""

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]


def union(intervals: Intervals) -> Intervals:
    """Disjoint intervals, in order, that cover the same points; shape [n, 2] → [m, 2]."""
    # Column by column, which is faster than rows of two.
    begin, end = intervals[:, 0], intervals[:, 1]
    # Empty intervals cover nothing, and would split what they touch.
    mask = end > begin
    if not mask.all():
        begin, end = begin[mask], end[mask]
    if not len(begin):
        return np.empty((0, 2))
    # Sorted by begin, a new group starts wherever a begin lies beyond all ends before it. Ops of a stream are in order.
    if (begin[1:] < begin[:-1]).any():
        order = np.argsort(begin, kind='stable')
        begin, end = begin[order], end[order]
    # Where they end in order, too, each reaches as far as all before it; to accumulate takes three times as long.
    reach = np.maximum.accumulate(end) if (end[1:] < end[:-1]).any() else end
    # Where a group ends and the next one begins.
    ends = np.flatnonzero(begin[1:] > reach[:-1])
    cover = np.empty((len(ends) + 1, 2))
    cover[0, 0], cover[1:, 0] = begin[0], begin[ends + 1]
    cover[-1, 1], cover[:-1, 1] = reach[-1], reach[ends]
    return cover


def length(intervals: Intervals) -> float:
    """Seconds that a union of intervals covers."""
    return seconds_of(union(intervals))


def seconds_of(merged: Intervals) -> float:
    """The same of intervals that are a union already."""
    return float((merged[:, 1] - merged[:, 0]).sum())


def minus(intervals: Intervals, others: Intervals) -> Intervals:
    """Return the parts of ``intervals`` that no other covers, as disjoint intervals in order."""
    mine, holes = union(intervals), union(others)
    if not len(mine) or not len(holes):
        return mine
    # Between two neighbouring edges, each of both sets covers all or nothing.
    edges = np.unique(np.concatenate((mine.ravel(), holes.ravel())))
    segments = np.column_stack((edges[:-1], edges[1:]))
    return union(segments[_covered(segments, mine) & ~_covered(segments, holes)])


def _covered(segments: Intervals, merged: Intervals) -> NDArray[np.bool_]:
    """Which segments, split at all edges, lie in a union."""
    index = np.searchsorted(merged[:, 0], segments[:, 0], side='right') - 1
    return np.asarray((index >= 0) & (merged[np.maximum(index, 0), 1] > segments[:, 0]))


def fold(intervals: Intervals, begin: float, end: float) -> Intervals:
    """Move intervals into a window of the steady state: what lies before it appears one step later, at its end."""
    if not len(intervals) or (begin <= intervals[:, 0].min() and intervals.max() <= end):
        return intervals
    inside = np.minimum(np.maximum(intervals, begin), end)
    # What lies before the window belongs to a step that began earlier; in the steady state the next step does the same
    # at the window's end.
    before = intervals[:, 0] < begin
    if end <= begin or not before.any():
        return inside
    early = np.minimum(intervals[before], begin)
    early = early[early[:, 1] > early[:, 0]]
    if not len(early):
        return inside
    # Again, for an interval may begin several steps before.
    return np.concatenate((inside, fold(early + (end - begin), begin, end)))
