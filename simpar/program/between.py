"""Between blocks: pairs of slots of different blocks, or of two steps, that must keep their order.

Blocks of equal templates differ by index arithmetic alone, so pairs are looked for once for all micro-batches to which
the same is done. Nearly all of them are implied at once: the earlier slot is ahead of one of a stream in its own block
that the later one is behind in its own, and the stream is in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simpar.program.closure import NONE, Flags
from simpar.program.inner import Inner
from simpar.program.template import EMPTY, Ints, Slots
from simpar.program.touches import Touches, dataflow

Pairs = tuple[Ints, Ints]
"""(slot, a slot that it must come after); slots of the second step are numbered on."""
Story = tuple[tuple[int, int], ...]
"""The blocks that do something to a micro-batch, in order, as (template, part)."""


class Between:
    """Finds the pairs of a role's blocks."""

    def __init__(self, slots: Slots, touches: Touches, inner: Sequence[Inner], streams: int) -> None:
        self._slots = slots
        self._touches = touches
        self._behind = np.concatenate([of.behind for of in inner])
        self._ahead = np.concatenate([of.ahead for of in inner])
        # All templates behind one another, and the first slot of each there.
        lengths = np.array([len(template) for template in slots.templates], dtype=np.int64)
        self.base = np.cumsum(lengths) - lengths
        self.stream = np.concatenate([template.stream for template in slots.templates])
        self._part = np.concatenate([template.part for template in slots.templates])
        self._copy = np.concatenate([template.copy for template in slots.templates])
        op_class = np.concatenate([template.op_class for template in slots.templates])
        self._slot, self._touch = touches.of(op_class)
        self._wanted = self._several_streams(streams)

    def pairs(self) -> Pairs:
        """The pairs that no stream implies at once."""
        tensor = self._touches.tensor[self._touch]
        if len(self._slots.which) == len(self._slots.templates):
            found = [self._by_tensor(self._wanted[tensor])]
        else:
            per_rank = self._touches.per_rank[tensor]
            found = [self._by_tensor(self._wanted[tensor] & per_rank)]
            found += self._by_story(self._wanted[tensor] & ~per_rank)
        found.append(self._left(*self._slots.after.T))
        later, before = zip(*found, strict=True)
        return np.concatenate(later), np.concatenate(before)

    def in_template(self, slot: Ints) -> Ints:
        """The place of a slot, of either step, among those of all templates."""
        slots = self._slots
        slot = slot % len(slots)
        block = np.searchsorted(slots.start, slot, side='right') - 1
        return np.asarray(self.base[slots.which[block]] + slot - slots.start[block])

    def _several_streams(self, streams: int) -> Flags:
        """Tensors that slots of more than one stream touch; the order of all others is that of their stream."""
        seen = np.zeros((len(self._touches.per_rank), streams), dtype=bool)
        seen[self._touches.tensor[self._touch], self.stream[self._slot]] = True
        return np.asarray(seen.sum(axis=1) > 1)

    def _by_tensor(self, mine: Flags) -> Pairs:
        """Pairs by touches, block after block.

        Arguments: ``mine``, which touches of templates to look at.
        """
        slots, touches = self._slots, self._touches
        slot, touch = self._slot[mine], self._touch[mine]
        bounds = np.append(np.searchsorted(slot, self.base), len(slot))
        count = np.diff(bounds)[slots.which]
        block = np.repeat(np.arange(len(count)), count)
        row = np.arange(len(block)) + np.repeat(bounds[slots.which] - np.cumsum(count) + count, count)
        place, tensor = slot[row], touches.tensor[touch[row]]
        copies = self._copy.max(initial=0) + 1
        part = slots.micro_batches[block, self._part[place]] * copies + self._copy[place]
        key = tensor * (part.max(initial=0) + 1) + np.where(touches.per_rank[tensor], 0, part)
        number = slots.start[block] + place - self.base[slots.which[block]]
        return self._left(*_two_steps(number, key, touches.changes[touch[row]], len(slots)))

    def _left(self, later: Ints, before: Ints) -> Pairs:
        """Pairs of different blocks or steps that are not implied at once."""
        slots = self._slots
        block = np.searchsorted(slots.start, np.stack((later, before)), side='right')
        apart = block[0] != block[1]
        later, before = later[apart], before[apart]
        left = ~(self._behind[self.in_template(later)] & self._ahead[self.in_template(before)]).any(axis=1)
        return later[left], before[left]

    def _by_story(self, mine: Flags) -> list[Pairs]:
        """Pairs by touches of what each micro-batch has of its own; nearly all micro-batches have the same story."""
        stories: dict[int, list[tuple[int, int]]] = {}
        blocks: dict[int, list[int]] = {}
        for block, (template, parts) in enumerate(
            zip(self._slots.which.tolist(), self._slots.micro_batches.tolist(), strict=True)
        ):
            for part, micro_batch in enumerate(parts):
                if micro_batch != NONE:
                    stories.setdefault(micro_batch, []).append((template, part))
                    blocks.setdefault(micro_batch, []).append(block)
        equal: dict[Story, list[list[int]]] = {}
        for micro_batch, story in stories.items():
            equal.setdefault(tuple(story), []).append(blocks[micro_batch])
        return [self._tell(mine, story, np.array(of, dtype=np.int64)) for story, of in equal.items()]

    def _tell(self, mine: Flags, story: Story, blocks: Ints) -> Pairs:
        """The pairs of a story for all its micro-batches.

        Arguments: ``mine``, which touches of templates to look at; ``blocks``, shape [micro-batches, blocks].
        """
        rows = [np.flatnonzero(mine[begin:end]) + begin for begin, end in self._touches_of(story)]
        rows = [row[self._part[self._slot[row]] == part] for row, (_, part) in zip(rows, story, strict=True)]
        row = np.concatenate(rows)
        at = np.repeat(np.arange(len(story)), [len(one) for one in rows])
        if not len(row):
            return EMPTY, EMPTY
        # A slot is numbered by the block of the story and its place among all templates, so that order is kept.
        every = len(self.stream)
        key = self._touches.tensor[self._touch[row]] * (self._copy.max(initial=0) + 1) + self._copy[self._slot[row]]
        changes = self._touches.changes[self._touch[row]]
        later, before = _two_steps(at * every + self._slot[row], key, changes, len(story) * every)
        step, later = np.divmod(later, len(story) * every)
        (at_later, later), (at_before, before) = np.divmod(later, every), np.divmod(before, every)
        left = (step > 0) | (at_later != at_before)
        left &= ~(self._behind[later] & self._ahead[before]).any(axis=1)
        base = self.base[[template for template, _ in story]]
        start = self._slots.start[blocks] - base
        later = start[:, at_later[left]] + later[left] + len(self._slots) * step[left]
        return later.ravel(), (start[:, at_before[left]] + before[left]).ravel()

    def _touches_of(self, story: Story) -> list[tuple[int, int]]:
        """The touches of each template of a story, among those of all templates."""
        bounds = np.append(np.searchsorted(self._slot, self.base), len(self._slot)).tolist()
        return [(bounds[template], bounds[template + 1]) for template, _ in story]


def _two_steps(slot: Ints, key: Ints, changes: Ints, count: int) -> Pairs:
    """The pairs of touches that are done in one step and again in the next, whose slots are numbered on."""
    later, before = dataflow(np.append(slot, slot + count), np.append(key, key), np.append(changes, changes))
    first = before < count
    return later[first], before[first]
