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
        pipeline, micro_batches: pipeline ranks, and slices of the batch that flow through them.
        order: of forwards and backwards, by name (docs/pipeline_orders.md); ``zb-1p`` and ``zb-2p`` are found by
            resolving; the name of a CSV file in torch's spelling; ``chunks``, stages on each pipeline rank, 0 for the
            least that the order has.
        rows: the actions of each pipeline rank, in torch's spelling, in place of ``order``.
        stages: layers of each stage; empty: equal counts, the first stages one more where they do not divide;
            ``balanced``: chosen by resolving, by predicted time and memory.
        receive: posted ``early``, as soon as the stream is free, or ``late``, when the computation before is done.
        exchange: ``separate``: computation goes on while a send waits for its receiver; ``fused``: what is sent and
            received between two computations is one exchange, and the next computation waits for all of it (Megatron).
        streams: ``group``: one stream for each communication group; ``single``: communication waits its turn on the
            compute stream, so that nothing overlaps.
    """

    data: Annotated[
        int, Field(ge=0, le=2**20, description='degree of data parallelism; 0: the ranks that tensor leaves')
    ] = 0
    tensor: Annotated[int, Field(ge=1, le=2**16, description='degree of tensor parallelism')] = 1
    pipeline: Annotated[int, Field(ge=1, le=2**12, description='degree of pipeline parallelism')] = 1
    micro_batches: Annotated[
        int, Field(ge=1, le=2**16, description='slices of the batch that flow through the pipeline, gradients added up')
    ] = 1
    order: Annotated[
        str, Field(max_length=4096, description='order of forwards and backwards: a name, or a CSV file')
    ] = '1f1b'
    chunks: Annotated[
        int, Field(ge=0, le=2**10, description='stages on each pipeline rank; 0: the least that the order has')
    ] = 0
    rows: Annotated[
        tuple[Annotated[str, Field(max_length=2**20)], ...],
        Field(max_length=2**12, description="actions of each pipeline rank, e.g. 0F0 0B0, in the order's place"),
    ] = ()
    stages: Annotated[
        tuple[Annotated[int, Field(ge=0, le=2**12)], ...] | Literal['balanced'],
        Field(description='layers of each stage; empty: equal counts; balanced: by predicted time and memory'),
    ] = ()
    receive: Annotated[
        Literal['early', 'late'],
        Field(description='receives are posted as soon as possible, or when the computation before them is done'),
    ] = 'early'
    exchange: Annotated[
        Literal['separate', 'fused'],
        Field(description='sends on their own, or one exchange that the next computation waits for'),
    ] = 'separate'
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
