"""HCCL's choice: the table against a second reading of its selectors, and costs against its manual."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from itertools import product
from math import ceil, log2
from pathlib import Path

import pytest

from simpar.cost import hccl
from simpar.cost.collective import ClusterCollectives
from simpar.cost.hccl import Lie, Rule, chosen
from simpar.files import read_csv
from simpar.profiles import cluster, load_profile, load_stack
from simpar.program import OpClass

# What HCCL takes, read a second time: decisions of its selectors one inside the other, in its own quantities.

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


CASES = cases()
TABLE = read_csv(Path(hccl.__file__).with_name('hccl.csv'))


def rule_of(case: Asked) -> Rule:
    lies = Lie((case.inside, case.servers, case.pods), (0, 0, 0))
    return chosen(case.device, case.operator, lies.facts(case.size, case.ranks, graph=case.graph))


@pytest.mark.parametrize('device', READ)
def test_the_table_takes_what_a_second_reading_of_the_selectors_takes(device):
    """Both readings are ours. Of each case: the algorithm inside servers and the one between them."""
    grid = [case for case in CASES if case.device == device]
    assert len(grid) >= 500
    other = []
    for case in grid:
        rule, (inside, between) = rule_of(case), READ[device](case)
        # Where there is one server, nobody asks what is between.
        alone = case.servers * case.pods == 1 and rule.inside != 'flat' and rule.between not in ('pipeline', 'parallel')
        if (rule.inside, '' if alone else rule.between) != (inside, '' if alone else between):
            other.append((case, rule.inside, rule.between, inside, between))
    assert other == []


def test_each_rule_is_taken_by_some_case_and_says_where_it_was_read():
    taken = Counter((case.device, case.operator, rule_of(case)) for case in CASES)
    assert len(taken) == len({(row['server'], row['operator'], row['when'], row['inside']) for row in TABLE})
    for row in TABLE:
        assert row['source'].startswith(('hcomm b5f3e5be ', 'hccl 09300b70 '))


def priced(name, nodes, operator, size, *, tuning=None, stack=None, dtype='fp16', group=None):
    profile = load_profile(name)
    if tuning:
        profile = dataclasses.replace(profile, library=dataclasses.replace(profile.library, tuning=tuning))
    made = cluster(profile, nodes, stack=load_stack(stack) if stack else None)
    op = OpClass(operator, 'collective', operator, 'F', bytes=float(size), dtype=dtype, partition='p')
    return ClusterCollectives(made).cost(op, group or range(made.world))


HCCS, ROCE = 28e9 * 0.654, 25e9 * 0.8


@pytest.mark.parametrize(('operator', 'passes'), [('all_reduce', 2), ('all_gather', 1), ('reduce_scatter', 1)])
def test_the_pipeline_of_the_manual(operator, passes):
    """Of 256 MiB over four servers of eight a step takes 8 MiB of both links, and HCCS is the slower."""
    cost = priced('ascend910b-8', 4, operator, 256 * MIB, stack='mindspeed')
    each = 8 * MIB
    assert each / HCCS + 2.5e-6 > each / ROCE + 8e-6
    assert cost.alpha + cost.transfer == pytest.approx(10e-6 + passes * 4 * (each / HCCS + 2.5e-6))
    assert 'Pipeline: ' in cost.why


def test_a_small_message_between_servers_waits_for_the_network_at_each_step():
    cost = priced('ascend910b-8', 4, 'all_gather', 2 * MIB, stack='mindspeed')
    each = 2 * MIB / 32
    assert cost.alpha + cost.transfer == pytest.approx(10e-6 + 3 * (each / ROCE + 8e-6) + each / HCCS + 2.5e-6)


def test_an_op_alone_and_a_sunk_graph_choose_otherwise():
    """Between five servers, one device of each: NHR op by op, a ring in a graph."""
    group = range(0, 40, 8)
    alone = priced('ascend910b-8', 5, 'all_gather', MIB, stack='mindspeed', group=group)
    graph = priced('ascend910b-8', 5, 'all_gather', MIB, stack='mindformers', group=group)
    assert (alone.transfer, graph.transfer) == (pytest.approx(0.8 * MIB / ROCE),) * 2
    assert alone.alpha == pytest.approx(10e-6 + 3 * 8e-6)
    assert graph.alpha == pytest.approx(10e-6 + 4 * 8e-6)
    assert priced('ascend910b-8', 5, 'all_gather', MIB, group=group) == graph


def test_without_tuning_a_profile_takes_what_its_links_name():
    cost = priced('ascend910b-8', 2, 'all_gather', 64 * MIB, tuning='none')
    assert cost.transfer == pytest.approx(32 * MIB / 8 / HCCS + 32 * MIB / ROCE)
    assert ': ' not in cost.why.split(' us')[0].replace('hccs: ', '').replace('roce: ', '')


def test_halving_and_doubling_of_nine_servers_sends_a_whole_vector_first_and_last():
    """HCCL's manual, p = 9: (2 · 3 + 2) α + (2 · 7 / 8 + 2) n β; the vector here is an eighth, behind the mesh."""
    cost = priced('ascend910b-8', 9, 'all_reduce', 64 * MIB)
    mesh = 2 * 64 * MIB / 8 / HCCS
    assert cost.transfer == pytest.approx(mesh + (2 * 7 / 8 + 2) * 8 * MIB / ROCE)
    assert cost.alpha == pytest.approx(10e-6 + 2 * 2.5e-6 + 8 * 8e-6)


def test_reduction_by_kernels_counts_once_where_halves_go_over_both_levels():
    added = priced('ascend950-8', 2, 'reduce_scatter', 256 * MIB, dtype='fp16')
    assert 'half over each level' in added.why
    # 16 devices in meshes of four: an outer step of a half, then of an eighth; the mesh a quarter of each.
    outer = 56e9 * 0.85
    expected = max(0.75 * 128 * MIB, 0.25 * 128 * MIB) / outer + max(0.25 * 32 * MIB, 0.75 * 32 * MIB) / outer
    assert added.transfer == pytest.approx(expected)


def test_a_supernode_takes_small_messages_over_all_dies_at_once():
    """64 dies of four servers: 2 · 6 steps of NHR for a small all-reduce; rings of 16 and NHR of 4 for a large one."""
    small, large = (priced('ascend910c-16', 4, 'all_reduce', size) for size in (MIB, 512 * MIB))
    assert small.alpha == pytest.approx(10e-6 + 12 * 3e-6)
    assert large.alpha == pytest.approx(10e-6 + (2 * 15 + 2 * 2) * 3e-6)
    assert large.transfer == pytest.approx(2 * 63 / 64 * 512 * MIB / (196e9 * 0.8))


def test_a_collective_without_rules_goes_as_the_links_say(monkeypatch):
    monkeypatch.setattr(hccl, '_rules', dict)
    cost = priced('ascend910b-8', 2, 'all_gather', 64 * MIB)
    assert cost == priced('ascend910b-8', 2, 'all_gather', 64 * MIB, tuning='none')
