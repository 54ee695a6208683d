"""Unfused attention of a sequence that context ranks share: each rank has the scores of its own queries with all keys.

Keys and values are gathered, once forward and once more in the backward. Or they go round the ranks (Ring
Self-Attention, Li et al. 2021, arXiv 2105.13120): once for the scores and once for the product with the values, and
again for the gradients of both. Those of keys and values go round one step behind, until they are home. Scores and
probabilities [batch, heads, tokens of a rank, tokens] go through memory, those that nobody sees among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simpar.layout import TensorLayout
from simpar.lower.context import TOKENS, Core
from simpar.lower.value import Value
from simpar.model.operators.context import CONTEXT_SCORES, CONTEXT_VALUES, JOIN_KEYS
from simpar.program.op import Attribute, Phase

if TYPE_CHECKING:
    from simpar.lower.tape import Tape
    from simpar.model.operators.attention import AttentionScores

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
    def _steps(self) -> int:
        return self.core.split.ranks if self.ring else 1

    # forward

    def scores(self, shape: Sequence[int]) -> Value:
        """Scores of this rank's queries with all keys; ``shape`` of all ranks'."""
        core = self.core
        core.apart()
        samples, tokens, groups = core.qkv.layout.dims
        y = Value(core.name, tuple(shape), TensorLayout(core.tape.world, (samples, groups, tokens, ())))
        blocks = []
        for step, here in self._round('', 'F'):
            blocks.append(self._block(y, step))
            self._emit('', CONTEXT_SCORES, 'F', step, [core.q, here], [blocks[-1]], core.heads.head_dim)
        self._join(y, blocks, 'F')
        core.tape.backward_of(y, self._scores_backward)
        return y

    def values(self, name: str, probabilities: Value, y: Value) -> Value:
        """Probabilities times values; ``y``, a value of the result's name and shape."""
        core, known = self.core, list[Value]()
        y = y.like(y.name, core.qkv.layout)
        for step, here in self._round('.values', 'F'):
            last = step in (None, self._steps - 1)
            made = core.tape.register(y) if last else core.made(y, f'{y.name}.part{step}')
            self._emit(
                '', CONTEXT_VALUES, 'F', step, [probabilities, here, *known], [made], core.heads.values, name=name
            )
            known = [made]
        core.tape.backward_of(y, lambda dy: self._values_backward(name, probabilities, dy))
        return y

    # backward

    def _values_backward(self, name: str, probabilities: Value, dy: Value) -> None:
        core = self.core
        self.known |= {'dy': dy, 'probabilities': probabilities}
        gradient = probabilities.like(f'd:{probabilities.name}@{name}', core.tape.gradient_layout(probabilities))
        blocks = []
        for step, here in self._round('.again', 'I'):
            blocks.append(self._block(gradient, step))
            self._emit('', CONTEXT_VALUES, 'I', step, [dy, here], [blocks[-1]], core.heads.values, name=name)
        self._join(gradient, blocks, 'I')
        core.tape.accumulate(probabilities, gradient)

    def _scores_backward(self, dscores: Value) -> None:
        core, dq = self.core, list[Value]()
        reads = [dscores, self.known['probabilities'], self.known['dy'], core.q]
        features = 2 * core.heads.head_dim + core.heads.values
        own, going = core.kv, None
        for step, here in self._round('.once.more', 'I'):
            last = step in (None, self._steps - 1)
            made = core.made(core.q, f'd:{core.q.name}{"" if last else step}', core.gradient.layout)
            part = (
                core.made(core.kv, f'd:{core.kv.name}.whole', core.pending)
                if step is None
                else core.made(core.kv, f'd:{core.kv.name}.part{step}', core.gradient.layout)
            )
            self._emit('', CONTEXT_SCORES, 'I', step, [*reads, here, *dq], [made, part], features)
            dq = [made]
            if not step:
                own = part
            else:
                going = core.passed(
                    core.added(going, part, f'd:{core.kv.name}.sum{step}'), f'd:{core.kv.name}.passed{step}', 'I'
                )
        core.together(dq[0], core.added(going, own, f'd:{core.kv.name}') if self.ring else core.scattered(own))

    # keys and values, and blocks of scores

    def _round(self, tag: str, phase: Phase) -> Iterator[tuple[int | None, Value]]:
        """Keys and values that are there by step; None: those of all ranks."""
        core = self.core
        if not self.ring:
            # What is gathered serves scores and values, and in the backward the gradients of both.
            if phase not in self.known:
                self.known[phase] = core.gathered('whole' if phase == 'F' else 'again', phase)
            yield None, self.known[phase]
            return
        kv = core.kv
        for step in range(self._steps):
            here, last = kv, step == self._steps - 1
            kv = core.passed(kv, f'{core.kv.name}{step + 1}{tag}', phase, last=last)
            yield step, here

    def _block(self, whole: Value, step: int | None) -> Value:
        """A part of scores or probabilities by keys; all of it where all keys are there."""
        if step is None:
            return self.core.tape.register(whole)
        shape = (*whole.shape[:KEYS], whole.shape[KEYS] // self._steps)
        return self.core.tape.register(Value(f'{whole.name}.block{step}', shape, whole.layout))

    def _join(self, whole: Value, blocks: Sequence[Value], phase: Phase) -> None:
        """The blocks in the order of keys."""
        if not self.ring:
            return
        tape = self.core.tape
        tape.register(whole)
        names = [block.name for block in blocks]
        told: Mapping[str, Attribute] = {'context': tape.partition(tape.context_axes)}
        tape.emit_compute(f'{whole.name}.join', JOIN_KEYS, phase, names, [whole.name], attributes=dict(told))

    def _emit(
        self, part: str, operator: str, phase: Phase, step: int | None, reads: Sequence[Value],
        writes: Sequence[Value], features: int, name: str = '',
    ) -> None:  # fmt: skip
        """A product with keys or values that are there; 2 operations for each pair and feature."""
        core, tape = self.core, self.core.tape
        sequence = core.qkv.shape[TOKENS]
        keys = sequence if step is None else sequence // self._steps
        rows = tape.held(core.q.name) // core.heads.head_dim
        tape.emit_compute(
            f'{name or core.name}{part}{"" if step is None else f".step{step}"}',
            operator,
            phase,
            [value.name for value in reads],
            [value.name for value in writes],
            flops=2.0 * rows * keys * features,
            dims={'m': rows, 'n': keys, 'k': features},
            attributes={
                **core.heads.told_of(core.held),
                'context': tape.partition(tape.context_axes),
                **({} if step is None else {'step': step}),
            },
        )


def unfused(tape: Tape, name: str, operator: AttentionScores, qkv: Value, *, ring: bool) -> Unfused:
    """Attention that begins with the scores of an operator of a ``name``."""
    return Unfused(Core(tape, name, operator, qkv, (), qkv), ring)
