"""Choice: how one operator is split, as a search decides it and a plan writes it."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.model.primitive import Strategy


@dataclass(frozen=True, slots=True)
class Choice:
    """How an operator is split.

    Arguments:
        strategy: shards of each dim of each tensor that it reads, as in ``ops.MatMul().shard(((2, 4), (4, 1)))``.
        out_strategy: shards of its output's dims where its sum is scattered; none: the sum is everywhere.
    """

    strategy: Strategy
    out_strategy: tuple[int, ...] | None = None
