"""Exact search by time: the least sum of seconds, every time; and what it counts, by hand."""

from math import prod

import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from test_strategy_search import combinations, graphs

from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import DeviceCompute
from simpar.profiles import cluster, load_profile
from simpar.program import OpClass
from simpar.resolve.objectives import StepBytes, StepSeconds
from simpar.strategy_search import Choice, GraphBuilder, exact
from simpar.strategy_search.objective import candidates, fixed_candidates


def seconds(devices, hidden):
    """The objective of a search by time, on H100."""
    hardware = cluster(load_profile('h100-sxm-8'), devices=devices)
    return StepSeconds(
        bytes=StepBytes(devices=devices),
        compute=DeviceCompute(hardware.profile),
        collective=ClusterCollectives(hardware),
        host=hardware.profile.host.seconds.value,
        dtype='fp32',
        hidden=hidden,
    )


@draws(20)
@given(graphs(), st.sampled_from([2, 4]), st.booleans())
def test_exact_by_time_is_the_least_of_all_combinations(graph, devices, hidden):
    if prod(len(candidates(graph, operator, devices)) for operator in graph.operators) > 4000:
        return
    objective = seconds(devices, hidden)
    least = min(combinations(graph, devices, objective=objective))
    assert exact(graph, devices, objective).cost == pytest.approx(least, rel=1e-12)


def test_seconds_of_a_product_by_hand():
    """Cut by rows over two devices: three products, a sum of the weight's gradient, the loss forward and backward."""
    build = GraphBuilder()
    x, label = build.dataset(x=(4096, 1024), label=(4096, 1024))
    y = build.matmul('op', x, build.parameter('w', 1024, 1024))
    build.reduce('ReduceMean', 'loss', build.elementwise('Sub', 'sub', y, label), (0, 1))
    graph, objective = build.graph('data_parallel'), seconds(2, hidden=False)
    (rows,) = fixed_candidates(graph, graph.operator('op'), Choice(((2, 1), (1, 1))), 2)[:1]
    moved = 4 * (2048 * 1024 + 1024 * 1024 + 2048 * 1024)
    products = [(2048, 1024, 1024), (2048, 1024, 1024), (1024, 1024, 2048)]
    wanted = 0.0
    for phase, (m, n, k) in zip('FIW', products, strict=True):
        op = OpClass(name='', kind='compute', operator='matmul', phase=phase, dims={'m': m, 'n': n, 'k': k},
                     flops=2.0 * m * n * k, bytes=moved, dtype='fp32')  # fmt: skip
        wanted += objective.compute.seconds(op).seconds
    message = OpClass(name='', kind='collective', operator='all_reduce', phase='W', bytes=4.0 * 2**20, dtype='fp32')
    sum_ = objective.collective.cost(message, (0, 1))
    assert objective.operator(graph, graph.operator('op'), rows, 2) == pytest.approx(
        wanted + sum_.alpha + sum_.transfer
    )
    assert seconds(2, hidden=True).operator(graph, graph.operator('op'), rows, 2) == pytest.approx(wanted)
