"""Attention of a sequence that the context ranks share: keys and values are gathered, or go round the ranks.

``all_gather`` (Llama 3, arXiv 2407.21783): every rank gathers all keys and values, and once more in the backward, which
reduce-scatters their gradients. ``ring`` (Liu et al. 2023, arXiv 2310.01889): keys and values go round in N − 1 steps,
each under attention of those that are there; results of steps are joined by their log-sum-exp. Backward they go round
again, and their gradients one step behind them, until these are home. ``all_to_all`` stands in ``context_heads``.

Does not model: that ranks of a contiguous split have less to do than the one with the last tokens, as which all are
priced; in a ring with a window, that steps far away need not be taken.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible
from simpar.layout import TensorLayout, minus, size_of
from simpar.lower.graph.move import Mover
from simpar.lower.tape import Tape, Value
from simpar.model.operators.attention import (
    CONTEXT_ATTENTION,
    CONTEXT_SCORES,
    CONTEXT_VALUES,
    JOIN_KEYS,
    REPEAT_KV,
    SPLIT_QKV,
    Attention,
    AttentionScores,
    Heads,
)
from simpar.program import BYTES, Attribute, Phase

# Which tokens of a sequence a context rank holds, and how many pairs of tokens attention has between two ranks.
#
# Contiguous: rank i of N holds part i of N. Balanced: of 2 N chunks it holds chunks i and 2 N − 1 − i, so that causal
# attention is equal work for all (Megatron-LM, Llama 3: arXiv 2407.21783, section 3.3.2).


Tokens = int | NDArray[np.int64]
"""A place in the sequence, or those of several ranks."""
Span = tuple[Tokens, Tokens]
"""First token, and the one behind the last."""
Pairs = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """A sequence on the ranks of a group.

    Arguments: ``sequence``, tokens; ``ranks``; ``balanced``: chunks from both ends; ``window``, tokens that one sees,
    0: all before it; ``documents``, lengths of those that it packs, empty: one.
    """

    sequence: int
    ranks: int
    balanced: bool
    window: int = 0
    documents: tuple[int, ...] = ()

    def spans(self, rank: Tokens) -> tuple[Span, ...]:
        """The tokens of a rank, or of several."""
        if not self.balanced:
            return (self._chunk(rank, self.ranks),)
        return self._chunk(rank, 2 * self.ranks), self._chunk(2 * self.ranks - 1 - rank, 2 * self.ranks)

    def _chunk(self, number: Tokens, count: int) -> Span:
        length = self.sequence // count
        return number * length, (number + 1) * length

    def pairs(self, queries: Tokens, keys: Tokens) -> Pairs:
        """Pairs of a rank's queries and another's keys of which the one sees the other; of several ranks at once."""
        counts: Pairs = np.sum([self._seen(q, k) for q in self.spans(queries) for k in self.spans(keys)], axis=0)
        return counts

    def of_all(self, queries: Tokens) -> Pairs:
        """The same with the keys of all ranks."""
        counts: Pairs = np.sum([self._seen(span, (0, self.sequence)) for span in self.spans(queries)], axis=0)
        return counts

    def _seen(self, queries: Span, keys: Span) -> Pairs:
        """Pairs of which the query is not before the key, in one document, and within a window.

        A token and itself count half, so that a square of s tokens has s² / 2 pairs, as attention without context
        counts.
        """
        documents = pairwise(accumulate(self.documents or (self.sequence,), initial=0))
        seen = [_pairs(_both(queries, one), _both(keys, one), self.window) for one in documents]
        counts: Pairs = np.sum(seen, axis=0)
        return counts

    def of_ranks(self, step: int | None = None) -> tuple[float, ...]:
        """For each rank its pairs with the keys of all ranks.

        Arguments: ``step`` of a ring: with those of the rank so many before it.
        """
        return _of_ranks(self, step)


@cache
def _of_ranks(split: ContextSplit, step: int | None) -> tuple[float, ...]:
    ranks = np.arange(split.ranks)
    pairs = split.of_all(ranks) if step is None else split.pairs(ranks, (ranks - step) % split.ranks)
    return tuple(pairs.tolist())


def _both(one: Span, other: Span) -> Span:
    begin = np.maximum(one[0], other[0])
    return begin, np.maximum(begin, np.minimum(one[1], other[1]))


def _pairs(queries: Span, keys: Span, window: int) -> Pairs:
    seen = _causal(queries, keys)
    return seen - _causal((queries[0] - window, queries[1] - window), keys) if window else seen


def _causal(queries: Span, keys: Span) -> Pairs:
    (first, end), (begin, last) = queries, keys

    def triangle(side: Tokens) -> Pairs:
        return np.maximum(side, 0) ** 2 / 2

    return triangle(end - begin) - triangle(first - begin) - triangle(end - last) + triangle(first - last)


WIDE = 'fp32'
"""Of results that steps of a ring join, at least."""
TOKENS = 1
"""The dim of places of a sequence."""


def attend(tape: Tape, name: str, operator: Attention, reads: Sequence[Value], y: Value, *, ring: bool) -> Value:
    """Emit attention, and its backward; returns its result.

    Arguments: ``name`` of the operator; ``reads``, its queries, keys and values as they lie, and with dropout the keys
    of masks; ``y``, a value of the result's name and shape.
    """
    qkv, *keys = reads
    core = Core(tape, name, operator, qkv, tuple(keys), y.like(y.name, TensorLayout(tape.world, qkv.layout.dims)))
    core.apart()
    # Steps in which some rank sees some key.
    steps = [step for step in core.steps(ring=ring) if step is None or any(core.split.of_ranks(step))]
    wide = tape.dtype if BYTES[tape.dtype] >= BYTES[WIDE] else WIDE
    previous: list[Value] = []
    for step, here in core.rounds('', 'F', ring=ring):
        if step in steps:
            last = step == steps[-1]
            made = tape.register(core.y) if last else core.made(core.y, f'{name}.y{step}', dtype=wide)
            lse = core.lse('lse' if last else f'lse{step}')
            core.compute('F', [core.q, here, *previous], [made, lse], step)
            previous = [made, lse]

    def backward(dy: Value) -> None:
        def compute(step: int | None, here: Value, dq: Sequence[Value], writes: Sequence[Value]) -> None:
            core.compute('I', [dy, core.q, here, core.y, previous[1], *dq], writes, step)

        core.backward('.again', steps, compute, ring=ring)

    tape.backward_of(core.y, backward)
    return core.y


Compute = Callable[[int | None, Value, Sequence[Value], Sequence[Value]], None]
"""Emits what makes gradients: step, keys and values that are there, the queries' gradient so far, what it writes."""


