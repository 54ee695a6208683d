"""Dropout: what a mask is drawn from, the same for every plan, and the operator that drops.

Every sample has a key; a mask is a hash of its sample's key, of where in the model it stands (``site``) and of the
element's place in the whole tensor. So each rank, micro-batch and copy draws its piece alone, and draws the same again.
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.lower.mesh import TENSOR
from simpar.lower.tape import Tape
from simpar.lower.value import Value
from simpar.program.op import Attribute

KEYS = 'dropout.keys'
DRAW = f'tokens:{2**62}'


@dataclass(frozen=True, slots=True)
class Dropout:
    """Arguments: ``probability`` of an element to become zero; ``keys`` [batch], one for each sample."""

    probability: float
    keys: Value

    def attributes(self, site: str, cut: int | None) -> dict[str, Attribute]:
        """What a kernel must know to draw; ``cut``, the dim of its tensor that is cut over the tensor ranks."""
        found: dict[str, Attribute] = {'dropout': self.probability, 'site': site}
        return found if cut is None else {**found, 'cut': cut, 'partition': TENSOR}

    def mask(self, tape: Tape, name: str, like: Value) -> Value:
        """Register the mask of a value: a byte an element."""
        return tape.activation(like.like(f'{name}.mask', partial=False), 'bool')


def dropout_of(tape: Tape, probability: float, batch: int) -> Dropout | None:
    """Dropout with this probability, where there is any; ``batch``, samples of a micro-batch."""
    return Dropout(probability, tape.input(KEYS, (batch,), 'int64', DRAW)) if probability else None


def drop(tape: Tape, name: str, x: Value, dropout: Dropout | None) -> Value:
    """x × mask / (1 − probability); x itself without dropout. Keeps the mask for the backward."""
    if dropout is None:
        return x
    y, mask = tape.activation(x.like(f'{name}.dropped')), dropout.mask(tape, name, x)
    tape.compute(f'{name}.dropout', 'dropout', 'F', [x, dropout.keys], [y, mask], flops=2 * tape.elements(x),
                 attributes=dropout.attributes(name, x.cut))  # fmt: skip

    def backward() -> None:
        dy = tape.gradient(y)
        if dy is not None:
            tape.contribute(x, undrop(tape, f'{name}.dropout', 'dropout', x, dy, mask, dropout))

    tape.on_backward(backward)
    return y


def undrop(
    tape: Tape, name: str, operator: str, x: Value, dy: Value, mask: Value, dropout: Dropout
) -> Value:  # fmt: skip
    """Emit the gradient of what was dropped."""
    dx = tape.activation(dy.like(f'd:{x.name}@{name}'))
    tape.compute(name, operator, 'I', [dy, mask], [dx], flops=2 * tape.elements(x),
                 attributes={'dropout': dropout.probability})  # fmt: skip
    return dx
