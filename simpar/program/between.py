"""Between blocks: pairs of slots of different blocks, or of two steps, that must keep their order.

Blocks of equal templates differ by index arithmetic alone, so pairs are looked for once for all micro-batches to which
the same is done. Order on a stream implies nearly all of them: the earlier slot is ahead of some slot of the stream in
its block, the later slot is behind some slot of the same stream in its own block, and a stream runs in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from simpar.program.closure import NONE, Flags
from simpar.program.inner import Inner
from simpar.program.template import EMPTY, Ints, Slots
from simpar.program.touches import Touches, dataflow

Pairs = tuple[Ints, Ints]
"""(slot, a slot that it must come after); slots of the second step are numbered on."""


class Between:
    """Finds the pairs of a role's blocks."""

    def __init__(self, slots: Slots, touches: Touches, inner: Sequence[Inner], streams: int) -> None:
        self._slots = slots
        self._behind = np.concatenate([of.behind for of in inner])
        self._ahead = np.concatenate([of.ahead for of in inner])
        # All templates behind one another, and their touches.
        self.stream = np.concatenate([template.stream for template in slots.templates])
        self._part = np.concatenate([template.part for template in slots.templates])
        self._copy = np.concatenate([template.copy for template in slots.templates])
        self._slot, touch = touches.of(np.concatenate([template.op_class for template in slots.templates]))
        self._changes = touches.changes[touch]
        used = np.zeros(len(touches.per_rank), dtype=bool)
        used[touches.tensor[touch]] = True
        self._per_rank = touches.per_rank[used]
        self._tensor = (np.cumsum(used) - 1)[touches.tensor[touch]]
        self._template = np.searchsorted(slots.base, self._slot, side='right') - 1
        seen = np.zeros((len(self._per_rank), streams), dtype=bool)
        seen[self._tensor, self.stream[self._slot]] = True
        # Slots of one stream are in order.
        self._wanted = (seen.sum(axis=1) > 1)[self._tensor]

    def pairs(self) -> Pairs:
        """The pairs that no stream implies at once."""
        found = [self._left(*self._slots.after.T)]
        if len(self._slots.which) == len(self._slots.templates):
            found.append(self._by_touches(*self._issued(self._wanted, np.arange(len(self._slots.which)))))
        else:
            per_rank = self._per_rank[self._tensor]
            found.append(self._by_tensor(self._wanted & per_rank))
            found += self._by_story(self._wanted & ~per_rank)
        later, before = zip(*found, strict=True)
        return np.concatenate(later), np.concatenate(before)

    def in_template(self, slot: Ints) -> Ints:
        """The place of a slot, of either step, among those of all templates."""
        return self._slots.place[slot % len(self._slots)]

    def _left(self, later: Ints, before: Ints) -> Pairs:
        """Pairs of different blocks or steps that are not implied at once."""
        block = np.searchsorted(self._slots.start, np.stack((later, before)), side='right')
        apart = block[0] != block[1]
        later, before = later[apart], before[apart]
        left = ~(self._behind[self.in_template(later)] & self._ahead[self.in_template(before)]).any(axis=1)
        return later[left], before[left]

    # by what a rank has one of

    def _by_tensor(self, mine: Flags) -> Pairs:
        """Pairs by touches of tensors of which a rank has one, for all micro-batches.

        Tensors that the same templates touch are looked at together. Of many blocks of one template in a row, in which
        one stream alone touches them, the first and the last tell all.
        """
        of = self._touched_by(mine)
        issued = []
        which = self._slots.which
        # Equal rows of the table have equal bytes.
        alike: dict[bytes, int] = {}
        number = np.array([alike.setdefault(row.tobytes(), len(alike)) for row in of])
        for told, together in alike.items():
            templates = np.frombuffer(told, dtype=of.dtype)
            blocks = np.flatnonzero(templates[which] > 0)
            kind = which[blocks]
            within = (kind[1:-1] == kind[:-2]) & (kind[1:-1] == kind[2:]) & (templates[kind[1:-1]] == 1)
            blocks = np.delete(blocks, np.flatnonzero(within) + 1)
            issued.append(self._issued(mine & (number[self._tensor] == together), blocks))
        block, row = zip(*issued, strict=True) if issued else ([EMPTY], [EMPTY])
        return self._by_touches(np.concatenate(block), np.concatenate(row))

    def _touched_by(self, mine: Flags) -> Ints:
        """Shape [tensors, templates]: whether none, one or several streams of a template touch a tensor: 0, 1 or 2."""
        shape = len(self._per_rank), len(self._slots.templates)
        least, most = np.full(shape, len(self.stream)), np.full(shape, NONE)
        at = self._tensor[mine], self._template[mine]
        stream = self.stream[self._slot[mine]]
        np.minimum.at(least, at, stream)
        np.maximum.at(most, at, stream)
        return np.where(most == NONE, 0, 1 + (least < most))

    def _issued(self, mine: Flags, blocks: Ints) -> tuple[Ints, Ints]:
        """The touches of blocks, in issue order: the block, and which touch of templates it is.

        Arguments: ``mine``, which touches of templates to look at.
        """
        rows = np.flatnonzero(mine)
        bounds = np.searchsorted(self._template[rows], np.arange(len(self._slots.templates) + 1))
        which = self._slots.which[blocks]
        count = np.diff(bounds)[which]
        shift = bounds[which] - np.cumsum(count) + count
        return np.repeat(blocks, count), rows[np.arange(int(count.sum())) + np.repeat(shift, count)]

    def _by_touches(self, block: Ints, row: Ints) -> Pairs:
        """Pairs by the touches that some blocks issue; see ``_issued``."""
        slots, place, tensor = self._slots, self._slot[row], self._tensor[row]
        copies = self._copy.max(initial=0) + 1
        part = slots.micro_batches[block, self._part[place]] * copies + self._copy[place]
        key = tensor * (part.max(initial=0) + 1) + np.where(self._per_rank[tensor], 0, part)
        slot = slots.start[block] + place - slots.base[slots.which[block]]
        return self._left(*_two_steps(slot, key, self._changes[row], len(slots)))

    # by what is done to a micro-batch

    def _by_story(self, mine: Flags) -> list[Pairs]:
        """Pairs by touches of what each micro-batch has of its own; nearly all micro-batches have the same story."""
        slots = self._slots
        parts = slots.micro_batches.shape[1]
        micro_batch = slots.micro_batches.ravel()
        order = np.argsort(micro_batch, kind='stable')[np.count_nonzero(micro_batch == NONE) :]
        block, part = np.divmod(order, parts)
        code = slots.which[block] * parts + part
        bounds = np.flatnonzero(np.diff(micro_batch[order], prepend=NONE)).tolist()
        equal: dict[bytes, list[int]] = {}
        for begin, end in pairwise([*bounds, len(order)]):
            equal.setdefault(code[begin:end].tobytes(), []).append(begin)
        found = []
        for told, begins in equal.items():
            story = np.frombuffer(told, dtype=code.dtype)
            blocks = block[np.array(begins)[:, None] + np.arange(len(story))]
            found.append(self._tell(mine, *np.divmod(story, parts), blocks))
        return found

    def _tell(self, mine: Flags, templates: Ints, parts: Ints, blocks: Ints) -> Pairs:
        """The pairs of a story for all its micro-batches.

        Arguments:
            mine: which touches of templates to look at.
            templates, parts: shape [length], the blocks that do something to a micro-batch, in order.
            blocks: shape [micro-batches, length].
        """
        begins = np.searchsorted(self._template, templates)
        count = np.searchsorted(self._template, templates, side='right') - begins
        at = np.repeat(np.arange(len(count)), count)
        row = np.arange(len(at)) + np.repeat(begins - np.cumsum(count) + count, count)
        taken = mine[row] & (self._part[self._slot[row]] == parts[at])
        at, row = at[taken], row[taken]
        # A slot is numbered by the block of the story and its place among all templates, so that order is kept.
        every = len(self.stream)
        key = self._tensor[row] * (self._copy.max(initial=0) + 1) + self._copy[self._slot[row]]
        later, before = _two_steps(at * every + self._slot[row], key, self._changes[row], len(count) * every)
        step, later = np.divmod(later, len(count) * every)
        (at_later, later), (at_before, before) = np.divmod(later, every), np.divmod(before, every)
        left = (step > 0) | (at_later != at_before)
        left &= ~(self._behind[later] & self._ahead[before]).any(axis=1)
        start = self._slots.start[blocks] - self._slots.base[templates]
        later = start[:, at_later[left]] + later[left] + len(self._slots) * step[left]
        return later.ravel(), (start[:, at_before[left]] + before[left]).ravel()


def _two_steps(slot: Ints, key: Ints, changes: Ints, count: int) -> Pairs:
    """The pairs of touches that are done in one step and again in the next, whose slots are numbered on."""
    later, before = dataflow(np.append(slot, slot + count), np.append(key, key), np.append(changes, changes))
    first = before < count
    return later[first], before[first]
