"""Cross-entropy in operators: those that MindSpore 2.10's compiler makes of ``nn.CrossEntropyLoss`` with class labels.

A mean over the rows whose label is not ``ignore_index``, and label smoothing, which is computed where it is zero, too.
Names are ours, primitives and order the compiler's. What it writes twice and then merges (the count) is here once; the
arithmetic of single numbers behind the sums, which has nothing to split, is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

LossForm = Literal['one', 'mindspore-2.10']
"""Cross-entropy as one operator, or as these."""
LOGITS: Final = 'logits'
LABELS: Final = 'labels'
ONES: Final = 'ones'
"""A constant, [rows, 1]."""
LIKELIHOOD, SMOOTH, COUNT = 'likelihood_sum', 'smooth_sum', 'count'
"""The sums that the loss is made of."""
IGNORE_INDEX: Final = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOperator:
    """One operator.

    Arguments:
        name: behind ``loss.`` in programs.
        primitive: in MindSpore's spelling.
        reads: operators before it, or the loss's inputs.
        axes: dims that are summed or compared over.
        keep: these dims stay, with length 1.
        numbers: how many single numbers it takes besides, the last of its inputs.
    """

    name: str
    primitive: str
    reads: tuple[str, ...]
    axes: tuple[int, ...] = ()
    keep: bool = False
    numbers: int = 0

    @property
    def node(self) -> str:
        """Its name in programs and graphs."""
        return f'loss.{self.name}'


def _operator(name: str, primitive: str, *reads: str, numbers: int = 0) -> LossOperator:
    return LossOperator(name=name, primitive=primitive, reads=reads, numbers=numbers)


def _reduction(name: str, primitive: str, read: str, *axes: int, keep: bool = False) -> LossOperator:
    return LossOperator(name=name, primitive=primitive, reads=(read,), axes=axes, keep=keep)


CROSS_ENTROPY: Final = (
    _reduction('max', 'ReduceMax', LOGITS, 1, keep=True),
    _operator('shifted', 'Sub', LOGITS, 'max'),
    _operator('exp', 'Exp', 'shifted'),
    _reduction('sum', 'SumExt', 'exp', 1, keep=True),
    _operator('log', 'Log', 'sum'),
    _operator('lse', 'Add', 'log', 'max'),
    _operator('log_softmax', 'Sub', LOGITS, 'lse'),
    _operator('target', 'ExpandDims', LABELS),
    _operator('ignored', 'Equal', 'target', numbers=1),
    _operator('weights', 'MaskedFill', ONES, 'ignored', numbers=1),
    _operator('index', 'MaskedFill', 'target', 'ignored', numbers=1),
    _operator('picked', 'GatherD', 'log_softmax', 'index'),
    _operator('likelihood', 'Neg', 'picked'),
    _operator('likelihood_kept', 'MaskedFill', 'likelihood', 'ignored', numbers=1),
    _operator('likelihood_rows', 'Squeeze', 'likelihood_kept'),
    _reduction(LIKELIHOOD, 'SumExt', 'likelihood_rows', 0),
    _reduction(COUNT, 'SumExt', 'weights', 0, 1),
    _reduction('smooth', 'SumExt', 'log_softmax', 1, keep=True),
    _operator('smooth_negative', 'Neg', 'smooth'),
    _operator('smooth_kept', 'MaskedFill', 'smooth_negative', 'ignored', numbers=1),
    _operator('smooth_rows', 'Squeeze', 'smooth_kept'),
    _reduction(SMOOTH, 'SumExt', 'smooth_rows', 0),
)
"""In an order that they can run in."""
LOSS_OPERATORS: Final = {operator.name: operator for operator in CROSS_ENTROPY}
