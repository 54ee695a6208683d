"""Dropout: what a mask is drawn from, the same for every plan.

Every sample has a key; a mask is a hash of its sample's key, of where in the model it stands (``site``) and of the
element's place in the unsharded tensor. So each rank, micro-batch and copy draws its shard alone, and draws it again.
"""

from __future__ import annotations

from typing import Final

from simpar.layout import TensorLayout
from simpar.model.ops import Attributes, Local
from simpar.program.op import Attribute

KEYS: Final = 'dropout.keys'
"""The input with one integer a sample."""
DRAW: Final = f'tokens:{2**62}'


def dropped(local: Local, probability: float, site: str, layout: TensorLayout) -> Attributes:
    """What a kernel must know to draw.

    Arguments: ``layout`` of the mask: one dim behind the batch may be sharded.
    """
    found: dict[str, Attribute] = {'dropout': probability, 'site': site}
    if local.balanced:
        found['balanced'] = local.balanced
    for dim, axes in enumerate(layout.dims):
        # Keys are split with the batch, so dim 0 needs no offset; of the others one at most is split.
        if dim and axes:
            return {**found, 'cut': dim, 'partition': local.partition(layout, dim)}
    return found
