"""Attention on the tape: flash, which keeps no probabilities, or unfused, which keeps them, dropped or not.

Arguments of both: ``qkv`` [batch, sequence, groups × (queries + 2) × head_dim], whole or cut by groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.lower.dropout import Dropout, drop
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.program.op import Attribute


@dataclass(frozen=True, slots=True)
class Heads:
    """Arguments: ``groups`` of heads that share a key and a value; ``queries`` of a group; ``head_dim``, features."""

    groups: int
    queries: int
    head_dim: int

    def local(self, tape: Tape, qkv: Value) -> int:
        """Groups on one rank."""
        return self.groups // (tape.mesh.tensor if qkv.cut is not None else 1)

    def attributes(self, tape: Tape, qkv: Value) -> dict[str, Attribute]:
        """What a kernel must know."""
        return {
            'groups': self.local(tape, qkv),
            'queries': self.queries,
            'head_dim': self.head_dim,
            'causal': True,
        }


def flash(tape: Tape, name: str, qkv: Value, heads: Heads, dropout: Dropout | None = None) -> Value:
    """Causal attention, flash form: probabilities are not kept; the backward does the scores again (5 products to 2).

    Dropped probabilities are drawn again as well. Causal: half of the scores.
    """
    batch, sequence, _ = qkv.shape
    count = heads.groups * heads.queries
    y = tape.activation(Value(name, (batch, sequence, count * heads.head_dim), cut=qkv.cut))
    lse_cut = 1 if qkv.cut is not None else None
    lse = tape.activation(Value(f'{name}.lse', (batch, count, sequence), cut=lse_cut), 'fp32')
    local = heads.local(tape, qkv)
    dims = {
        'batch': batch // (tape.mesh.data * tape.mesh.copies),
        'sequence': sequence,
        'heads': local * heads.queries,
        'kv_heads': local,
        'head_dim': heads.head_dim,
    }
    product = dims['batch'] * dims['heads'] * sequence * sequence * heads.head_dim
    attributes, keys = heads.attributes(tape, qkv), []
    if dropout is not None:
        attributes, keys = {**attributes, **dropout.attributes(name, lse_cut)}, [dropout.keys]
    tape.compute(name, 'attention', 'F', [qkv, *keys], [y, lse], flops=2.0 * product, dims=dims,
                 attributes=attributes)  # fmt: skip

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is not None:
            dqkv = tape.activation(qkv.like(f'd:{qkv.name}@{name}', partial=dy.partial))
            tape.compute(name, 'attention', 'I', [dy, qkv, y, lse, *keys], [dqkv], flops=5.0 * product, dims=dims,
                 attributes=attributes)  # fmt: skip
            tape.contribute(qkv, dqkv)

    tape.on_backward(backward)
    return y


def unfused(tape: Tape, name: str, qkv: Value, heads: Heads, dropout: Dropout | None = None) -> Value:
    """Scores, softmax, dropout and the product with the values one after the other, each through memory.

    Kept for the backward, a head and pair of tokens: the probability, and with dropout its mask and what is left of it
    (Megatron-LM without flash attention; 5 a s² b bytes in 16 bits). All scores are computed, then those of the future
    are masked.
    """
    batch, sequence, _ = qkv.shape
    shape = (batch, heads.groups * heads.queries, sequence, sequence)
    cut = 1 if qkv.cut is not None else None
    attributes = heads.attributes(tape, qkv)
    values = Value(f'd:{name}.v', (batch, sequence, heads.groups * heads.head_dim), cut=qkv.cut)
    scores = tape.activation(Value(f'{name}.scores', shape, cut=cut))
    rows, width = tape.elements(scores) // sequence, heads.head_dim
    product = 2.0 * rows * sequence * width
    inner, outer = {'n': sequence, 'k': width}, {'n': width, 'k': sequence}
    one, two = {'m': rows}, {'m': 2 * rows}
    tape.compute(f'{name}.scores', 'attention_scores', 'F', [qkv], [scores], flops=product, dims=one | inner,
                 attributes=attributes)  # fmt: skip

    def scores_backward() -> None:
        dscores = tape.gradient(scores)
        if dscores is not None:
            dqkv = tape.activation(qkv.like(f'd:{qkv.name}@{name}', partial=dscores.partial))
            dv = Value(values.name, values.shape, values.cut, dscores.partial)
            tape.compute(f'{name}.scores', 'attention_scores', 'I', [dscores, qkv, dv], [dqkv], flops=2 * product,
                         dims=two | outer, attributes=attributes)  # fmt: skip
            tape.contribute(qkv, dqkv)

    tape.on_backward(scores_backward)
    kept = drop(tape, name, _softmax(tape, f'{name}.softmax', scores), dropout)
    y = tape.activation(Value(name, (batch, sequence, shape[1] * width), cut=qkv.cut))
    tape.compute(name, 'attention_values', 'F', [kept, qkv], [y], flops=product, dims=one | outer,
                 attributes=attributes)  # fmt: skip

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is not None:
            dkept = tape.activation(kept.like(f'd:{kept.name}@{name}', partial=dy.partial))
            dv = tape.activation(Value(values.name, values.shape, values.cut, dy.partial))
            tape.compute(name, 'attention_values', 'I', [dy, kept, qkv], [dkept, dv], flops=2 * product,
                         dims=two | inner, attributes=attributes)  # fmt: skip
            tape.contribute(kept, dkept)

    tape.on_backward(backward)
    return y


def _softmax(tape: Tape, name: str, scores: Value) -> Value:
    """Probabilities of causal scores; about five operations an element."""
    attributes: dict[str, Attribute] = {'causal': True}
    y = tape.activation(scores.like(name))
    tape.compute(name, 'softmax', 'F', [scores], [y], flops=5 * tape.elements(scores), attributes=attributes)

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is not None:
            dscores = tape.activation(dy.like(f'd:{scores.name}@{name}'))
            tape.compute(name, 'softmax', 'I', [dy, y], [dscores], flops=4 * tape.elements(scores))
            tape.contribute(scores, dscores)

    tape.on_backward(backward)
    return y
