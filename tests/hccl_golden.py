"""What HCCL takes, read a second time: decisions of its selectors one inside the other, in its own quantities.

An independent reading of the same sources as ``simpar/cost/hccl.csv`` (hcomm b5f3e5be, hccl 09300b70), and not a
measurement: both readings are ours. Written otherwise than the product: sizes are what a rank hands in, algorithms
between servers are compared by their costs, nothing is looked up in a table.
"""

from dataclasses import dataclass
from itertools import product
from math import ceil, log2

KIB, MIB, GIB = 2**10, 2**20, 2**30
OPERATORS = ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all')
SIZES = tuple(3 * KIB * 2**power for power in range(23))
"""Bytes of the full vector; a third of them is on the bounds of rules, between two of which at least one lies."""


@dataclass(frozen=True)
class Asked:
    """Arguments: ``inside``, devices in each server; ``servers`` in each of the ``pods``; ``size`` of the vector."""

    device: str
    operator: str
    inside: int
    servers: int
    pods: int
    size: int
    graph: bool

    @property
    def modules(self) -> int:
        return self.servers * self.pods

    @property
    def ranks(self) -> int:
        return self.inside * self.modules

    @property
    def handed(self) -> float:
        """Bytes by which HCCL decides: all of an all-reduce, a rank's part of the others."""
        return self.size if self.operator == 'all_reduce' else self.size / self.ranks


def is_power(count: int) -> bool:
    return count.bit_count() == 1


def least_cost(case: Asked) -> str:
    """Ring, NHR or halving and doubling, as ``SelectAlgoTypeFor…``: 60 us a step, 20 GB/s; the first of equals."""
    p, twice = case.modules, 2 if case.operator == 'all_reduce' else 1
    part = case.size / case.inside if twice == 2 else case.size
    each = part / 20e9 * 1e6 / p
    costs = {
        'ring': twice * ((p - 1) * 60 + (p - 1) * each),
        'nhr': twice * (ceil(log2(p)) * 60 + (p - 1) * each),
        'halving_doubling': twice * (ceil(log2(p)) * 60 + (p - 1 if is_power(p) else 2 * p - 1) * each),
    }
    best = 'ring'
    for name in ('nhr', 'halving_doubling'):
        if costs[name] < costs[best] * (1 - 1e-12):
            best = name
    return best


def by_count(case: Asked) -> str:
    """The default of a communicator, before any message is seen."""
    if case.modules < 8 and (case.modules == 1 or not is_power(case.modules)):
        return 'ring'
    return 'nhr' if case.device == 'ascend910c' else 'halving_doubling'


def on_910a(case: Asked) -> tuple[str, str]:
    if case.operator == 'all_to_all':
        return '', 'pairwise'
    small = case.handed <= 256 * KIB and case.ranks in (4, 8) and case.modules == 1
    if case.operator == 'reduce_scatter' and small and not case.graph:
        return 'flat', 'halving_doubling'
    return '', by_count(case)


def on_910b(case: Asked) -> tuple[str, str]:
    if case.operator == 'all_to_all':
        if case.modules == 1:
            return 'mesh', ''
        if case.inside == 1:
            return 'flat', 'pairwise'
        return 'mesh', 'pairwise' if case.graph else 'pipeline'
    if case.modules == 1:
        if case.operator == 'all_reduce':
            bound = (64 * KIB if case.inside <= 2 else 0) if case.graph else 256 * KIB
            return ('star' if case.handed <= bound else 'mesh'), ''
        return 'mesh', ''
    if case.graph:
        level = by_count(case)
        if case.operator != 'all_reduce' and case.inside > 1 and (case.handed > MIB or case.modules <= 4):
            level = 'pipeline'
        return 'mesh', level
    each, bound = (case.size / case.ranks, MIB) if case.operator == 'all_reduce' else (case.handed, 32 * KIB)
    if case.inside != 1 and each >= bound:
        return 'mesh', 'pipeline'
    level = least_cost(case)
    if case.size < 512 * KIB and case.operator == 'all_reduce' and case.inside > 2:
        return 'doubling' if is_power(case.inside) else 'star', 'doubling' if is_power(case.modules) else level
    if case.size < 512 * KIB and case.operator == 'reduce_scatter':
        return 'halving_doubling' if case.inside >= 4 and is_power(case.inside) else 'nhr', level
    return 'mesh', level


