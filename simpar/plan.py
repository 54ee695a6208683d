"""Plan: how the workload is divided over the ranks; knows no hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field


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

    data: Annotated[
        int, Field(ge=0, le=2**20, description='degree of data parallelism; 0: the ranks that tensor leaves')
    ] = 0
    tensor: Annotated[int, Field(ge=1, le=2**16, description='degree of tensor parallelism')] = 1
    sequence_parallel: Annotated[
        bool, Field(description='cuts norms and residuals of a transformer along the sequence over the tensor ranks')
    ] = False
    copies: Annotated[
        int, Field(ge=1, le=1024, description="slices of the batch, one computing under another's communication")
    ] = 1
    copies_loss: Annotated[
        Literal['mean', 'sum'],
        Field(description="loss over the copies: mean, or MindSpore's sum (gradients are copies times as large)"),
    ] = 'mean'
    reduce: Annotated[
        Literal['early', 'late'],
        Field(
            description="sum of a replicated activation's gradient: behind each column-parallel operator (Megatron), "
            'or at the backward of the earlier all-reduce (MindSpore)'
        ),
    ] = 'early'
    streams: Annotated[
        Literal['group', 'single'],
        Field(description='a stream for each communication group, or one for compute and communication: no overlap'),
    ] = 'group'
