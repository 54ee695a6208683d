"""Templates: runs of slots that a role issues many times, each time for other micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
EMPTY: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A run of slots, in issue order; columns of shape [slots].

    Arguments:
        op_class: index into the table of op classes.
        stream: number of the stream.
        part: which of the micro-batches that the run is issued for.
        copy: of the micro-batch.
    """

    op_class: Ints
    stream: Ints
    part: Ints
    copy: Ints

    def __len__(self) -> int:
        return len(self.op_class)


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of a role in issue order, before their needs are known: templates, block after block.

    Arguments:
        templates: each is issued at least once.
        which: shape [blocks], the template of each block.
        micro_batches: shape [blocks, parts], the micro-batch of each part of a block's template, -1 where it has fewer
            parts; no two parts of one block have the same.
        after: shape [k, 2], pairs (slot, an earlier one that must have finished too, whatever the tensors say), equal
            inside of all blocks of a template.
    """

    templates: Sequence[Template]
    which: Ints
    micro_batches: Ints
    after: Ints

    def __len__(self) -> int:
        return int(self.start[-1])

    @cached_property
    def start(self) -> Ints:
        """Shape [blocks + 1], the first slot of each block, and at last the number of slots."""
        lengths = np.array([len(template) for template in self.templates], dtype=np.int64)
        return np.append(0, np.cumsum(lengths[self.which]))

    @cached_property
    def block(self) -> Ints:
        """Shape [slots], the block of each slot."""
        return np.repeat(np.arange(len(self.which)), np.diff(self.start))

    @cached_property
    def op_class(self) -> Ints:
        """Shape [slots]."""
        return self.spread([template.op_class for template in self.templates])

    @cached_property
    def stream(self) -> Ints:
        """Shape [slots]."""
        return self.spread([template.stream for template in self.templates])

    @cached_property
    def copy(self) -> Ints:
        """Shape [slots]."""
        return self.spread([template.copy for template in self.templates])

    @cached_property
    def micro_batch(self) -> Ints:
        """Shape [slots]."""
        part = self.spread([template.part for template in self.templates])
        return np.asarray(self.micro_batches[self.block, part])

    def spread(self, columns: Sequence[Ints]) -> Ints:
        """What each template has, block after block."""
        return np.concatenate([columns[template] for template in self.which.tolist()] or [EMPTY])


def plain_slots(op_class: Ints, stream: Ints, micro_batch: Ints, copy: Ints, after: Ints) -> Slots:
    """Slots of one block, whose parts are the micro-batches themselves."""
    parts = np.arange(int(micro_batch.max(initial=0)) + 1)[None]
    return Slots((Template(op_class, stream, micro_batch, copy),), np.zeros(1, dtype=np.int64), parts, after)