def small_on_910c(case: Asked) -> tuple[str, str] | None:
    """Small messages; none: the message is no small one."""
    many, alone = case.inside > 2, case.modules == 1
    if case.operator == 'all_reduce':
        if case.pods > 1:
            return ('flat', 'nhr') if case.handed <= 16 * KIB * case.inside else None
        if alone:
            fits = case.handed <= 512 * KIB * case.ranks
            return ('halving_doubling', '') if many and fits and not case.graph else None
        return ('flat', 'nhr') if many and case.handed <= MIB * case.inside else None
    if case.operator == 'all_gather':
        if case.pods > 1:
            return ('flat', 'halving_doubling') if case.handed <= 16 * KIB else None
        bound = 512 * KIB if alone or case.inside % 4 else MIB
        fits = case.handed * case.modules <= bound and not (alone and case.graph)
        return ('flat', 'halving_doubling') if many and fits else None
    if case.pods > 1 or not many:
        return None
    if alone:
        return ('mesh', '') if case.handed <= 512 * KIB and not case.graph else None
    fits = case.handed * case.modules <= MIB if is_power(case.ranks) else case.handed <= 256 * KIB
    return ('flat', 'halving_doubling') if fits else None


def on_910c(case: Asked) -> tuple[str, str]:
    if case.operator == 'all_to_all':
        return 'flat', 'pairwise'
    return small_on_910c(case) or ('ring', by_count(case))


def on_950(case: Asked) -> tuple[str, str]:
    """Its AI CPU, a mesh in a server; ``modules`` are meshes."""
    if case.operator == 'all_to_all':
        return 'flat', 'pairwise'
    if case.modules == 1:
        return 'one_shot' if case.operator == 'all_reduce' and case.handed <= 8 * MIB else 'mesh', ''
    if case.inside == 1:
        return 'flat', 'nhr'
    if case.pods > 1:
        return 'mesh', 'nhr'
    least = {'all_reduce': 32 * MIB, 'all_gather': MIB, 'reduce_scatter': 4 * MIB}[case.operator]
    many = {'all_gather': 1024, 'reduce_scatter': 256}.get(case.operator)
    if many and case.ranks >= many and case.size >= GIB:
        return 'mesh', 'parallel'
    if case.handed <= least:
        return 'flat', 'nhr'
    return 'mesh', 'nhr' if case.size > 4 * GIB else 'parallel'


READ = {'ascend910a': on_910a, 'ascend910b': on_910b, 'ascend910c': on_910c, 'ascend950': on_950}
LAID = {
    'ascend910a': ((1, 2, 4, 8), (1, 2, 3, 4, 6, 8, 9), (1,)),
    'ascend910b': ((1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 5, 8, 9, 32), (1,)),
    'ascend910c': ((1, 2, 4, 6, 16), (1, 2, 3, 4, 8, 9), (1, 2)),
    'ascend950': ((1, 2, 4), (1, 2, 3, 64, 256), (1, 2)),
}
"""Devices in a server, servers and supernodes."""


def cases() -> list[Asked]:
    """The grid: of every device each group, operator and size, op by op and in a graph."""
    return [
        Asked(device, operator, inside, servers, pods, size, graph)
        for device, (insides, counts, supernodes) in LAID.items()
        for inside, servers, pods in product(insides, counts, supernodes)
        if inside * servers * pods > 1
        for operator, size, graph in product(OPERATORS, SIZES, (False, True))
    ]
