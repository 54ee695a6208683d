"""The ops of a stage for every chunk of a sequence, from those of one; see ``sequence_chunks``.

Each chunk has activations of its own, ``layer0.q.chunk1``, and ops of its own; weights and their gradients are shared.
Attention of a chunk also reads keys and values of earlier chunks, and hands sums of their gradients on to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simpar.errors import Problem
from simpar.keys import conflicts_of
from simpar.layout import TensorLayout
from simpar.lower.graph.context import TOKENS, ContextSplit, Core
from simpar.lower.tape import Tape, Value
from simpar.model.model import Graph
from simpar.model.operators.attention import CHUNK_ATTENTION, Attention
from simpar.model.operators.stream import Position
from simpar.pipeline.orders import ORDERS
from simpar.plans import Plan
from simpar.program import OpClass, Phase
from simpar.workload import Transformer, Workload

# Chunks of a sequence in a pipeline: each is an item of its own, and sees the keys and values of those before it.
#
# Chunk 0 of a micro-batch goes first through the pipeline and comes back last. Keys and values of a chunk are kept
# until then: later chunks read them forward, and backward add to their gradients (SeqPipe of MindSpore's
# ``seq_split_num``; Sun et al. 2024, Seq1F1B, arXiv 2406.03488). A model is recorded for one chunk; ``by_chunk``
# makes all of it.


KEY = ('plan', 'sequence_chunks')


def sequence_chunks_fit(workload: Workload, plan: Plan) -> Iterator[Problem]:
    """Orders without chunks, counts that do not divide, and what is not built beside chunks."""
    chunks, model = plan.sequence_chunks, workload.model
    if chunks == 1:
        return
    if plan.rows or plan.order not in ORDERS or not ORDERS[plan.order].sequences:
        orders = ', '.join(name for name, one in ORDERS.items() if one.sequences)
        yield Problem(KEY, f'{plan.order} takes whole samples', f'write 1, or one of these orders: {orders}')
    if plan.pipeline == 1:
        yield Problem(KEY, 'there is no pipeline that chunks could fill', 'write 1, or pipeline above 1')
    if not isinstance(model, Transformer):
        yield Problem(KEY, 'chunks are of the sequence of a transformer', 'write 1')
        return
    split = chunks * (plan.tensor if plan.sequence_parallel else 1)
    if model.sequence % split:
        text = f'{chunks} chunks' + (f' × tensor {plan.tensor}' if split > chunks else '')
        yield Problem(KEY, f'{model.sequence} tokens do not divide by {text}', 'write a count that divides them')
    yield from _unbuilt(workload, model, plan)


def _unbuilt(workload: Workload, model: Transformer, plan: Plan) -> Iterator[Problem]:
    yield from conflicts_of('sequence_chunks', workload=workload, model=model, plan=plan)
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

    def shard(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], sequence // chunks, *shape[2:]) if shape[1:2] == (sequence,) else shape

    nodes = tuple(
        # A table of positions has all rows, whichever of them a chunk reads.
        replace(node, operator=replace(node.operator, rows=node.operator.rows or sequence))
        if isinstance(node.operator, Position) else node
        for node in graph.nodes
    )  # fmt: skip
    sources = tuple(replace(source, shape=shard(source.shape)) for source in graph.sources)
    return replace(graph, nodes=nodes, sources=sources, shapes={name: shard(one) for name, one in graph.shapes.items()})


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


def _emit(core: Core, phase: Phase, reads: Sequence[Value], writes: Sequence[Value]) -> None:
    core.tape.emit_compute(
        core.name,
        CHUNK_ATTENTION,
        phase,
        [value.name for value in (*reads, *core.keys)],
        [value.name for value in writes],
        dims=core.dims(core.qkv.shape[TOKENS]),
        attributes={**core.heads.told_of(core.held), **core.dropped},
    )


POSITIONED: Final = frozenset({'position', 'rotary', 'latent_qkv', CHUNK_ATTENTION})
"""Operators that must know the place of their tokens."""
LOSS: Final = 'loss'
_CHUNK: Final = re.compile(r'\.chunk\d+')


@dataclass(frozen=True, eq=False)
class ByChunk:
    """Chunks of what is on a tape; its tensors become theirs.

    Arguments: ``count`` of chunks; ``sequence``, tokens of a sample; ``own``, tensors of which every chunk has one:
    activations, and inputs that have a sequence.
    """

    tape: Tape
    count: int
    sequence: int
    own: frozenset[str]

    @classmethod
    def of(cls, tape: Tape, ops: Sequence[OpClass]) -> ByChunk:
        """Chunks of what the ops of all stages make, which are those of one chunk."""
        inputs = {
            name: one.shape[TOKENS] for name, one in tape.tensors.items() if one.kind == 'input' and one.shape[1:]
        }
        (tokens,) = set(inputs.values())
        losses = (LOSS, f'{LOSS}.total')
        written = {name for op in ops for name in op.writes if tape.tensors[name].kind == 'activation'}
        count = tape.mesh.sequence_chunks
        return cls(tape, count, count * tokens, frozenset((written - {*losses}) | set(inputs)))

    def forget(self) -> None:
        """Take what is a chunk's no more off the tape; inputs stay, in full."""
        for name in self.own:
            if self.tape.tensors[name].kind == 'activation':
                del self.tape.tensors[name]

    def names(self, names: Sequence[str], chunk: int) -> tuple[str, ...]:
        """Tensors as a chunk has them."""
        return tuple([self.name(name, chunk) for name in names])

    def name(self, name: str, chunk: int) -> str:
        """A tensor as a chunk has it, registered; the full inputs and the loss are known beside."""
        if name not in self.own and name != LOSS:
            return name
        return self._registered(name, f'{name}.chunk{chunk}')

    def _registered(self, like: str, name: str) -> str:
        if name not in self.tape.tensors:
            one = self.tape.tensors[like]
            self.tape.tensors[name] = replace(one, name=name, kind='activation', initial='', like='')
        return name

    def ops(self, ops: Sequence[OpClass], chunk: int) -> list[OpClass]:
        """The ops of a chunk.

        Arguments: ``ops`` of one chunk, in order: a part of a stage's forward or backward.
        """
        chunk_ops: list[OpClass] = []
        for op in ops:
            if LOSS in op.reads:
                # The sum of a micro-batch's loss over ranks, for display: once, behind the last chunk's.
                chunk_ops += [op] if chunk == self.count - 1 else []
                continue
            chunk_ops.append(self._attention(op, chunk) if op.operator == CHUNK_ATTENTION else self._op(op, chunk))
            if chunk and LOSS in op.writes:
                chunk_ops.append(self._loss(op, chunk))
        return chunk_ops

    def _op(self, op: OpClass, chunk: int) -> OpClass:
        # Masks of dropout are drawn by the places of elements, too.
        placed = op.operator in POSITIONED or 'site' in op.attributes
        first = {'first': chunk * self.sequence // self.count} if chunk and placed else {}
        return replace(
            op,
            name=_named(op, chunk),
            reads=self.names(op.reads, chunk),
            writes=self.names(op.writes, chunk),
            attributes={**op.attributes, **first},
        )

    def split(self, ops: Sequence[OpClass]) -> list[OpClass]:
        """Ops that split the inputs of a stage, before its first chunk."""
        tensors = self.tape.tensors
        inputs = [
            name for name in dict.fromkeys(name for op in ops for name in op.reads)
            if name in self.own and tensors[name].kind == 'input'
        ]  # fmt: skip
        splits = []
        for name in inputs:
            parts = tuple(self.name(name, chunk) for chunk in range(self.count))
            shape = tensors[name].shape
            full = (shape[0], self.sequence, *shape[TOKENS + 1 :])
            tensors[name] = replace(tensors[name], shape=full)
            stage, dtype = ops[0].stage, tensors[name].dtype
            splits.append(
                OpClass(f'{name}.chunks.F', kind='compute', operator='split', phase='F', dtype=dtype, reads=(name,),
                        writes=parts, attributes={'dim': TOKENS, 'blocks': 1}, stage=stage)
            )  # fmt: skip
        return splits

    def _loss(self, op: OpClass, chunk: int) -> OpClass:
        """The loss of all chunks so far: the last one's is the loss."""
        own, before = self.name(LOSS, chunk), self.name(LOSS, 0) if chunk == 1 else f'{LOSS}.until{chunk - 1}'
        total = LOSS if chunk == self.count - 1 else self._registered(LOSS, f'{LOSS}.until{chunk}')
        return OpClass(f'{LOSS}.until{chunk}.F', kind='compute', operator='add', phase='F', dtype=op.dtype,
                       reads=(before, own), writes=(total,), stage=op.stage)  # fmt: skip

    # attention

    def _attention(self, op: OpClass, chunk: int) -> OpClass:
        heads = op.attributes
        split = self._split(int(heads.get('window', 0)), str(heads.get('documents', '')))
        seen = _seen(split, chunk)
        # A chunk between those that see a key sees it, too: the chunk behind has added up what all later ones give.
        handed = [one for one in seen if chunk < self.count - 1 and one >= _seen(split, chunk + 1)[0]]
        base = self._op(op, chunk)
        if op.phase == 'F':
            q, kv, *masks = op.reads
            reads, writes = [self.name(q, chunk), *(self.name(kv, one) for one in seen)], [*base.writes]
        else:
            dy, q, y, lse, kv, *masks = op.reads
            mine = (dy, q, y, lse)
            dq, dkv = op.writes
            keys = [self.name(kv, one) for one in seen]
            reads = [*self.names(mine, chunk), *keys, *(self._handed(dkv, one, chunk + 1) for one in handed)]
            writes = [self.name(dq, chunk), *(self._handed(dkv, one, chunk) for one in seen)]
        tokens = self.sequence // self.count
        pairs, dims = float(split.of_all(chunk)), op.dims
        key, value = dims['head_dim'], dims.get('value_dim', dims['head_dim'])
        features = key + value if op.phase == 'F' else 3 * key + 2 * value
        return replace(
            base,
            reads=(*reads, *masks),
            writes=tuple(writes),
            dims={**dims, 'keys': len(seen) * tokens, 'pairs': round(pairs)},
            flops=2.0 * dims['batch'] * dims['heads'] * pairs * features,
            bytes=float(sum(map(self.tape.held_bytes, (*reads, *masks, *writes)))),
            attributes={**base.attributes, 'first_key': seen[0] * tokens, 'parts': len(seen), 'tokens': self.sequence},
        )

    def _split(self, window: int, documents: str) -> ContextSplit:
        """Chunks of a sequence see one another as contiguous parts on context ranks do."""
        return ContextSplit(self.sequence, self.count, False, window, tuple(map(int, documents.split())))

    def _handed(self, dkv: str, chunk: int, by: int) -> str:
        """The gradient of a chunk's keys and values, as a chunk leaves it; its own leaves the sum of all."""
        return self.name(dkv, chunk) if by == chunk else self._registered(dkv, f'{dkv}.chunk{chunk}.by{by}')


def _seen(split: ContextSplit, chunk: int) -> range:
    """The chunks that one sees, itself the last."""
    return range(next(one for one in range(chunk + 1) if split.pairs(chunk, one)), chunk + 1)


def of_any_chunk(name: str) -> str:
    """The name of an op or a tensor as that of one chunk is on a tape."""
    return _CHUNK.sub('', name)


def _named(op: OpClass, chunk: int) -> str:
    """The name of an op with its chunk before its phase."""
    head, phase, tail = op.name.rpartition(f'.{op.phase}')
    return f'{head}.chunk{chunk}{phase}{tail}' if phase else f'{op.name}.chunk{chunk}'
