"""MindSpore 2.10's pipeline schedules, as its compiler writes them into a stage's graph.

Equal to the recorded stage orders of MindSpore 2.10.0 (tests/golden/mindspore). Numbers of micro-batches that are no
multiple of the ranks follow its sources (pipeline_scheduler.cc, seqpipe_scheduler.cc), since no record has them.
"""

from collections.abc import Sequence
from dataclasses import replace

from simpar.pipeline.checks import stuck
from simpar.pipeline.order import Action, Order, RowCounter, in_turns, make_order, refuse, require, v_shape
from simpar.pipeline.zero_bubble import cool_down, warm_up

VERSION = 'mindspore-2.10'


def one_forward_one_backward(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """Its ``1f1b``: plain over one chunk, and over several (``pipeline_interleave`` with segments) its VPP.

    The first round of micro-batches takes what ranks do not divide. Rank r is ahead by
    (ranks + rest)(chunks − 1) + 2(ranks − 1 − r) forwards, over one chunk by ranks − 1 − r, as in 1F1B.
    Arguments: pipeline ranks, micro-batches (at least as many), chunks on each rank. Raises `ScheduleError`.
    """
    require(f'{VERSION}/1f1b', micro_batches, ranks, f'one for each of {ranks} ranks')
    # Over several chunks each rank further from the last has two forwards more, as in Megatron's VPP; over one, 1F1B's
    # one.
    rest, hop = micro_batches % ranks, 1 if chunks == 1 else 2
    rounds = [ranks + rest, *[ranks] * (micro_batches // ranks - 1)]
    return in_turns(ranks, chunks, rounds, (ranks + rest) * (chunks - 1), hop)


def gpipe(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """Its ``gpipe``, which in 2.10 is recorded in the order of 1F1B. Arguments and raises: see there."""
    require(f'{VERSION}/gpipe', micro_batches, ranks, f'one for each of {ranks} ranks')
    # The recorded stage graphs of 2.10 have the 1F1B order under this name, so that is what the name gives.
    return one_forward_one_backward(ranks, micro_batches, chunks)


def seqpipe(ranks: int, micro_batches: int, chunks: int = 1, sequence_chunks: int = 1) -> Order:
    """Its ``seqpipe``: 1F1B, or VPP, over chunks of the sequence.

    Rounds take what ranks do not divide one by one, from the first. Arguments: pipeline ranks, micro-batches, chunks
    on each rank, ``sequence_chunks`` of a sample (``seq_split_num``). Raises `ScheduleError`. With several
    of these it follows the sources alone: no record has them.
    """
    require(f'{VERSION}/seqpipe', micro_batches, ranks, f'one for each of {ranks} ranks')
    rounds = _even_rounds(micro_batches, ranks)
    return _over_sequence_chunks(ranks, chunks, rounds, 1 if chunks == 1 else 2, sequence_chunks)


def seqvpp(ranks: int, micro_batches: int, chunks: int = 2, sequence_chunks: int = 1) -> Order:
    """Its ``seqvpp``: VPP over chunks of the sequence, in rounds of ranks // sequence_chunks micro-batches.

    Arguments and raises: see ``seqpipe``; chunks at least 2, sequence chunks at most as many as ranks. Raises also
    where the sequence chunks do not divide the ranks and rounds are so small that the sources' order never ends.
    """
    return _seqvpp('seqvpp', ranks, micro_batches, chunks, sequence_chunks, hop=2)


def seqsmartvpp(ranks: int, micro_batches: int, chunks: int = 2, sequence_chunks: int = 1) -> Order:
    """Its ``seqsmartvpp``: ``seqvpp`` with half the warm-up for each rank further from the last, to save memory."""
    return _seqvpp('seqsmartvpp', ranks, micro_batches, chunks, sequence_chunks, hop=1)


def zero_bubble_v(ranks: int, micro_batches: int, chunks: int = 2) -> Order:
    """Its ``zero_bubble_v``: DualPipeV without overlaps, the backward before the forward, weight gradients later.

    Arguments: pipeline ranks, micro-batches (at least 2 × ranks), ``chunks`` 2. Raises `ScheduleError`. On rank 0,
    where nothing binds them, the weight gradients that are left stand where they are recorded, at the end.
    """
    require(f'{VERSION}/zero_bubble_v', micro_batches, 2 * ranks, f'one for each of {2 * ranks} stages')
    rows = (_zero_bubble_row(rank, ranks, micro_batches) for rank in range(ranks))
    return make_order(rows, v_shape(ranks, chunks), micro_batches)


def _seqvpp(name: str, ranks: int, micro_batches: int, chunks: int, sequence_chunks: int, hop: int) -> Order:
    if sequence_chunks > ranks:
        raise refuse(
            f'{VERSION}/{name}', f'{sequence_chunks} sequence chunks on {ranks} ranks', f'write at most {ranks}'
        )
    require(f'{VERSION}/{name}', micro_batches, -(-ranks // sequence_chunks), f'{ranks} chunks of the sequence')
    order = _over_sequence_chunks(
        ranks, chunks, _even_rounds(micro_batches, ranks // sequence_chunks), hop, sequence_chunks
    )
    # No closed form tells when, so the order is carried out; only uneven counts can hang.
    if ranks % sequence_chunks and stuck(order):
        what = f'with {sequence_chunks} sequence chunks, {ranks} ranks wait for each other for ever'
        raise refuse(f'{VERSION}/{name}', what, f'write a number of sequence chunks that divides {ranks}')
    return order


def _even_rounds(micro_batches: int, size: int) -> list[int]:
    """Rounds of this size; what is left goes one by one to the rounds, from the first."""
    number = micro_batches // size
    rest = micro_batches - number * size
    # As even as can be, the first rounds one longer.
    return [size + rest // number + (place < rest % number) for place in range(number)]


def _over_sequence_chunks(ranks: int, chunks: int, rounds: Sequence[int], hop: int, sequence_chunks: int) -> Order:
    """In rounds over micro-batches × sequence chunks; a chunk's backward stands where its mirror image's would."""
    ahead = (chunks - 1) * rounds[0] * sequence_chunks + sequence_chunks - 1
    order = in_turns(ranks, chunks, [size * sequence_chunks for size in rounds], ahead, hop)
    if sequence_chunks == 1:
        return order
    rows = tuple(tuple(_mirrored(action, sequence_chunks) for action in row) for row in order.actions)
    return replace(order, actions=rows, sequence_chunks=sequence_chunks)


def _mirrored(action: Action, sequence_chunks: int) -> Action:
    # A chunk attends to those before it, so that gradients come back from the last chunk to the first.
    if action.kind == 'F' or action.micro_batch is None:
        return action
    micro_batch, chunk = divmod(action.micro_batch, sequence_chunks)
    return replace(action, micro_batch=micro_batch * sequence_chunks + sequence_chunks - 1 - chunk)


def _zero_bubble_row(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    down, up = rank, 2 * ranks - 1 - rank
    row = RowCounter()
    warm_up(row, rank, ranks)
    row.do(micro_batches - 2 * ranks + rank + 1, (up, 'B'), (down, 'F'), (down, 'B'), (up, 'F'))
    row.do(ranks - rank - 1, (up, 'B'), (down, 'B'), (up, 'F'))
    cool_down(row, rank, ranks)
    if rank:
        row.do(ranks - rank - 1, (down, 'W'), (down, 'I'))
    else:
        # On rank 0 no earlier rank waits for the gradient, and the records have its W at the end.
        row.do(ranks - 1, (down, 'I'))
    row.do(micro_batches, (down, 'W'))
    row.do(micro_batches, (up, 'W'))
    return row.row
