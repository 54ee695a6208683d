"""Slots: the issue order of a pipeline rank as arrays, a template for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simpar.lower.issue import Issued, Run
from simpar.lower.streams import Streams
from simpar.program.template import Slots, Template

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
_NO_PART = -1


def slots_of(order: Issued, index: Mapping[str, int], streams: Streams, *, batched: bool) -> Slots:
    """The slots of an issue order.

    Arguments:
        index: by name, the number of each op class.
        streams: they are numbered as they are met.
        batched: a batched send/recv (``exchange: fused``): computation waits for all that is sent and received behind
            the computation before it.
    """
    runs = order.runs
    number = {run: at for at, run in enumerate(runs)}
    parts = max((len(block.micro_batches) for block in order.blocks), default=0)
    padded = [(*block.micro_batches, *(_NO_PART,) * (parts - len(block.micro_batches))) for block in order.blocks]
    # First without pairs, as finding these needs the slots' numbers.
    slots = Slots(
        tuple(_template(run, index, streams) for run in runs),
        np.array([number[block.run] for block in order.blocks], dtype=np.int64),
        np.array(padded, dtype=np.int64).reshape(-1, parts),
        np.zeros((0, 2), dtype=np.int64),
    )
    return Slots(slots.templates, slots.which, slots.micro_batches, _after(slots, runs, batched=batched))


def _template(run: Run, index: Mapping[str, int], streams: Streams) -> Template:
    ops, parts, copies, _ = zip(*run.issues, strict=True) if run.issues else ((), (), (), ())
    # Most ops compute, on the first stream.
    stream = [0 if issue[0].kind == 'compute' else streams.number(issue) for issue in run.issues]
    return Template(*map(_numbers, ([index[op.name] for op in ops], stream, parts, copies)))


def _numbers(column: Sequence[int]) -> Ints:
    # Often all are 0, which need not be converted one by one.
    return np.array(column, dtype=np.int64) if any(column) else np.zeros(len(column), dtype=np.int64)


def _after(slots: Slots, runs: tuple[Run, ...], *, batched: bool) -> Ints:
    """Pairs (slot, an earlier one that it waits for), whatever the tensors say."""
    late = [[issue.late for issue in run.issues] for run in runs]
    if not batched and not any(map(any, late)):
        return slots.after
    computes = [np.array([issue.op.kind == 'compute' for issue in run.issues], dtype=bool) for run in runs]
    waits = np.flatnonzero(slots.spread([np.array(own, dtype=bool) for own in late]))
    computed = np.flatnonzero(slots.spread(computes))
    if not len(computed):
        return slots.after
    # The last computation before each late op; −1 where none is.
    at = np.searchsorted(computed, waits) - 1
    pairs = np.column_stack((waits, computed[at]))[at >= 0]
    if batched:
        transfers = [np.array([issue.op.kind in ('send', 'recv') for issue in run.issues], dtype=bool) for run in runs]
        sent = np.flatnonzero(slots.spread(transfers))
        into = np.searchsorted(computed, sent)
        meets = into < len(computed)
        exchanged = np.column_stack((computed[into[meets]], sent[meets]))
        pairs = np.append(pairs, exchanged[~np.isin(exchanged[:, 0], waits)], axis=0)
    return pairs
