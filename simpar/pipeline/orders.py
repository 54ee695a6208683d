"""All pipeline schedules by name."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from simpar.pipeline import mindspore, order, zero_bubble

MOST_CHUNKS: Final = 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One order for all counts of ranks and micro-batches.

    Arguments:
        build: (pipeline ranks, micro-batches, chunks) → Order; also ``sequence_chunks``, where ``sequences`` is set.
        chunks: least and most chunks (stages) on a rank.
        placement: how stages lie on ranks.
        sequences: whether it can split the sequence of a sample.
        pairs: ``made``, where it has a form in which forwards and backwards are pairs; ``own``, where it has them
            anyway.
    """

    build: Callable[..., order.Order]
    chunks: tuple[int, int] = (1, 1)
    placement: Literal['loop', 'v'] = 'loop'
    sequences: bool = False
    pairs: Literal['', 'made', 'own'] = ''


AUTOMATIC: Final = {'zb-1p': 1, 'zb-2p': 2}
"""Automatic orders by name, and their limit of live activations on each rank, in pipeline ranks."""
SEVERAL: Final = (2, MOST_CHUNKS)
ORDERS: Final[dict[str, Family]] = {
    'gpipe': Family(build=order.gpipe),
    '1f1b': Family(build=order.one_forward_one_backward, pairs='made'),
    'interleaved-1f1b': Family(build=order.interleaved_1f1b, chunks=SEVERAL, pairs='made'),
    'looped-bfs': Family(build=order.looped_bfs, chunks=SEVERAL),
    'interleaved-zero-bubble': Family(build=order.interleaved_zero_bubble, chunks=SEVERAL),
    'zb-h1': Family(build=zero_bubble.zb_h1),
    'zb-h2': Family(build=zero_bubble.zb_h2),
    'zb-v': Family(build=zero_bubble.zb_v, chunks=(2, 2), placement='v'),
    'dualpipe-v': Family(build=zero_bubble.dualpipe_v, chunks=(2, 2), placement='v', pairs='own'),
    f'{mindspore.VERSION}/1f1b': Family(build=mindspore.one_forward_one_backward, chunks=(1, MOST_CHUNKS)),
    f'{mindspore.VERSION}/gpipe': Family(build=mindspore.gpipe),
    f'{mindspore.VERSION}/seqpipe': Family(build=mindspore.seqpipe, chunks=(1, MOST_CHUNKS), sequences=True),
    f'{mindspore.VERSION}/seqvpp': Family(build=mindspore.seqvpp, chunks=SEVERAL, sequences=True),
    f'{mindspore.VERSION}/seqsmartvpp': Family(build=mindspore.seqsmartvpp, chunks=SEVERAL, sequences=True),
    f'{mindspore.VERSION}/zero_bubble_v': Family(build=mindspore.zero_bubble_v, chunks=(2, 2), placement='v'),
    'v-min': Family(build=zero_bubble.v_min, chunks=(2, 2), placement='v'),
    'v-half': Family(build=zero_bubble.v_half, chunks=(2, 2), placement='v'),
}


def family(name: str) -> Family:
    """An order's family by name. Raises `ScheduleError` with the nearest names."""
    if name in AUTOMATIC:
        raise order.refuse(name, 'is found from predicted times', 'resolve it first')
    if name == zero_bubble.TWO_HOMES:
        raise order.refuse(
            name, 'keeps each stage on two ranks, and an order on one', 'write dualpipe-v of half as many'
        )
    if name not in ORDERS:
        close = difflib.get_close_matches(name.lower().replace('_', '-'), [*ORDERS, *AUTOMATIC], 1)
        guess = f'did you mean {close[0]}? ' if close else ''
        raise order.refuse(repr(name[:60]), 'unknown', f'{guess}known orders: {", ".join((*ORDERS, *AUTOMATIC))}')
    return ORDERS[name]


def named_order(
    name: str, ranks: int, micro_batches: int, chunks: int = 0, sequence_chunks: int = 1, *, pairs: bool = False
) -> order.Order:
    """The order of this name.

    Arguments: pipeline ranks, micro-batches; ``chunks``, stages on each rank, 0 for the least that the order has;
    ``sequence_chunks``, parts of a sample's sequence, 1 except for MindSpore's seq orders; ``pairs``: each forward
    beside a backward, from when on there are both.
    Raises `ScheduleError` for an unknown name, and for counts that the order cannot have.
    """
    spec = family(name)
    least, most = spec.chunks
    # 0 stands for what a plan does not say.
    chunks = chunks or least
    _check_counts(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks, sequence_chunks=sequence_chunks)
    if not least <= chunks <= most:
        span = str(least) if least == most else f'{least} or more'
        raise order.refuse(name, f'{chunks} chunks on a rank', f'write {span}')
    if not spec.sequences:
        if sequence_chunks > 1:
            choices = ', '.join(key for key, value in ORDERS.items() if value.sequences)
            raise order.refuse(name, 'does not split the sequence', f'orders that do: {choices}')
        if pairs and not spec.pairs:
            choices = ', '.join(key for key, value in ORDERS.items() if value.pairs)
            raise order.refuse(
                name, 'has no forward beside a backward, as plan.pairs asks', f'orders that do: {choices}'
            )
        made = {'pairs': True} if pairs and spec.pairs == 'made' else {}
        return spec.build(ranks, micro_batches, chunks, **made)
    if pairs:
        raise order.refuse(name, 'has no forward beside a backward, as plan.pairs asks', 'write 1f1b')
    return spec.build(ranks, micro_batches, chunks, sequence_chunks)


def _check_counts(name: str, **counts: int) -> None:
    for what, count in counts.items():
        if count < 1:
            raise order.refuse(name, f'{count} {what.replace("_", " ")}', 'write at least 1')
