"""Attention of a sequence that the context ranks share, by heads: each rank gets all tokens of a part of the heads.

Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv 2309.14509). Where there are fewer heads of keys and values than ranks,
these are repeated before they are sent, as Arctic long sequence training does (arXiv 2506.13996): a group of heads
becomes several with fewer queries. Backward, the gradients of the repeated ones are summed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from simpar.errors import Infeasible
from simpar.layout import TensorLayout
from simpar.layout.axis import minus, size_of
from simpar.lower.move import Mover
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.model.operators.attention import Heads
from simpar.model.operators.context import REPEAT_KV


@dataclass(frozen=True)
class HeadsExchange:
    """All tokens of a part of the heads for a part of the tokens of all heads.

    Arguments: ``name`` of the operator; its ``heads``; ``qkv``, what it reads, by tokens; ``repeated``, by name what
    such values became before, it grows.
    """

    tape: Tape
    mover: Mover
    name: str
    heads: Heads
    qkv: Value
    repeated: dict[str, Value]

    @property
    def exchanged(self) -> Heads:
        """As many groups as the ranks that exchange them divide."""
        ranks = self.tape.mesh.context * size_of(self.qkv.layout.dims[2])
        times = ranks // gcd(ranks, self.heads.groups)
        if self.heads.queries % times:
            raise Infeasible(
                f'{self.name}: {self.heads.count} heads cannot be exchanged among {ranks} context × tensor ranks; '
                f'choose context_kind all_gather or ring'
            )
        return replace(self.heads, groups=self.heads.groups * times, queries=self.heads.queries // times)

    def by_heads(self) -> Value:
        """Queries, keys and values with all tokens."""
        samples, tokens, groups = self.qkv.layout.dims
        by_heads = (*groups, *self.tape.context_axes)
        target = TensorLayout(self.tape.world, (samples, minus(tokens, self.tape.context_axes), by_heads))
        return self._mover.move(self._repeated(), target, f'{self.name}.heads')

    def by_tokens(self, y: Value) -> Value:
        """A result as the rank's own tokens."""
        samples, tokens, heads = y.layout.dims
        own = TensorLayout(
            self.tape.world, (samples, (*tokens, *self.tape.context_axes), minus(heads, self.tape.context_axes))
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
        told = {**exchanged.held(qkv.layout), 'times': exchanged.groups // self.heads.groups}

        def back(gradient: Value) -> None:
            given = tape.new_gradient(qkv, 'repeated', gradient)
            tape.emit_compute(op, REPEAT_KV, 'I', [gradient.name], [given.name], flops=added, attributes=told)
            tape.accumulate(qkv, given)

        tape.emit_compute(op, REPEAT_KV, 'F', [qkv.name], [result.name], attributes=told)
        tape.backward_of(result, back)
        return result