@dataclass(frozen=True)
class Core:
    """One attention: its tensors, and what its ops have alike."""

    tape: Tape
    name: str
    operator: Attention | AttentionScores
    qkv: Value
    keys: tuple[Value, ...]
    y: Value

    @property
    def heads(self) -> Heads:
        """Of the operator."""
        return self.operator.heads

    @cached_property
    def held(self) -> dict[str, Attribute]:
        """Which heads a rank has, for kernels."""
        return {**self.heads.held(self.qkv.layout)}

    @cached_property
    def split(self) -> ContextSplit:
        """Which tokens the ranks have."""
        mesh = self.tape.mesh
        return ContextSplit(
            self.qkv.shape[TOKENS],
            mesh.context // mesh.by_heads,
            mesh.balanced,
            self.heads.window,
            self.heads.documents,
        )

    @cached_property
    def full(self) -> TensorLayout:
        """Of keys and values of all tokens."""
        samples, _, groups = self.qkv.layout.dims
        return TensorLayout(self.tape.world, (samples, (), groups))

    @cached_property
    def q(self) -> Value:
        """Queries."""
        return self.value('q', self.heads.count * self.heads.head_dim)

    @cached_property
    def kv(self) -> Value:
        """Keys and values of this rank's tokens."""
        return self.value('kv', self.heads.groups * (self.heads.head_dim + self.heads.values))

    def value(self, part: str, features: int) -> Value:
        """A value of every token, not yet registered."""
        return Value(f'{self.name}.{part}', (*self.qkv.shape[:2], features), self.qkv.layout)

    def lse(self, part: str) -> Value:
        """A log-sum-exp for every head and token, registered."""
        samples, tokens, groups = self.qkv.layout.dims
        shape = (self.qkv.shape[0], self.heads.count, self.qkv.shape[TOKENS])
        value = Value(f'{self.name}.{part}', shape, TensorLayout(self.tape.world, (samples, groups, tokens)))
        return self.tape.register(value, dtype=WIDE)

    def apart(self) -> None:
        """Queries apart from keys and values."""
        for value in (self.q, self.kv):
            self.tape.register(value)
        self.tape.emit_compute(
            f'{self.name}.split', SPLIT_QKV, 'F', [self.qkv.name], [self.q.name, self.kv.name], attributes=self.held
        )

    def together(self, dq: Value, dkv: Value) -> None:
        """The gradient of all three."""
        gradient = self.tape.register(self.qkv.like(f'd:{self.qkv.name}@{self.name}', self.gradient.layout))
        self.tape.emit_compute(
            f'{self.name}.split', SPLIT_QKV, 'I', [dq.name, dkv.name], [gradient.name], attributes=self.held
        )
        self.tape.accumulate(self.qkv, gradient)

    @cached_property
    def gradient(self) -> Value:
        """A value that lies as gradients of this rank's tokens do."""
        return self.qkv.like('', self.tape.gradient_layout(self.qkv))

    def made(self, value: Value, name: str, layout: TensorLayout | None = None, dtype: str = '') -> Value:
        """Register another value of the same shape."""
        return self.tape.register(value.like(name, layout), dtype=dtype)

    def passed(self, value: Value, name: str, phase: Phase, *, last: bool = False) -> Value:
        """A value of the rank before this one; the last step passes nothing on."""
        if last:
            return value
        passed = self.made(value, name)
        self.tape.emit_collective('send_recv', phase, self.tape.axes.ring, value.name, passed.name)
        return passed

    def added(self, going: Value | None, part: Value, name: str) -> Value:
        """The sum of gradients that came, if there are any, and of a part."""
        if going is None:
            return part
        total = self.made(part, name)
        self.tape.emit_compute(name, 'add', 'I', [going.name, part.name], [total.name], flops=self.tape.held(name))
        return total

    def steps(self, *, ring: bool) -> Sequence[int | None]:
        """Of a ring, a step for each rank's keys, its own first; None: those of all ranks at once."""
        return range(self.split.ranks) if ring else (None,)

    def rounds(self, tag: str, phase: Phase, *, ring: bool) -> Iterator[tuple[int | None, Value]]:
        """Keys and values that are there by step. Arguments: ``tag``, the end of names of what goes round."""
        kv = self.kv
        for step in self.steps(ring=ring):
            here = kv if step is not None else self._gathered(phase)
            if step is not None:
                kv = self.passed(kv, f'{self.kv.name}{step + 1}{tag}', phase, last=step == self.split.ranks - 1)
            yield step, here

    def _gathered(self, phase: Phase) -> Value:
        """Keys and values of all ranks: what is gathered serves all of a forward, and of a backward."""
        full = self.kv.like(f'{self.kv.name}.{"whole" if phase == "F" else "again"}', self.full)
        if full.name not in self.tape.tensors:
            self.tape.register(full)
            self.tape.emit_collective(
                'all_gather', phase, self.tape.axes.ring, self.kv.name, full.name, {'dim': TOKENS}
            )  # fmt: skip
        return full

    def backward(self, tag: str, steps: Sequence[int | None], compute: Compute, *, ring: bool) -> None:
        """Gradients of queries, keys and values, of the ``steps`` in which some are made."""
        dq, own = list[Value](), self.kv
        going: Value | None = None
        for step, here in self.rounds(tag, 'I', ring=ring):
            if step in steps:
                name = f'd:{self.q.name}{"" if step == steps[-1] else step}'
                made = self.made(self.q, name, self.gradient.layout)
                ending, layout = ('whole', self.pending) if step is None else (f'part{step}', self.gradient.layout)
                part = self.made(self.kv, f'd:{self.kv.name}.{ending}', layout)
                compute(step, here, dq, [made, part])
                dq = [made]
                if step:
                    going = self.added(going, part, f'd:{self.kv.name}.sum{step}')
                else:
                    own = part
            # Gradients follow the keys that they are of, one step behind; after the last step they come home.
            if going is not None:
                going = self.passed(going, f'd:{self.kv.name}.passed{step}', 'I')
        dkv = self.added(going, own, f'd:{self.kv.name}') if ring else self.scattered(own)
        self.together(dq[0], dkv)

    @property
    def pending(self) -> TensorLayout:
        """Of gradients of all keys and values: each rank has a part of their sum."""
        return TensorLayout(self.tape.world, self.full.dims, (*self.gradient.layout.partial, *self.tape.axes.ring))

    def scattered(self, dfull: Value) -> Value:
        """The sum of gradients of this rank's keys and values."""
        dkv = self.made(self.kv, f'd:{self.kv.name}', self.gradient.layout)
        self.tape.emit_collective(
            'reduce_scatter', 'I', self.tape.axes.ring, dfull.name, dkv.name, {'dim': TOKENS}
        )  # fmt: skip
        return dkv

    def compute(self, phase: Phase, reads: Sequence[Value], writes: Sequence[Value], step: int | None) -> None:
        """Attention of this rank's queries with keys that came by a step of the ring; None: all keys."""
        pairs = self.split.of_ranks(step)
        heads, own = self.heads, self.qkv.shape[TOKENS] // self.split.ranks
        # All ranks take as long as the one with the most.
        most = {'keys': own if step is not None else self.qkv.shape[TOKENS], 'pairs': round(max(pairs))}
        dims = self.dims(own, most)
        keys, values = heads.head_dim, heads.values
        # A product takes 2 operations for each pair and feature. Forward: scores and values. Backward: scores again,
        # and four more.
        features = keys + values if phase == 'F' else 3 * keys + 2 * values
        flops = 2.0 * dims['batch'] * dims['heads'] * sum(pairs) / len(pairs) * features
        attributes = {
            **heads.told_of(self.held),
            'context': self.tape.partition(self.tape.axes.ring),
            **({'balanced': self.split.ranks} if self.split.balanced else {}),
            **({} if step is None else {'step': step}),
            **self.dropped,
        }
        self.tape.emit_compute(
            f'{self.name}{_of_step(step)}',
            CONTEXT_ATTENTION,
            phase,
            [value.name for value in (*reads, *self.keys)],
            [value.name for value in writes],
            flops=flops,
            dims=dims,
            attributes=attributes,
        )

    def dims(self, tokens: int, keys: Mapping[str, int] | None = None) -> dict[str, int]:
        """Of attention of this rank's heads and so many tokens; ``keys``, what is said of those that these see."""
        heads, held = self.heads, self.heads.groups_held(self.qkv.layout)
        return {
            'batch': self.qkv.shape[0] // size_of(self.qkv.layout.dims[0]) // self.tape.mesh.copies,
            'sequence': tokens,
            **(keys or {}),
            'heads': held * heads.queries,
            'kv_heads': held,
            'head_dim': heads.head_dim,
            **({'value_dim': heads.values} if heads.values != heads.head_dim else {}),
        }

    @property
    def dropped(self) -> dict[str, Attribute]:
        """What kernels must know to draw masks of probabilities, of this rank's heads."""
        probability, groups = getattr(self.operator, 'dropout', 0.0), self.qkv.layout.dims[2]
        if not probability:
            return {}
        cut: dict[str, Attribute] = {'cut': 1, 'partition': self.tape.partition(groups)} if groups else {}
        return {'dropout': probability, 'site': self.name, **cut}


