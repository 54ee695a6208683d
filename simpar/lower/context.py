"""Attention of a sequence that the context ranks share: keys and values are gathered, or go round the ranks.

``all_gather`` (Llama 3, arXiv 2407.21783): every rank gathers all keys and values, and once more in the backward, which
reduce-scatters their gradients. ``ring`` (Liu et al. 2023, arXiv 2310.01889): keys and values go round in N − 1 steps,
each under attention of those that are there; results of steps are joined by their log-sum-exp. Backward they go round
again, and their gradients one step behind them, until these are home. ``all_to_all`` stands in ``context_heads``.

Does not model: that ranks of a contiguous split have less to do than the one with the last tokens, as which all are
priced; in a ring with a window, that steps far away need not be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simpar.layout import TensorLayout
from simpar.layout.axis import size_of
from simpar.lower.context_split import ContextSplit
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.model.operators.attention import Attention, AttentionScores, Heads
from simpar.model.operators.context import CONTEXT_ATTENTION, SPLIT_QKV
from simpar.program.op import Attribute, Phase
from simpar.program.tensor import BYTES

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
    (_Ring(core) if ring else _Gathered(core)).forward()
    return core.y


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
            self.qkv.shape[TOKENS], mesh.context, mesh.balanced, self.heads.window, self.heads.documents
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
        self.tape.emit_collective('send_recv', phase, self.tape.context_axes, value.name, passed.name)
        return passed

    def added(self, going: Value | None, part: Value, name: str) -> Value:
        """The sum of gradients that came, if there are any, and of a part."""
        if going is None:
            return part
        total = self.made(part, name)
        self.tape.emit_compute(name, 'add', 'I', [going.name, part.name], [total.name], flops=self.tape.held(name))
        return total

    def gathered(self, part: str, phase: Phase) -> Value:
        """Keys and values of all ranks."""
        full = self.made(self.kv, f'{self.kv.name}.{part}', self.full)
        self.tape.emit_collective(
            'all_gather', phase, self.tape.context_axes, self.kv.name, full.name, {'dim': TOKENS}
        )  # fmt: skip
        return full

    @property
    def pending(self) -> TensorLayout:
        """Of gradients of all keys and values: each rank has a part of their sum."""
        return TensorLayout(self.tape.world, self.full.dims, (*self.gradient.layout.partial, *self.tape.context_axes))

    def scattered(self, dfull: Value) -> Value:
        """The sum of gradients of this rank's keys and values."""
        dkv = self.made(self.kv, f'd:{self.kv.name}', self.gradient.layout)
        self.tape.emit_collective(
            'reduce_scatter', 'I', self.tape.context_axes, dfull.name, dkv.name, {'dim': TOKENS}
        )  # fmt: skip
        return dkv

    def compute(
        self, part: str, phase: Phase, reads: Sequence[Value], writes: Sequence[Value], step: int | None = None
    ) -> None:
        """Attention of this rank's queries with some keys.

        Arguments: ``part`` of its name; ``step`` of the ring that keys came by; None: all keys.
        """
        pairs = self.split.of_ranks(step)
        heads, held = self.heads, self.heads.groups_held(self.qkv.layout)
        own = self.qkv.shape[TOKENS] // self.split.ranks
        dims = {
            'batch': self.qkv.shape[0] // size_of(self.qkv.layout.dims[0]) // self.tape.mesh.copies,
            'sequence': own,
            'keys': own if step is not None else self.qkv.shape[TOKENS],
            # All ranks take as long as the one with the most.
            'pairs': round(max(pairs)),
            'heads': held * heads.queries,
            'kv_heads': held,
            'head_dim': heads.head_dim,
            **({'value_dim': heads.values} if heads.values != heads.head_dim else {}),
        }
        keys, values = heads.head_dim, heads.values
        # A product takes 2 operations for each pair and feature. Forward: scores and values. Backward: scores again,
        # and four more.
        features = keys + values if phase == 'F' else 3 * keys + 2 * values
        flops = 2.0 * dims['batch'] * dims['heads'] * sum(pairs) / len(pairs) * features
        told = {
            **heads.told_of(self.held),
            'context': self.tape.partition(self.tape.context_axes),
            **({'balanced': self.split.ranks} if self.split.balanced else {}),
            **({} if step is None else {'step': step}),
            **self.dropped,
        }
        self.tape.emit_compute(
            f'{self.name}{part}',
            CONTEXT_ATTENTION,
            phase,
            [value.name for value in (*reads, *self.keys)],
            [value.name for value in writes],
            flops=flops,
            dims=dims,
            attributes=told,
        )

    @property
    def dropped(self) -> dict[str, Attribute]:
        """What kernels must know to draw masks of probabilities, of this rank's heads."""
        probability, groups = getattr(self.operator, 'dropout', 0.0), self.qkv.layout.dims[2]
        if not probability:
            return {}
        cut: dict[str, Attribute] = {'cut': 1, 'partition': self.tape.partition(groups)} if groups else {}
        return {'dropout': probability, 'site': self.name, **cut}


