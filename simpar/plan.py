"""Plan: how the workload is divided over the ranks; knows no hardware."""

from __future__ import annotations

from dataclasses import Field as Named
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from simpar.document import Bytes
from simpar.lazy import callable_module
from simpar.model.keys import Layouts, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees and switches.

    Arguments:
        data, tensor: degrees of data and tensor parallelism; ``data`` 0 takes the ranks that are left.
        sequence_parallel: norms and residuals are sharded along the sequence over the tensor ranks.
        copies: slices of the batch that interleave, one computing while another communicates.
        copies_loss: ``mean`` over the copies, or MindSpore's ``sum`` (MicroBatchInterleaved adds them undivided, so
            gradients are ``copies`` times as large).
        sum_loss: the loss is summed over the ranks for display, as MindSpore's graph does for every copy of a
            micro-batch and Megatron-LM for every micro-batch; nothing waits for it.
        reduce: where the gradient of a replicated activation is summed: ``early``, behind each column-parallel
            operator (Megatron), or ``late``, at the backward of the earlier all-reduce (MindSpore).
        context: ranks that share every sequence through the whole network (context parallelism). A rank holds a part
            of its tokens, and gradients of weights are summed over data × context.
        context_kind: how attention gets at the other ranks' tokens: ``all_gather`` of keys and values (Llama 3);
            ``all_to_all``, all tokens of a part of the heads (DeepSpeed-Ulysses); ``ring``, keys and values go round in
            steps, under attention of those that are there.
        context_split: ``balanced``: of 2 × context chunks of a sequence rank i holds chunk i and chunk i from the end,
            so that causal attention is equal work for all; ``contiguous``: rank i holds part i of context.
        expert: data ranks, neighbours, that share the experts of a mixture: each holds its part of all experts, and
            tokens go to them and back by all-to-alls.
        pipeline, micro_batches: pipeline ranks, and slices of the batch that flow through them.
        order: of forwards and backwards, by name (docs/pipeline_orders.md); ``zb-1p`` and ``zb-2p`` are found by
            resolving; the name of a CSV file in torch's spelling; ``chunks``, stages on each pipeline rank, 0 for the
            least that the order has.
        sequence_chunks: parts of every sample's sequence, each an item of the order: its attention sees the keys and
            values of the parts before it, and parts come back from the last to the first (MindSpore's seq_split_num).
        rows: the actions of each pipeline rank, in torch's spelling, in place of ``order``.
        stages: layers of each stage; empty: equal counts, the first stages one more where they do not divide;
            ``balanced``: chosen by resolving, by predicted time and memory.
        receive: posted ``early``, as soon as the stream is free, or ``late``, when the computation before is done.
        exchange: ``separate``: computation goes on while a send waits for its receiver; ``fused``: what is sent and
            received between two computations is one exchange, and the next computation waits for all of it (Megatron).
        scatter_gather: what all tensor ranks of a stage hold is sent in parts, one by each, and gathered in the next
            stage (Megatron-LM's scatter_gather_tensors_in_pipeline).
        streams: ``group``: one stream for each communication group; ``messages``: collectives wait their turn on the
            compute stream, messages between stages have their own (Megatron-LM of 2021); ``single``: all communication
            waits its turn there, so that nothing overlaps.
        dataset: with strategies, what a rank reads: ``data-parallel``, its slice of the batch, or ``full-batch``.
        device_matrix: with layouts, the axes that they name, the outermost first; what they leave of the ranks of a
            stage replicates the calculation.
        redistribution: with strategies, how a tensor gets from layout to layout: ``cheapest``, by the fewest bytes, or
            as MindSpore's compiler of a version does; ``predicted``: one of these, with or without all-to-all, chosen
            by resolving; ``all_to_all``: may be used, as MindSpore's enable_alltoall.
        strategies, layouts: of single operators of any model, by patterns of their names, before what the model says
            itself; degrees, or the batch, split the others.
        search: who gives strategies to a network's layers that have none: ``none``, nobody (they are split by batch);
            MindSpore's ``sharding-propagation`` from the layers that have one, or ``double-recursive`` search, as
            ``compat``, its version, does; ``exact``, least ``objective``: bytes that a rank sends, or predicted step.
        recompute: what the backward makes again instead of keeping it: ``none``; ``full``: a transformer's layers, each
            keeping its input; ``selective``: the scores, softmax, dropout and values of attention (Korthikanti et al.
            2022), or flash attention; or patterns of operator names, e.g. ``layer*.gelu``, whose results are dropped.
            What a layer of a transformer hands on is always kept.
        recompute_stages: stages that recompute; empty: all. recompute_communication: collectives among it run again,
            or else their results are kept.
        shard: what optimizer parallelism splits over the data ranks: ``state``, ``gradients``, ``weights``.
        gather: when sharded weights are made full: ``on-use``, once a step, kept to the last use; ``on-use-twice``, for
            every forward and again for every backward of a micro-batch (FSDP); ``after-update``: weights stay full,
            and updated shards are gathered into them; empty: ``on-use`` where weights are sharded.
        hsdp: MindSpore's levels: 1 splits states and weights, gathered on use; 2 gradients too; 3 gathers twice.
        zero: ZeRO's stages: 1 splits states, 2 gradients too, both gathered after the update; 3 weights too, gathered
            twice.
        shard_form: how a parameter is sharded: ``dim``, equal slices of a dim, or full where none divides (MindSpore);
            ``padded``, its rows as torch.chunk deals them out, messages padded to equal shares (FSDP2); ``flat``, the
            parameters of a message in one buffer, of which each rank has an equal range (Megatron-LM, DeepSpeed);
            empty: ``dim``, but with ``zero`` for messages that do not divide ``flat`` (1, 2) and ``padded`` (3).
        shard_group: data ranks that share one set of shards, neighbours; sums go on over the groups; 0: all.
        shard_threshold: parameters of fewer bytes (on a tensor rank) stay full; none: 64 KiB with ``hsdp``, else 0.
        unsharded: patterns of names of parameters that stay full.
        accumulate: of several micro-batches, ``full`` gradients that are reduce-scattered once, or ``sharded`` ones,
            reduce-scattered every micro-batch; empty: sharded where gradients are.
        prefetch: how many gathers ahead one is issued: 0: when needed, after the computation before; k: when the
            weights k + 1 gathers before it are free again.
        reduce_gradients: sums of gradients ``overlapped`` with the backward, or all at its ``end``.
        fusion: which gradients and weights travel as one message: those of a ``layer``; those of a ``stage``, a
            chunk of a pipeline rank (Megatron-LM with a pipeline); ``none``; ``all`` (MindSpore's default, so that
            nothing overlaps); ``auto``, up to 64 MiB; a size, that a message stays
            below; split points, counted in gradients from the one that the backward finishes first; ``ids``: of equal
            ``comm_fusion`` marks or ``fusion_ids`` of layers in the order of their use; 0: each alone; ``predicted``:
            one of these, chosen by resolving.
        tiles: chunks, along the rows, of a matrix product and of the sum or gather next to it, so that one chunk's
            communication hides under the next one's product (CoC, MC2, AsyncTP).
        overlap: ``default``, or a list of passes as keys of MindSpore's parallel_speed_up.json; those not listed are
            off: ``matmul_grad_comm_overlap``, gradients of weights under the sum of their layer's dx;
            ``enable_grad_comm_opt``, the backward under sums of gradients (``reduce_gradients: overlapped``, else
            ``end``); ``enable_opt_shard_comm_opt``, weights gathered ahead (by ``prefetch``, else 0);
            ``recompute_comm_overlap``, recomputation under the sum before it. A stack says those that its framework has
            on, MindSpore none; ``default``: all but the last.
    """

    data: Annotated[
        int, Field(ge=0, le=2**20, description='degree of data parallelism; 0: the ranks that tensor leaves')
    ] = 0
    tensor: Annotated[int, Field(ge=1, le=2**16, description='degree of tensor parallelism')] = 1
    context: Annotated[
        int, Field(ge=1, le=2**12, description='degree of context parallelism: ranks that share every sequence')
    ] = 1
    context_kind: Annotated[
        Literal['all_gather', 'all_to_all', 'ring'],
        Field(
            description='with context, how attention sees all tokens: keys and values are gathered, heads are '
            'exchanged for tokens (Ulysses), or keys and values go round'
        ),
    ] = 'all_gather'
    context_split: Annotated[
        Literal['balanced', 'contiguous'],
        Field(
            description='with context, tokens of a rank: a chunk from the begin and one from the end, equal work for '
            'all where attention is causal, or one run'
        ),
    ] = 'balanced'
    expert: Annotated[
        int, Field(ge=1, le=2**16, description='degree of expert parallelism: data ranks that share the experts')
    ] = 1
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
    sequence_chunks: Annotated[
        int,
        Field(
            ge=1,
            le=2**10,
            description="parts of a sample's sequence, each an item of the order (MindSpore's seq orders)",
        ),
    ] = 1
    rows: Annotated[
        tuple[Annotated[str, Field(max_length=2**20)], ...],
        Field(max_length=2**12, description="actions of each pipeline rank, e.g. 0F0 0B0, in the order's place"),
    ] = ()
    stages: Annotated[
        tuple[Annotated[int, Field(ge=0, le=2**12)], ...] | Literal['balanced'],
        Field(
            description='layers of each stage, pipeline × chunks numbers in the order of the model; '
            'empty: equal counts; balanced: by predicted time and memory'
        ),
    ] = ()
    receive: Annotated[
        Literal['early', 'late'],
        Field(description='receives are posted as soon as possible, or when the computation before them is done'),
    ] = 'early'
    exchange: Annotated[
        Literal['separate', 'fused'],
        Field(description='sends on their own, or one exchange with late receives, which the next computation awaits'),
    ] = 'separate'
    scatter_gather: Annotated[
        bool, Field(description='a tensor rank sends its part of a value to the next stage, which gathers it')
    ] = False
    sequence_parallel: Annotated[
        bool, Field(description='shards norms and residuals along the sequence over the tensor ranks')
    ] = False
    copies: Annotated[
        int, Field(ge=1, le=1024, description="slices of the batch, one computing under another's communication")
    ] = 1
    copies_loss: Annotated[
        Literal['mean', 'sum'],
        Field(description="loss over the copies: mean, or MindSpore's sum (gradients are copies times as large)"),
    ] = 'mean'
    sum_loss: Annotated[
        bool, Field(description='the loss of every copy of a micro-batch is summed over the ranks, for display')
    ] = False
    reduce: Annotated[
        Literal['early', 'late'],
        Field(
            description="sum of a replicated activation's gradient: behind each column-parallel operator (Megatron), "
            'or at the backward of the earlier all-reduce (MindSpore)'
        ),
    ] = 'early'
    streams: Annotated[
        Literal['group', 'messages', 'single'],
        Field(
            description='a stream for each communication group; streams for messages between stages, while '
            'computation waits for collectives; or one for compute and communication: no overlap'
        ),
    ] = 'group'
    dataset: Annotated[
        Literal['data-parallel', 'full-batch'],
        Field(description='with strategies, what a rank reads: its slice of the batch, or all of it'),
    ] = 'data-parallel'
    device_matrix: Annotated[
        dict[Annotated[str, Field(max_length=40, pattern='^[A-Za-z0-9_]+$')], Annotated[int, Field(ge=1, le=2**20)]],
        Field(
            examples=[{'dp': 2, 'sp': 2, 'mp': 2}], description="axes that layers' layouts name, the outermost first"
        ),
    ] = field(default_factory=dict)
    redistribution: Annotated[
        Literal['cheapest', 'mindspore-2.0', 'mindspore-2.10', 'predicted'],
        Field(
            description='with strategies, how layouts change: by the fewest bytes, as the compiler does, or the fastest'
        ),
    ] = 'cheapest'
    all_to_all: Annotated[bool, Field(description='redistribution may use all-to-all')] = False
    strategies: Annotated[
        dict[
            Annotated[str, Field(min_length=1, max_length=256)],
            Annotated[Strategy, Field(min_length=1, max_length=4)],
        ],
        Field(
            max_length=2**14,
            examples=[{'layer*.fc1': [[2, 1, 1], [1, 4]]}],
            description='of operators of any model, by patterns of their names, the first that matches: slices of each '
            "of its inputs, and of a product's result, where its sum is scattered",
        ),
    ] = field(default_factory=dict)
    layouts: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=256)], Annotated[Layouts, Field(min_length=1)]],
        Field(
            max_length=2**14,
            examples=[{'layer*.fc1': [['dp', 'none', 'none'], ['none', 'mp']]}],
            description='the same by names of axes of device_matrix, joined by +, or none',
        ),
    ] = field(default_factory=dict)
    search: Annotated[
        Literal['none', 'sharding-propagation', 'double-recursive', 'exact'],
        Field(description="finds strategies for layers that have none: as MindSpore's searches do, or the best"),
    ] = 'none'
    compat: Annotated[
        Literal['2.0', '2.10'], Field(description="whose search it is: MindSpore's version, in quotes")
    ] = '2.10'
    objective: Annotated[
        Literal['bytes', 'time'], Field(description='of an exact search: bytes that a rank sends, or predicted step')
    ] = 'bytes'
    recompute: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] | Literal['none', 'full', 'selective'],
        Field(
            max_length=2**12,
            description='made again in the backward instead of kept: none, full (layers), selective (attention), '
            'or a list of patterns of operator names (check --ir writes them), '
            'e.g. layer3.*',
        ),
    ] = 'none'
    recompute_stages: Annotated[
        tuple[Annotated[int, Field(ge=0, le=2**12)], ...],
        Field(max_length=2**12, description='stages that recompute; empty: all'),
    ] = ()
    recompute_communication: Annotated[
        bool, Field(description='collectives among what is recomputed run again; false: their results are kept')
    ] = True
    shard: Annotated[
        tuple[Literal['state', 'gradients', 'weights'], ...],
        Field(max_length=3, description='what is sharded over the data ranks: state, gradients, weights'),
    ] = ()
    gather: Annotated[
        Literal['', 'after-update', 'on-use', 'on-use-twice'],
        Field(description='when sharded weights are gathered; empty: on-use where there are any, else after-update'),
    ] = ''
    hsdp: Annotated[
        Literal['off', 'level1', 'level2', 'level3'],
        Field(description="MindSpore's levels of shard and gather: states and weights, gradients too, gathered twice"),
    ] = 'off'
    zero: Annotated[
        int, Field(ge=0, le=3, description='stage of ZeRO: 1 shards states, 2 gradients too, 3 weights too')
    ] = 0
    shard_form: Annotated[
        Literal['', 'dim', 'padded', 'flat'],
        Field(
            description='how a parameter is sharded: dim (what does not divide stays full), padded (rows, as FSDP2), '
            'flat (a range of its message, as Megatron-LM); empty: dim; with zero, another where that does not divide'
        ),
    ] = ''
    shard_group: Annotated[
        int, Field(ge=0, le=2**20, description='neighbouring data ranks that share one set of shards; 0: all')
    ] = 0
    shard_threshold: Annotated[
        Bytes | None, Field(description='smaller parameters stay unsharded; none: 64 KiB with hsdp, else nothing')
    ] = None
    unsharded: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
        Field(max_length=2**12, description='patterns of names of parameters that stay unsharded, e.g. *.bias'),
    ] = ()
    accumulate: Annotated[
        Literal['', 'full', 'sharded'],
        Field(
            description='gradients over micro-batches: full, reduced once, or sharded, reduced every time; '
            'empty: sharded where gradients are sharded'
        ),
    ] = ''
    prefetch: Annotated[
        int, Field(ge=0, le=2**12, description='how many gathers ahead one is issued; 0: when needed')
    ] = 1
    reduce_gradients: Annotated[
        Literal['overlapped', 'end'],
        Field(description='sums of gradients under the backward, or behind it'),
    ] = 'overlapped'
    fusion: Annotated[
        Literal['layer', 'stage', 'none', 'all', 'auto', 'ids', 'predicted']
        | Bytes
        | tuple[Annotated[int, Field(ge=1, le=2**20)], ...],
        Field(
            description='gradients and weights in one message: of a layer, a stage, none, all, auto (64 MiB), a size, '
            'a list of split points, ids, or predicted: as is fastest'
        ),
    ] = 'layer'
    fusion_ids: Annotated[
        tuple[Annotated[int, Field(ge=0, le=2**20)], ...],
        Field(max_length=2**13, description='for fusion ids: one for each layer in order of use; 0: not fused'),
    ] = ()
    tiles: Annotated[
        int, Field(ge=1, le=1024, description='tiles of a product and its sum or gather, one under the next one')
    ] = 1
    overlap: Annotated[
        tuple[
            Literal[
                'matmul_grad_comm_overlap',
                'enable_grad_comm_opt',
                'enable_opt_shard_comm_opt',
                'recompute_comm_overlap',
            ],
            ...,
        ]
        | Literal['default'],
        Field(max_length=7, description="passes as keys of MindSpore's parallel_speed_up.json, no others; or default"),
    ] = 'default'

    def __repr__(self) -> str:
        # Some forty keys are as they are by default; what is left tells two plans apart all the same.
        told = ((one.name, getattr(self, one.name), _default(one)) for one in fields(self))
        return f'Plan({", ".join(f"{key}={value!r}" for key, value, default in told if value != default)})'


def _default(one: Named[Any]) -> Any:
    return one.default_factory() if callable(one.default_factory) else one.default


# A notebook asks ``simpar.plan('schedule.yaml')``, and this module has that name.
callable_module(__name__, 'simpar.planner.verb')
