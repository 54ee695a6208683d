"""Plan: how the workload is divided over the ranks; knows no hardware."""

from dataclasses import dataclass, field, fields
from typing import Annotated, Final, Literal

from pydantic import Field

from simpar.document import Bytes
from simpar.keys import described
from simpar.model.keys import Layouts, Strategy

NEAREST_FIRST: Final = 'tensor-context-data-pipeline'
"""Axes of ranks, whose groups are the nearer, the more often they talk (Megatron-LM's order tp-cp-ep-dp-pp)."""
Axis = Annotated[str, Field(max_length=40, pattern='^[A-Za-z0-9_]+$')]
Count = Annotated[int, Field(ge=0, le=2**12)]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]
FusionWord = Literal['layer', 'stage', 'none', 'all', 'auto', 'ids', 'ddp', 'fsdp', 'predicted']
Pass = Literal[
    'matmul_grad_comm_overlap', 'enable_grad_comm_opt', 'enable_opt_shard_comm_opt', 'recompute_comm_overlap'
]


@dataclass(frozen=True, slots=True, kw_only=True)
@described('plan')
class Plan:
    """Degrees and switches.

    Arguments:
        data, tensor: degrees of data and tensor parallelism; ``data`` 0 takes the ranks that are left.
        sequence_parallel: norms and residuals are sharded along the sequence over the tensor ranks.
        copies: slices of the batch that interleave, one computing while another communicates.
        copies_loss: ``mean`` over the copies, or MindSpore's ``sum`` (MicroBatchInterleaved adds them undivided, so
            gradients are ``copies`` times as large).
        pairs: the forward of a micro-batch runs beside the backward of another, layer by layer: ``none``; ``overlap``,
            as Megatron's combined 1F1B; ``memory``, the same with the backward of attention before the forward of the
            experts, so that its activations end earlier, and less is hidden.
        weight_gradients: ``joint``: in pairs, all-to-alls of experts wait for gradients of weights before them;
            ``delayed``: they do not, and those of a stage's first layer come behind the sending of its gradient.
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
        context_heads: of an ``all_to_all`` among more ranks than there are key heads, these are repeated as often as
            ``ranks`` need, or for all ``queries`` that share them (MindSpeed).
        context_by_heads: of context ranks so many neighbours exchange heads for tokens, inside of a ring of the others
            or of their gathers (USP, arXiv 2405.07719; Megatron-LM's a2a+p2p).
        expert: ranks, neighbours, that share the experts of a mixture: each holds its part of all experts, and tokens
            go to them and back by all-to-alls.
        expert_ranks: which ranks these are: ``data`` ranks; ``context``, those of a sequence first, then data ranks;
            ``tensor``, tensor ranks first, then those of a sequence and data ranks, so that each expert is whole on
            its rank (Megatron-LM's expert tensor parallelism of 1).
        expert_tokens: with sequence parallelism tensor ranks send to experts ``sequence``, their own tokens, or
            ``features``, a part of the features of all their tokens, for which they exchange these by all-to-alls
            (MindSpeed's alltoall_seq).
        shared_experts: ``behind`` the others, or ``overlapped``, under the all-to-all that takes tokens to these
            (Megatron-LM's moe_shared_expert_overlap); their backward is under the one that takes gradients back.
        pipeline, micro_batches: pipeline ranks, and slices of the batch that flow through them.
        order: of forwards and backwards, by name (docs/pipeline_orders.md); ``zb-1p`` and ``zb-2p`` are found by
            resolving; the name of a CSV file in torch's spelling; ``chunks``, stages on each pipeline rank, 0 for the
            least that the order has.
        sequence_chunks: parts of every sample's sequence, each an item of the order: its attention sees the keys and
            values of the parts before it, and parts come back from the last to the first (MindSpore's seq_split_num).
        rows: the actions of each pipeline rank, in torch's spelling, in place of ``order``.
        stages: tuple[Count, ...] | Literal['balanced'] = ()
            ``balanced``: chosen by resolving, by predicted time and memory.
        placement: the axes of ranks over devices, the nearest first, as Megatron-LM's order tp-cp-dp-pp.
        receive: posted ``early``, as soon as the stream is free, or ``late``, when the computation before is done.
        exchange: ``separate``: computation goes on while a send waits for its receiver; ``fused``: what is sent and
            received between two computations is one exchange, and the next computation waits for all of it (Megatron).
        scatter_gather: what all tensor ranks of a stage hold is sent in parts, one by each, and gathered in the next
            stage (Megatron-LM's scatter_gather_tensors_in_pipeline).
        streams: ``group``: one stream for each communication group; ``messages``: collectives wait their turn on the
            compute stream, messages between stages have their own (Megatron-LM of 2021); ``single``: all communication
            waits its turn there, so that nothing overlaps.
        dataset: with strategies, what a rank reads: ``data-parallel``, its slice of the batch, or ``full-batch``.
        device_matrix: dict[Axis, Annotated[int, Field(ge=1, le=2**20)]] = field(default_factory=dict)
            stage replicates the calculation.
        redistribution: with strategies, how a tensor gets from layout to layout: ``cheapest``, by the fewest bytes, or
            as MindSpore's compiler of a version does; ``predicted``: one of these, with or without all-to-all, chosen
            by resolving; ``all_to_all``: may be used, as MindSpore's enable_alltoall.
        strategies, layouts: of single operators of any model, by patterns of their names, before what the model says
            itself; degrees, or the batch, split the others.
        search: who gives strategies to a network's layers that have none: ``none``, nobody (they are split by batch);
            MindSpore's ``sharding-propagation`` from the layers that have one, or ``double-recursive`` search, as
            ``compat``, its version, does; ``exact``, least ``objective``: bytes that a rank sends, or predicted step.
        recompute: tuple[Pattern, ...] | Literal['none', 'full', 'selective'] = 'none'
            keeping its input; ``selective``: the scores, softmax, dropout and values of attention (Korthikanti et al.
            2022), or flash attention; or patterns of operator names, e.g. ``layer*.gelu``, whose results are dropped.
            What a layer of a transformer hands on is always kept.
        recompute_stages: tuple[Count, ...] = ()
            or else their results are kept.
        offload: what leaves the device for the host: ``activations`` of layers, or those of
            their ``attention`` alone, behind their forward and back before
            their backward; states of the ``optimizer``, on the device while a layer is updated.
        offload_layers: how many layers of a stage, the first first, offload activations; 0: all but its last.
        offload_parts: in how many parts states of the optimizer come, one behind the other; 0: layer by layer.
        recompute_inputs: of recomputed layers each tensor rank keeps all inputs (``full``), or a slice of those that it
            holds as the others do (``sharded``), which they gather again.
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
            ``owned``, as flat, but that each of Muon's matrices is whole on one rank, which updates it (Megatron-LM);
            empty: ``dim``, but with ``zero`` for messages that do not divide ``flat`` (1, 2) and ``padded`` (3).
        shard_group: data ranks that share one set of shards, neighbours; sums go on over the groups; 0: all.
        second_shards: neighbouring data ranks that share out what they gathered first in a step; all further gathers of
            the step are among them (hpZ of ZeRO++), so that backwards gather inside of a server; 0: none.
        shard_threshold: parameters of fewer bytes (on a tensor rank) stay full; none: 64 KiB with ``hsdp``, else 0.
        unsharded: tuple[Pattern, ...] = ()
        accumulate: of several micro-batches, ``full`` gradients that are reduce-scattered once, or ``sharded`` ones,
            reduce-scattered every micro-batch; empty: sharded where gradients are.
        prefetch: how many gathers ahead one is issued: 0: when needed, after the computation before; k: when the
            weights k + 1 gathers before it are free again.
        reduce_gradients: sums of gradients ``overlapped`` with the backward, or all at its ``end``.
        fusion: which gradients and weights travel as one message: those of a ``layer``; those of a ``stage``, a
            chunk of a pipeline rank (Megatron-LM with a pipeline); ``none``; ``all`` (MindSpore's default, so that
            nothing overlaps); ``auto``, up to 64 MiB; a size, that a message stays
            below; split points, counted in gradients from the one that the backward finishes first; ``ids``: of equal
            ``comm_fusion`` marks or ``fusion_ids`` of layers in the order of their use; 0: each alone; ``ddp``: buckets
            of torch's DDP, gradients as they are ready, the first closed at 1 MiB, later ones at 25 MiB; ``fsdp``:
            groups of torch's FSDP2, one for each block and one for all else; ``predicted``: one of these, chosen by
            resolving.
        tiles: chunks, along the rows, of a matrix product and of the sum or gather next to it, so that one chunk's
            communication hides under the next one's product (CoC, MC2, AsyncTP).
        overlap: ``default``, or a list of passes as keys of MindSpore's parallel_speed_up.json; those not listed are
            off: ``matmul_grad_comm_overlap``, gradients of weights under the sum of their layer's dx;
            ``enable_grad_comm_opt``, the backward under sums of gradients (``reduce_gradients: overlapped``, else
            ``end``); ``enable_opt_shard_comm_opt``, weights gathered ahead (by ``prefetch``, else 0);
            ``recompute_comm_overlap``, recomputation under the sum before it. A stack says those that its framework has
            on, MindSpore none; ``default``: all but the last.
    """

    data: int = 0
    tensor: int = 1
    context: int = 1
    context_kind: Literal['all_gather', 'all_to_all', 'ring'] = 'all_gather'
    context_split: Literal['balanced', 'contiguous'] = 'balanced'
    context_heads: Literal['ranks', 'queries'] = 'ranks'
    context_by_heads: int = 1
    expert: int = 1
    expert_ranks: Literal['data', 'context', 'tensor'] = 'data'
    expert_tokens: Literal['sequence', 'features'] = 'sequence'
    shared_experts: Literal['behind', 'overlapped'] = 'behind'
    pipeline: int = 1
    micro_batches: int = 1
    order: str = '1f1b'
    chunks: int = 0
    sequence_chunks: int = 1
    rows: tuple[Annotated[str, Field(max_length=2**20)], ...] = ()
    stages: tuple[Count, ...] | Literal['balanced'] = ()
    placement: Annotated[str, Field(max_length=64)] = NEAREST_FIRST
    receive: Literal['early', 'late'] = 'early'
    exchange: Literal['separate', 'fused'] = 'separate'
    scatter_gather: bool = False
    sequence_parallel: bool = False
    copies: int = 1
    copies_loss: Literal['mean', 'sum'] = 'mean'
    pairs: Literal['none', 'overlap', 'memory'] = 'none'
    weight_gradients: Literal['joint', 'delayed'] = 'joint'
    sum_loss: bool = False
    reduce: Literal['early', 'late'] = 'early'
    streams: Literal['group', 'messages', 'single'] = 'group'
    dataset: Literal['data-parallel', 'full-batch'] = 'data-parallel'
    device_matrix: dict[Axis, Annotated[int, Field(ge=1, le=2**20)]] = field(default_factory=dict)
    redistribution: Literal['cheapest', 'mindspore-2.0', 'mindspore-2.10', 'predicted'] = 'cheapest'
    all_to_all: bool = False
    strategies: dict[Pattern, Annotated[Strategy, Field(min_length=1, max_length=4)]] = field(default_factory=dict)
    layouts: dict[Pattern, Annotated[Layouts, Field(min_length=1)]] = field(default_factory=dict)
    search: Literal['none', 'sharding-propagation', 'double-recursive', 'exact'] = 'none'
    compat: Literal['2.0', '2.10'] = '2.10'
    objective: Literal['bytes', 'time'] = 'bytes'
    recompute: tuple[Pattern, ...] | Literal['none', 'full', 'selective'] = 'none'
    recompute_stages: tuple[Count, ...] = ()
    recompute_communication: bool = True
    offload: tuple[Literal['activations', 'attention', 'optimizer'], ...] = ()
    offload_layers: int = 0
    offload_parts: int = 0
    recompute_inputs: Literal['full', 'sharded'] = 'full'
    shard: tuple[Literal['state', 'gradients', 'weights'], ...] = ()
    gather: Literal['', 'after-update', 'on-use', 'on-use-twice'] = ''
    hsdp: Literal['off', 'level1', 'level2', 'level3'] = 'off'
    zero: int = 0
    shard_form: Literal['', 'dim', 'padded', 'flat', 'owned'] = ''
    shard_group: int = 0
    second_shards: int = 0
    shard_threshold: Bytes | None = None
    unsharded: tuple[Pattern, ...] = ()
    accumulate: Literal['', 'full', 'sharded'] = ''
    prefetch: int = 1
    reduce_gradients: Literal['overlapped', 'end'] = 'overlapped'
    fusion: FusionWord | Bytes | tuple[Annotated[int, Field(ge=1, le=2**20)], ...] = 'layer'
    fusion_ids: tuple[Annotated[int, Field(ge=0, le=2**20)], ...] = ()
    tiles: int = 1
    overlap: tuple[Pass, ...] | Literal['default'] = 'default'

    def __repr__(self) -> str:
        # Some forty keys are as they are by default; what is left tells two plans apart all the same.
        plain = Plan()
        rows = ((one.name, getattr(self, one.name), getattr(plain, one.name)) for one in fields(self))
        return f'Plan({", ".join(f"{key}={value!r}" for key, value, default in rows if value != default)})'