@dataclass(frozen=True)
class _Gathered:
    """All keys and values are gathered; kept is a rank's own part of them."""

    core: Core

    def forward(self) -> None:
        """Gather, and attend."""
        core = self.core
        core.apart()
        full = core.gathered('whole', 'F')
        core.tape.register(core.y)
        lse = core.lse('lse')
        core.compute('', 'F', [core.q, full], [core.y, lse])
        core.tape.backward_of(core.y, lambda dy: self._backward(dy, lse))

    def _backward(self, dy: Value, lse: Value) -> None:
        core = self.core
        full = core.gathered('again', 'I')
        dq = core.made(core.q, f'd:{core.q.name}', core.gradient.layout)
        dfull = core.made(core.kv, f'd:{core.kv.name}.whole', core.pending)
        core.compute('', 'I', [dy, core.q, full, core.y, lse], [dq, dfull])
        core.together(dq, core.scattered(dfull))


@dataclass(frozen=True)
class _Ring:
    """Keys and values go round; a rank sends to the one behind it, and receives from the one before."""

    core: Core

    def forward(self) -> None:
        """A step for each rank's keys, its own first."""
        core, steps = self.core, self._steps
        core.apart()
        kv, known = core.kv, list[Value]()
        lse = core.kv
        for step in range(core.split.ranks):
            here, kv = kv, core.passed(kv, f'{core.kv.name}{step + 1}', 'F', last=step == core.split.ranks - 1)
            if step not in steps:
                continue
            last = step == steps[-1]
            y = core.tape.register(core.y) if last else self._partial(core.y, f'.y{step}')
            lse = core.lse('lse' if last else f'lse{step}')
            core.compute(f'.step{step}', 'F', [core.q, here, *known], [y, lse], step)
            known = [y, lse]
        core.tape.backward_of(core.y, lambda dy: self._backward(dy, lse))

    @cached_property
    def _steps(self) -> list[int]:
        """Steps in which some rank sees some key."""
        return [step for step in range(self.core.split.ranks) if any(self.core.split.of_ranks(step))]

    def _partial(self, value: Value, part: str) -> Value:
        """What steps so far have given."""
        dtype = self.core.tape.dtype
        return self.core.made(value, f'{self.core.name}{part}', dtype=dtype if BYTES[dtype] >= BYTES[WIDE] else WIDE)

    def _backward(self, dy: Value, lse: Value) -> None:
        core, steps = self.core, self._steps
        kv, dq, own = core.kv, list[Value](), core.kv
        going: Value | None = None
        for step in range(core.split.ranks):
            final = step == core.split.ranks - 1
            here, kv = kv, core.passed(kv, f'{core.kv.name}{step + 1}.again', 'I', last=final)
            if step in steps:
                last = step == steps[-1]
                made = core.made(core.q, f'd:{core.q.name}{"" if last else step}', core.gradient.layout)
                part = core.made(core.kv, f'd:{core.kv.name}.part{step}', core.gradient.layout)
                reads = [dy, core.q, here, core.y, lse, *dq]
                core.compute(f'.step{step}', 'I', reads, [made, part], step)
                dq = [made]
                if step == 0:
                    own = part
                else:
                    going = core.added(going, part, f'd:{core.kv.name}.sum{step}')
            # Gradients follow the keys that they are of, one step behind; after the last step they come home.
            if going is not None:
                going = core.passed(going, f'd:{core.kv.name}.passed{step}', 'I')
        dkv = core.added(going, own, f'd:{core.kv.name}')
        core.together(dq[0], dkv)
