"""Plan: how the workload is divided over the ranks; knows no hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees and switches.

    Arguments:
        data, tensor: degrees of data and tensor parallelism; ``data`` 0 takes the ranks that are left.
        sequence_parallel: norms and residuals are cut along the sequence over the tensor ranks (transformers only).
        copies: slices of the batch that interleave, one computing while another communicates.
        copies_loss: ``mean`` over the copies, or MindSpore's ``sum`` (MicroBatchInterleaved adds them undivided, so
            gradients are ``copies`` times as large).
        reduce: where the gradient of a replicated activation is summed: ``early``, behind each column-parallel
            operator (Megatron), or ``late``, at the backward of the earlier all-reduce (MindSpore).
        streams: ``group``: one stream for each communication group; ``single``: communication waits its turn on the
            compute stream, so that nothing overlaps.
    """

    data: int = 0
    tensor: int = 1
    sequence_parallel: bool = False
    copies: int = 1
    copies_loss: Literal['mean', 'sum'] = 'mean'
    reduce: Literal['early', 'late'] = 'early'
    streams: Literal['group', 'single'] = 'group'
