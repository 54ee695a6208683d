"""One op on its way into a role's issue order."""

from __future__ import annotations

from typing import NamedTuple

from simpar.program import OpClass


class Issue(NamedTuple):
    """An op class for one micro-batch and copy.

    Arguments: ``late``: not before the computation that is issued before it has finished, e.g. a receive that is
    posted only when it is wanted.
    """

    op: OpClass
    micro_batch: int = 0
    copy: int = 0
    late: bool = False