def _of_step(step: int | None) -> str:
    return '' if step is None else f'.step{step}'


# Unfused attention of a sequence that context ranks share: each rank has the scores of its own queries with all keys.
#
# Keys and values are gathered, once forward and once more in the backward. Or they go round the ranks (Ring
# Self-Attention, Li et al. 2021, arXiv 2105.13120): once for the scores and once for the product with the values, and
# again for the gradients of both. Those of keys and values go round one step behind, until they are home. Scores and
# probabilities [batch, heads, tokens of a rank, tokens] go through memory, those that nobody sees among them.


KEYS = 3
"""The dim of keys of scores."""


@dataclass(eq=False)
class Unfused:
    """One attention, from its scores to its product with the values.

    Arguments: ``core``, its queries, keys and values; ``ring``: these go round; ``known``, what a backward hands on to
    that of the scores.
    """

    core: Core
    ring: bool
    known: dict[str, Value] = field(default_factory=dict)

    @property
    def _steps(self) -> Sequence[int | None]:
        return self.core.steps(ring=self.ring)

    # forward

    def scores(self, shape: Sequence[int]) -> Value:
        """Scores of this rank's queries with all keys; ``shape`` of all ranks'."""
        core = self.core
        core.apart()
        samples, tokens, groups = core.qkv.layout.dims
        y = Value(core.name, tuple(shape), TensorLayout(core.tape.world, (samples, groups, tokens, ())))
        blocks = []
        for step, here in core.rounds('', 'F', ring=self.ring):
            blocks.append(self._block(y, step))
            self._emit(core.name, CONTEXT_SCORES, 'F', step, [core.q, here], [blocks[-1]], core.heads.head_dim)
        self._join(y, blocks, 'F')
        core.tape.backward_of(y, self._scores_backward)
        return y

    def values(self, name: str, probabilities: Value, y: Value) -> Value:
        """Probabilities times values; ``y``, a value of the result's name and shape."""
        core, previous = self.core, list[Value]()
        y = y.like(y.name, core.qkv.layout)
        for step, here in core.rounds('.values', 'F', ring=self.ring):
            last = step == self._steps[-1]
            made = core.tape.register(y) if last else core.made(y, f'{y.name}.part{step}')
            self._emit(name, CONTEXT_VALUES, 'F', step, [probabilities, here, *previous], [made], core.heads.values)
            previous = [made]
        core.tape.backward_of(y, lambda dy: self._values_backward(name, probabilities, dy))
        return y

    # backward

    def _values_backward(self, name: str, probabilities: Value, dy: Value) -> None:
        core = self.core
        self.known |= {'dy': dy, 'probabilities': probabilities}
        gradient = probabilities.like(f'd:{probabilities.name}@{name}', core.tape.gradient_layout(probabilities))
        blocks = []
        for step, here in core.rounds('.again', 'I', ring=self.ring):
            blocks.append(self._block(gradient, step))
            self._emit(name, CONTEXT_VALUES, 'I', step, [dy, here], [blocks[-1]], core.heads.values)
        self._join(gradient, blocks, 'I')
        core.tape.accumulate(probabilities, gradient)

    def _scores_backward(self, dscores: Value) -> None:
        core = self.core
        reads = [dscores, self.known['probabilities'], self.known['dy'], core.q]
        features = 2 * core.heads.head_dim + core.heads.values

        def compute(step: int | None, here: Value, dq: Sequence[Value], writes: Sequence[Value]) -> None:
            self._emit(core.name, CONTEXT_SCORES, 'I', step, [*reads, here, *dq], writes, features)

        core.backward('.once.more', self._steps, compute, ring=self.ring)

    # blocks of scores

    def _block(self, full: Value, step: int | None) -> Value:
        """A part of scores or probabilities by keys; all of it where all keys are there."""
        if step is None:
            return self.core.tape.register(full)
        shape = (*full.shape[:KEYS], full.shape[KEYS] // len(self._steps))
        return self.core.tape.register(Value(f'{full.name}.block{step}', shape, full.layout))

    def _join(self, full: Value, blocks: Sequence[Value], phase: Phase) -> None:
        """The blocks in the order of keys."""
        if not self.ring:
            return
        tape = self.core.tape
        tape.register(full)
        names = [block.name for block in blocks]
        attributes: Mapping[str, Attribute] = {'context': tape.partition(tape.axes.ring)}
        tape.emit_compute(f'{full.name}.join', JOIN_KEYS, phase, names, [full.name], attributes=dict(attributes))

    def _emit(
        self, name: str, operator: str, phase: Phase, step: int | None, reads: Sequence[Value],
        writes: Sequence[Value], features: int,
    ) -> None:  # fmt: skip
        """A product with keys or values that are there; 2 operations for each pair and feature."""
        core, tape = self.core, self.core.tape
        keys = core.qkv.shape[TOKENS] // len(self._steps)
        rows = tape.held(core.q.name) // core.heads.head_dim
        tape.emit_compute(
            f'{name}{_of_step(step)}',
            operator,
            phase,
            [value.name for value in reads],
            [value.name for value in writes],
            flops=2.0 * rows * keys * features,
            dims={'m': rows, 'n': keys, 'k': features},
            attributes={
                **core.heads.told_of(core.held),
                'context': tape.partition(tape.axes.ring),
                **({} if step is None else {'step': step}),
            },
        )


def unfused(tape: Tape, name: str, operator: AttentionScores, qkv: Value, *, ring: bool) -> Unfused:
    """Attention that begins with the scores of an operator of a ``name``."""
    return Unfused(Core(tape, name, operator, qkv, (), qkv), ring)


# Attention of a sequence that the context ranks share, by heads: each rank gets all tokens of a part of the heads.
#
# Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv 2309.14509). Where there are fewer heads of keys and values than ranks,
# these are repeated before they are sent, as Arctic long sequence training does (arXiv 2506.13996): a group of heads
# becomes several with fewer queries. Backward, the gradients of the repeated ones are summed.


@dataclass(frozen=True)
class HeadsExchange:
    """All tokens of a part of the heads for a part of the tokens of all heads.

    Arguments: ``name`` of the operator; its ``heads``; ``qkv``, what it reads, by tokens; ``repeated``, by name what
    such values became before, it grows; ``each_query``: of fewer keys than ranks each query head gets one.
    """

    tape: Tape
    mover: Mover
    name: str
    heads: Heads
    qkv: Value
    repeated: dict[str, Value]
    each_query: bool = False

    @property
    def exchanged(self) -> Heads:
        """As many groups as the ranks that exchange them divide."""
        ranks = self.tape.mesh.by_heads * size_of(self.qkv.layout.dims[2])
        times = ranks // gcd(ranks, self.heads.groups)
        if self.heads.queries % times:
            raise Infeasible(
                f'{self.name}: {self.heads.count} heads cannot be exchanged among {ranks} context × tensor ranks; '
                f'choose {"a smaller context_by_heads" if self.tape.axes.ring else "context_kind all_gather or ring"}'
            )
        if self.each_query and ranks > self.heads.groups:
            times = self.heads.queries
        return replace(self.heads, groups=self.heads.groups * times, queries=self.heads.queries // times)

    def by_heads(self) -> Value:
        """Queries, keys and values with all tokens."""
        samples, tokens, groups = self.qkv.layout.dims
        by_heads = (*groups, *self.tape.axes.heads)
        target = TensorLayout(self.tape.world, (samples, minus(tokens, self.tape.axes.heads), by_heads))
        return self._mover.move(self._repeated(), target, f'{self.name}.heads')

    def by_tokens(self, y: Value) -> Value:
        """A result as the rank's own tokens."""
        samples, tokens, heads = y.layout.dims
        own = TensorLayout(
            self.tape.world, (samples, (*tokens, *self.tape.axes.heads), minus(heads, self.tape.axes.heads))
        )  # fmt: skip
        return self._mover.move(y, own, f'{self.name}.tokens')

    @property
    def _mover(self) -> Mover:
        return replace(self.mover, all_to_all=True)

    def _repeated(self) -> Value:
        """With a key and a value for each rank's heads, once for all that read them."""
        if self.exchanged == self.heads:
            return self.qkv
        if self.qkv.name not in self.repeated:
            self.repeated[self.qkv.name] = self._repeat()
        return self.repeated[self.qkv.name]

    def _repeat(self) -> Value:
        tape, qkv, exchanged = self.tape, self.qkv, self.exchanged
        shape = (*qkv.shape[:2], exchanged.groups * exchanged.width)
        result = tape.register(qkv._replace(name=f'{qkv.name}.repeated', shape=shape, again=None))
        op, added = f'{qkv.name}.repeat', tape.held(result.name)
        attributes = {**exchanged.held(qkv.layout), 'times': exchanged.groups // self.heads.groups}

        def back(gradient: Value) -> None:
            qkv_gradient = tape.new_gradient(qkv, 'repeated', gradient)
            tape.emit_compute(
                op, REPEAT_KV, 'I', [gradient.name], [qkv_gradient.name], flops=added, attributes=attributes
            )
            tape.accumulate(qkv, qkv_gradient)

        tape.emit_compute(op, REPEAT_KV, 'F', [qkv.name], [result.name], attributes=attributes)
        tape.backward_of(result, back)
        return result
