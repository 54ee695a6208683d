"""Which tokens of a sequence a context rank holds, and how many pairs of tokens attention has between two ranks.

Contiguous: rank i of N holds part i of N. Balanced: of 2 N chunks it holds chunks i and 2 N − 1 − i, so that causal
attention is equal work for all (Megatron-LM, Llama 3: arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

Span = tuple[int, int]
"""First token, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """A sequence on the ranks of a group.

    Arguments: ``sequence``, tokens; ``ranks``; ``balanced``: chunks from both ends; ``window``, tokens that one sees,
    0: all before it; ``documents``, lengths of those that it packs, empty: one.
    """

    sequence: int
    ranks: int
    balanced: bool
    window: int = 0
    documents: tuple[int, ...] = ()

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
        return sum(self._seen(q, k) for q in self.spans(queries) for k in self.spans(keys))

    def of_all(self, queries: int) -> float:
        """The same with the keys of all ranks."""
        return sum(self._seen(span, (0, self.sequence)) for span in self.spans(queries))

    def _seen(self, queries: Span, keys: Span) -> float:
        """Pairs of which the query is not before the key, in one document, and within a window.

        A token and itself count half, so that a square of s tokens has s² / 2 pairs, as attention without context
        counts.
        """
        return sum(_pairs(_both(queries, one), _both(keys, one), self.window) for one in self._documents(queries))

    def _documents(self, span: Span) -> Sequence[Span]:
        """Those that have tokens in a span."""
        ends = _ends(self.documents or (self.sequence,))
        first, last = bisect_right(ends, span[0]), bisect_left(ends, span[1])
        return [(ends[at - 1] if at else 0, ends[at]) for at in range(first, last + 1)]

    def of_ranks(self, step: int | None = None) -> tuple[float, ...]:
        """For each rank its pairs with the keys of all ranks.

        Arguments: ``step`` of a ring: with those of the rank so many before it.
        """
        return _of_ranks(self, step)


@cache
def _of_ranks(split: ContextSplit, step: int | None) -> tuple[float, ...]:
    if step is None:
        return tuple(map(split.of_all, range(split.ranks)))
    return tuple(split.pairs(rank, (rank - step) % split.ranks) for rank in range(split.ranks))


@cache
def _ends(documents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(documents))


def _both(one: Span, other: Span) -> Span:
    begin = max(one[0], other[0])
    return begin, max(begin, min(one[1], other[1]))


def _pairs(queries: Span, keys: Span, window: int) -> float:
    seen = _causal(queries, keys)
    return seen - _causal((queries[0] - window, queries[1] - window), keys) if window else seen


def _causal(queries: Span, keys: Span) -> float:
    (first, end), (begin, last) = queries, keys

    def triangle(side: int) -> float:
        return max(side, 0) ** 2 / 2

    return triangle(end - begin) - triangle(first - begin) - triangle(end - last) + triangle(first - last)
