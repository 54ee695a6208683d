"""Which tokens of a sequence a context rank holds, and how many pairs of tokens attention has between two ranks.

Contiguous: rank i of N holds part i of N. Balanced: of 2 N chunks it holds chunks i and 2 N − 1 − i, so that causal
attention is equal work for all (Megatron-LM, Llama 3: arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

Span = tuple[int, int]
"""First token, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """A sequence on the ranks of a group.

    Arguments: ``sequence``, tokens; ``ranks``; ``balanced``: chunks from both ends; ``window``, tokens that one sees,
    0: all before it.
    """

    sequence: int
    ranks: int
    balanced: bool
    window: int = 0

    def spans(self, rank: int) -> tuple[Span, ...]:
        """The tokens of a rank."""
        if not self.balanced:
            return (self._chunk(rank, self.ranks),)
        return self._chunk(rank, 2 * self.ranks), self._chunk(2 * self.ranks - 1 - rank, 2 * self.ranks)

    def _chunk(self, number: int, count: int) -> Span:
        length = self.sequence // count
        return number * length, (number + 1) * length

    def pairs(self, queries: int, keys: int) -> float:
        """Pairs of a rank's queries and another's keys of which the one sees the other."""
        return sum(_seen(q, k, self.window) for q in self.spans(queries) for k in self.spans(keys))

    def most_of_step(self, step: int) -> float:
        """The most pairs that a rank has in a step of the ring, with the keys of the rank so many before it."""
        return _most(self, step)

    @property
    def most(self) -> float:
        """The most pairs that a rank has with the keys of all ranks."""
        return _most(self, None)


@cache
def _most(split: ContextSplit, step: int | None) -> float:
    if step is not None:
        return max(split.pairs(rank, (rank - step) % split.ranks) for rank in range(split.ranks))
    every = (0, split.sequence)
    return max(
        sum(_seen(span, every, split.window) for span in split.spans(rank)) for rank in range(split.ranks)
    )  # fmt: skip


def _seen(queries: Span, keys: Span, window: int) -> float:
    """Pairs of which the query is not before the key, and with a window fewer than so many tokens behind it.

    A token and itself count half, so that a square of s tokens has s² / 2 pairs, as attention without context counts.
    """
    seen = _causal(queries, keys)
    return seen - _causal((queries[0] - window, queries[1] - window), keys) if window else seen


def _causal(queries: Span, keys: Span) -> float:
    (first, end), (begin, last) = queries, keys

    def triangle(side: int) -> float:
        return max(side, 0) ** 2 / 2

    return triangle(end - begin) - triangle(first - begin) - triangle(end - last) + triangle(first - last)
