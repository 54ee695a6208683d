"""How many micro-batches are in flight, to be compared with the closed forms of pipelines."""

from collections.abc import Callable, Hashable

import numpy as np

from simpar.memory.lifetimes import fold
from simpar.program import OpClass
from simpar.trace import Times, Trace


def in_flight(trace: Trace, rank: int, chunk: Callable[[OpClass], Hashable] = lambda op: 0) -> int:
    """Count the micro-batches in flight at most, on one rank, in the last step.

    A micro-batch is in flight from the start of its first compute op to the end of its last.

    Arguments: ``chunk``, to which of a rank's model chunks an op class belongs; each micro-batch counts once a chunk.
    With the closed forms of pipelines: 1F1B has stages − stage in flight.
    """
    rank_times, program = trace.times_of(rank), trace.program
    role = trace.role(rank_times)
    used = {index: program.op_classes[index] for index in np.unique(role.op_class).tolist()}
    computes = {index: chunk(op) for index, op in used.items() if op.kind == 'compute' and program.sliced(op)}
    spans: dict[tuple[Hashable, int], tuple[float, float]] = {}
    columns = (role.op_class, role.micro_batch, rank_times.start_KS[-1], rank_times.end_KS[-1])
    for index, micro_batch, start, end in zip(*(column.tolist() for column in columns), strict=True):
        if index in computes:
            key = (computes[index], micro_batch)
            since, until = spans.get(key, (start, end))
            spans[key] = (min(since, start), max(until, end))
    return _most_at_once(np.array(list(spans.values())).reshape(-1, 2), trace.step)


def _most_at_once(spans: Times, step: float) -> int:
    """How many of the spans of shape [n, 2], repeated every ``step`` seconds, overlap at most."""
    (first, since), (last, until) = fold(spans[:, 0], step), fold(spans[:, 1], step)
    # The count changes only where a span begins or ends.
    edges = np.unique(np.concatenate(([0.0], since, until)))
    begun, ended = (np.bincount(np.searchsorted(edges, times), minlength=len(edges)) for times in (since, until))
    return int((last - first).sum() + np.cumsum(begun - ended).max())
