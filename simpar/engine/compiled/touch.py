"""What a change on a device touches: streams whose speeds are solved anew at the end of the instant, each once."""

from __future__ import annotations

from simpar.engine.compiled.jit import Array, inner


@inner
def touch_computing(
    representative: int, start: Array, item: Array, computing: Array, marked: Array, touched: Array, count: int
) -> int:
    """Touch what computes on a device; return how many streams are touched.

    Arguments: ``start``, ``item``, of each device the streams that ever compute.
    """
    for index in range(start[representative], start[representative + 1]):
        stream = item[index]
        if computing[stream] and not marked[stream]:
            marked[stream] = True
            touched[count] = stream
            count += 1
    return count


@inner
def touch_transferring(
    representative: int, start: Array, item: Array, transfers: Array, marked: Array, touched: Array, count: int
) -> int:
    """Touch what a device transfers, by the streams that lead; return how many streams are touched.

    Arguments: ``start``, ``item``, of each device the streams that ever communicate.
    """
    for index in range(start[representative], start[representative + 1]):
        lead = transfers[item[index]]
        if lead >= 0 and not marked[lead]:
            marked[lead] = True
            touched[count] = lead
            count += 1
    return count
