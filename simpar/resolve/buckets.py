"""Buckets under predicted cost: of a few sizes of messages, the one whose step is fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from simpar.hardware import Cluster
from simpar.plan import Plan
from simpar.resolve.trial import tried
from simpar.workload import Workload

MB: Final = 1e6
SIZES: Final[tuple[Literal['layer', 'auto', 'all'] | float, ...]] = (
    'layer',
    5 * MB,
    25 * MB,
    'auto',
    128 * MB,
    256 * MB,
    512 * MB,
    'all',
)
"""Per layer; MindSpore's automatic 64 MiB among sizes around it (25 MB is DDP's default); all in one."""


def fused(workload: Workload, plan: Plan, cluster: Cluster) -> Plan:
    """The plan with the fusion whose predicted step is fastest, of those that fit into memory.

    Arguments: ``plan``, that leaves nothing else open. Among equals the first of ``SIZES``. Raises what ``lower`` does.
    Not searched: buckets of different sizes in one plan.
    """
    trials = (tried(workload, replace(plan, fusion=size), cluster) for size in SIZES)
    return min(trials, key=lambda trial: trial.rank).plan
