"""Samples of a space, each made once: many plans share them, and samples are made of one another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from simpar.hardware import Cluster
from simpar.plan import Plan
from simpar.planner.layers import few_of
from simpar.planner.sample import Sample, sample_of
from simpar.planner.space import Space

_KNOWN: Final = frozenset(
    {
        'pipeline', 'order', 'chunks', 'tensor', 'sequence_parallel', 'context', 'expert', 'micro_batches', 'copies',
        'tiles', 'recompute', 'zero', 'shard_group', 'fusion', 'data',
    }
)  # fmt: skip
"""Keys that a sample is told by, or does not depend on."""


Made = tuple[tuple[Any, ...], Sample]
"""A sample, and by what it is known."""


class Samples:
    """Finds or makes the samples of plans of one space."""

    def __init__(self, space: Space, cluster: Cluster) -> None:
        self._space = space
        self._cluster = cluster
        self._few = few_of(space.base.workload)
        self._known: dict[tuple[Any, ...], Sample] = {}
        self._made: list[Made] = []

    def give(self) -> list[Made]:
        """Samples that were made here since this was asked last, for others to take."""
        made, self._made = self._made, []
        return made

    def take(self, made: Iterable[Made]) -> None:
        """Take samples that others have made."""
        for key, sample in made:
            self._known.setdefault(key, sample)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._few is not None

    def widest(self, plan: Plan) -> Sample | None:
        """A sample of the whole batch at once: nothing takes less time for each of its samples."""
        return self.sample(self.base(plan), self._space.base.workload.batch, split=False)

    def base(self, plan: Plan) -> Plan:
        """The plan with the values of what is still open that take the least time."""
        return replace(self.plain(plan), recompute='none')

    def plain(self, plan: Plan) -> Plan:
        """The plan with one copy and no tiles where these are still open."""
        copies, tiles = (one[0] if len(one := self._space.values_of(key)) == 1 else 1 for key in ('copies', 'tiles'))
        return replace(plan, copies=copies, tiles=tiles)

    def sample(self, plan: Plan, size: int, *, split: bool) -> Sample | None:
        """The sample of a plan; None where the model has no small one.

        Arguments: ``size``, samples of a micro-batch, of all its copies; ``split`` as of ``sample_of``.
        """
        if self._few is None:
            return None
        # No more than there are, where they cannot be shared out evenly.
        each = size // plan.copies
        key = (
            plan.tensor, plan.sequence_parallel, plan.context, plan.expert, plan.recompute, plan.copies, plan.tiles,
            each, split, *(repr(getattr(plan, key)) for key in self._space.keys if key not in _KNOWN),
        )  # fmt: skip
        if key not in self._known:
            sample = sample_of(
                self._few,
                plan,
                self._cluster,
                each,
                split=split,
                known=lambda other, parted: self._other(other, each * other.copies, split=parted),
            )
            self._known[key] = sample
            # What is worked out of it would be more to send than to work out.
            self._made.append((key, replace(sample, known={})))
        return self._known[key]

    def _other(self, plan: Plan, size: int, *, split: bool) -> Sample:
        if (sample := self.sample(plan, size, split=split)) is None:
            raise ValueError('no model of few layers')
        return sample
