"""Cross-entropy in operators: those that MindSpore 2.10's compiler makes of ``nn.CrossEntropyLoss`` with class labels.

A mean over the rows whose label is not ``ignore_index``, and label smoothing, which is computed where it is zero, too.
Names are ours, primitives and order the compiler's. What it writes twice and then merges (the count) is here once; the
arithmetic of single numbers behind the sums, which has nothing to split, is not here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from simpar.files import read_csv

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


CROSS_ENTROPY: Final = tuple(
    LossOperator(
        name=row['name'],
        primitive=row['primitive'],
        reads=tuple(row['reads'].split()),
        axes=tuple(map(int, row['axes'].split())),
        keep=bool(row['keep']),
        numbers=int(row['numbers'] or 0),
    )
    for row in read_csv(Path(__file__).with_name('cross_entropy.csv'))
)
"""In an order that they can run in."""
LOSS_OPERATORS: Final = {operator.name: operator for operator in CROSS_ENTROPY}
