"""Whether the passes that a plan lists fit its other keys."""

from __future__ import annotations

from collections.abc import Iterator

from simpar.document import Complaint
from simpar.lower.overlap import overlap_conflicts
from simpar.plan import Plan


def overlap_fits(plan: Plan) -> Iterator[Complaint]:
    """Everything that does not fit, each at the key to change; what cannot be tiled is a note of the program."""
    for key, what, instead in overlap_conflicts(plan):
        yield Complaint(('plan', key), what, instead)
