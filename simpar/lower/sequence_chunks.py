"""Chunks of a sequence in a pipeline: each is an item of its own, and sees the keys and values of those before it.

Chunk 0 of a micro-batch goes first through the pipeline and comes back last. Keys and values of a chunk are kept until
then: later chunks read them forward, and backward add to their gradients (SeqPipe of MindSpore's ``seq_split_num``;
Sun et al. 2024, Seq1F1B, arXiv 2406.03488). A model is recorded for one chunk; ``by_chunk`` makes all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simpar.errors import Problem
from simpar.layout import TensorLayout
from simpar.layout.axis import size_of
from simpar.lower.context import TOKENS, Core
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.model.model import Graph
from simpar.model.operators.attention import Attention
from simpar.model.operators.context import CHUNK_ATTENTION
from simpar.model.operators.stream import Position
from simpar.pipeline.orders import ORDERS
from simpar.plan import Plan
from simpar.workload import Transformer, Workload

KEY = ('plan', 'sequence_chunks')


def sequence_chunks_fit(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Orders without chunks, counts that do not divide, and what is not built beside chunks."""
    chunks, model = plan.sequence_chunks, workload.model
    if chunks == 1:
        return
    if plan.rows or plan.order not in ORDERS or not ORDERS[plan.order].sequences:
        known = ', '.join(name for name, one in ORDERS.items() if one.sequences)
        yield Problem(KEY, f'{plan.order} takes whole samples', f'write 1, or one of these orders: {known}')
    if plan.pipeline == 1:
        yield Problem(KEY, 'there is no pipeline that chunks could fill', 'write 1, or pipeline above 1')
    if not isinstance(model, Transformer):
        yield Problem(KEY, 'chunks are of the sequence of a transformer', 'write 1')
        return
    split = chunks * (plan.tensor if plan.sequence_parallel else 1)
    if model.sequence % split:
        shown = f'{chunks} chunks' + (f' × tensor {plan.tensor}' if split > chunks else '')
        yield Problem(KEY, f'{model.sequence} tokens do not divide by {shown}', 'write a count that divides them')
    yield from _unbuilt(workload, model, plan)


def _unbuilt(workload: Workload, model: Transformer, plan: Plan) -> Iterator[Problem]:
    inside = ('workload', model.key)
    if model.experts is not None:
        what = 'not built beside sequence_chunks: routers fill experts by whole samples'
        yield Problem((*inside, 'experts'), what, 'leave them out, or write plan.sequence_chunks: 1')
    if plan.context > 1:
        what = 'not built beside sequence_chunks: both share out the tokens of a sample'
        yield Problem(('plan', 'context'), what, 'write 1, or plan.sequence_chunks: 1')
    if plan.strategies or plan.layouts or plan.search != 'none':
        what = 'strategies do not know chunks of a sequence'
        yield Problem(KEY, what, 'write 1, or data and tensor in place of strategies')
    if workload.loss_operators != 'one':
        what = 'not built beside sequence_chunks: its mean counts the tokens of whole samples'
        yield Problem(('workload', 'loss_operators'), what, 'write one, or plan.sequence_chunks: 1')
    attends = [node.operator for node in model.nodes if isinstance(node.operator, Attention)]
    if not attends:
        what = 'unfused attention over chunks is not built'
        yield Problem(KEY, what, 'write 1, or flash attention')
    elif not all(one.heads.causal for one in attends):
        what = 'without a causal mask a chunk would have to see those behind it'
        yield Problem(KEY, what, 'write 1, or causal attention')


def one_chunk(graph: Graph, chunks: int) -> Graph:
    """The graph of one of equal chunks of a sequence."""
    sequence = graph.sources[0].shape[TOKENS]

    def cut(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], sequence // chunks, *shape[2:]) if shape[1:2] == (sequence,) else shape

    nodes = tuple(
        # A table of positions has all rows, whichever of them a chunk reads.
        replace(node, operator=replace(node.operator, rows=node.operator.rows or sequence))
        if isinstance(node.operator, Position) else node
        for node in graph.nodes
    )  # fmt: skip
    sources = tuple(replace(source, shape=cut(source.shape)) for source in graph.sources)
    return replace(graph, nodes=nodes, sources=sources, shapes={name: cut(one) for name, one in graph.shapes.items()})


def attend_in_chunks(tape: Tape, name: str, operator: Attention, reads: Sequence[Value], y: Value) -> Value:
    """Emit attention of one chunk, and its backward, as if it were the first; returns its result.

    Arguments: ``name`` of the operator; ``reads``, queries, keys and values of the chunk, and with dropout the keys of
    masks; ``y``, a value of the result's name and shape.
    """
    qkv, *keys = reads
    core = Core(tape, name, operator, qkv, tuple(keys), y.like(y.name, TensorLayout(tape.world, qkv.layout.dims)))
    # Keys and values stay until no chunk reads them; queries end with their own chunk.
    core.apart()
    tape.register(core.y)
    lse = core.lse('lse')
    _emit(core, 'F', [core.q, core.kv], [core.y, lse])

    def backward(dy: Value) -> None:
        dq = core.made(core.q, f'd:{core.q.name}', core.gradient.layout)
        dkv = core.made(core.kv, f'd:{core.kv.name}', core.gradient.layout)
        _emit(core, 'I', [dy, core.q, core.y, lse, core.kv], [dq, dkv])
        core.together(dq, dkv)

    tape.backward_of(core.y, backward)
    return core.y


def _emit(core: Core, phase: str, reads: Sequence[Value], writes: Sequence[Value]) -> None:
    heads, held = core.heads, core.heads.groups_held(core.qkv.layout)
    dims = {
        'batch': core.qkv.shape[0] // size_of(core.qkv.layout.dims[0]) // core.tape.mesh.copies,
        'sequence': core.qkv.shape[TOKENS],
        'heads': held * heads.queries,
        'kv_heads': held,
        'head_dim': heads.head_dim,
        **({'value_dim': heads.values} if heads.values != heads.head_dim else {}),
    }
    core.tape.emit_compute(
        core.name,
        CHUNK_ATTENTION,
        'F' if phase == 'F' else 'I',
        [value.name for value in (*reads, *core.keys)],
        [value.name for value in writes],
        dims=dims,
        attributes={**heads.told_of(core.held), **core.dropped},
    )
