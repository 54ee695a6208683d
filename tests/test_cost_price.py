"""price: what a cluster makes of a program: on the grid, once for each cost key, each effect real or ideal."""

import dataclasses

import numpy as np
import pytest
from every import draws
from hypothesis import given
from hypothesis import strategies as st

from simpar.cost.compute import DeviceCompute
from simpar.cost.price import Effects, price
from simpar.errors import Infeasible
from simpar.hardware import GRADES
from simpar.lower import lower
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.units import GRID
from simpar.workload import Transformer, Workload

IDEAL = Effects(small_operator=False, launch=False, slow_down=False, link_sharing=False)
NAMES = ['a100-sxm-8', 'ascend910a-8', 'ascend910b-8', 'h100-sxm-8', 'h200-sxm-8']


def workload(layers=1, **changes):
    model = Transformer(layers=layers, hidden=1024, heads=16, vocab=32000, sequence=512)
    return Workload(**{'model': model, 'batch': 16, 'precision': 'fp16', **changes})


PROGRAM = lower(workload(), Plan(data=2, tensor=4, copies=2), 8)
CLUSTERS = {name: cluster(load_profile(name)) for name in NAMES}


def on_the_grid(values):
    return (np.asarray(values) * GRID == np.rint(np.asarray(values) * GRID)).all()


def messages(costs):
    return [one for groups in costs.communication.values() for one in groups]


@pytest.mark.parametrize('name', NAMES)
def test_every_op_class_has_its_cost(name):
    costs = price(PROGRAM, CLUSTERS[name])
    for index, op in enumerate(PROGRAM.op_classes):
        if op.kind == 'compute':
            assert costs.compute[index] > 0
            assert index not in costs.communication
        else:
            assert costs.compute[index] == 0
            assert len(costs.communication[index]) == len(PROGRAM.partitions[op.partition].groups_GP)
        grade = costs.why[index].rpartition('(')[2].rstrip(')')
        assert grade in GRADES, 'each sentence ends with its grade'
    assert on_the_grid(costs.compute)
    assert on_the_grid(costs.host)
    assert on_the_grid([[one.alpha, one.transfer] for one in messages(costs)])
    for one in messages(costs):
        for link, demand in one.links:
            assert 0 <= link < len(costs.links)
            assert 0 < demand <= 1
            assert (demand * 1024).is_integer()


@pytest.mark.parametrize('name', NAMES)
def test_grades_hold_the_isolated_work_of_a_rank(name):
    costs = price(PROGRAM, CLUSTERS[name])
    role = PROGRAM.role(0)
    work = sum(
        costs.compute[index] + sum((one.alpha + one.transfer) for one in costs.communication.get(index, ())[:1])
        for index in role.op_class.tolist()
    )
    assert sum(costs.grades.values()) == pytest.approx(work)
    assert set(costs.grades) <= set(GRADES)


def test_groups_of_a_partition_use_the_ports_of_their_ranks():
    costs = price(PROGRAM, CLUSTERS['h100-sxm-8'])
    index = next(i for i, op in enumerate(PROGRAM.op_classes) if op.partition == 'tensor' and op.bytes > 1e6)
    ports = [{costs.links[link] for link, _ in group.links} for group in costs.communication[index]]
    assert ports == [{f'nvlink/{rank}' for rank in range(4)}, {f'nvlink/{rank}' for rank in range(4, 8)}]


def test_classes_that_slow_each_other():
    profile = load_profile('h100-sxm-8')
    costs = price(PROGRAM, CLUSTERS['h100-sxm-8'])
    for index, op in enumerate(PROGRAM.op_classes):
        beside = profile.slow_down.matrix if op.operator in ('matmul', 'attention') else profile.slow_down.memory
        assert costs.beside_communication[index] == (beside.value if op.kind == 'compute' else 1.0)
        assert costs.beside_compute[index] == (1.0 if op.kind == 'compute' else profile.slow_down.collective.value)
    assert not costs.waiting_slows
    slows = dataclasses.replace(profile, slow_down=dataclasses.replace(profile.slow_down, waiting=True))
    assert price(PROGRAM, dataclasses.replace(CLUSTERS['h100-sxm-8'], profile=slows)).waiting_slows


def test_each_effect_alone():
    made = CLUSTERS['h100-sxm-8']
    full = price(PROGRAM, made)
    launch = price(PROGRAM, made, Effects(launch=False))
    assert full.host.min() == full.host.max() == pytest.approx(10e-6, abs=1 / GRID)
    assert not launch.host.any()
    assert (launch.compute == full.compute).all()
    apart = price(PROGRAM, made, Effects(slow_down=False))
    assert (apart.beside_communication == 1).all()
    assert (apart.beside_compute == 1).all()
    assert not apart.waiting_slows
    alone = price(PROGRAM, made, Effects(link_sharing=False))
    assert alone.links == ()
    assert not any(one.links for one in messages(alone))
    assert [one.transfer for one in messages(alone)] == [one.transfer for one in messages(full)]


@pytest.mark.parametrize('name', NAMES)
def test_ideal_costs_are_lower_and_have_no_latency(name):
    full, ideal = price(PROGRAM, CLUSTERS[name]), price(PROGRAM, CLUSTERS[name], Effects(small_operator=False))
    assert (ideal.compute <= full.compute).all()
    for best, one in zip(messages(ideal), messages(full), strict=True):
        assert best.alpha == 0
        assert best.transfer <= one.alpha + one.transfer + 1 / GRID
        assert all(0 < demand <= 1 and (demand * 1024).is_integer() for _, demand in best.links)


@pytest.mark.parametrize('name', NAMES)
def test_ideally_matrix_products_and_messages_cost_the_same_in_copies(name):
    """Splitting is free where small operators are ideal: the sum over a layer does not depend on the copies."""
    totals = []
    for copies in (1, 4):
        program = lower(workload(), Plan(data=2, tensor=4, copies=copies), 8)
        costs = price(program, CLUSTERS[name], IDEAL)
        counts = np.bincount(program.role(0).op_class, minlength=len(program.op_classes))
        totals.append(
            sum(
                counts[i] * costs.compute[i]
                for i, op in enumerate(program.op_classes)
                if op.operator in ('matmul', 'attention')
            )
        )
    assert totals[0] == pytest.approx(totals[1], rel=1e-6)


def test_a_slow_rank():
    made = cluster(load_profile('h100-sxm-8'), slow={3: 0.5})
    assert price(PROGRAM, made).rank_speed.tolist() == [1, 1, 1, 0.5, 1, 1, 1, 1]


def test_more_ranks_than_devices():
    with pytest.raises(Infeasible, match='8 ranks, the cluster 2 devices'):
        price(PROGRAM, cluster(load_profile('cpu-gloo')))


def test_ranks_of_a_node_talk_inside_it():
    program = lower(workload(), Plan(data=2, tensor=8), 16)
    costs = price(program, cluster(load_profile('h100-sxm-8'), nodes=2))
    inside = {costs.links[link] for i, op in enumerate(program.op_classes) if op.partition == 'tensor'
              for group in costs.communication[i] for link, _ in group.links}  # fmt: skip
    between = {costs.links[link] for i, op in enumerate(program.op_classes) if op.partition == 'data'
               for group in costs.communication[i] for link, _ in group.links}  # fmt: skip
    assert inside == {f'nvlink/{rank}' for rank in range(16)}
    assert between == {f'infiniband/{rank}' for rank in range(16)}


class Counting:
    """A compute model that counts what it is asked."""

    def __init__(self, model):
        self.model = model
        self.keys = []

    def seconds(self, op):
        self.keys.append(op.cost_key)
        return self.model.seconds(op)


def test_equal_op_classes_are_priced_once():
    program = lower(workload(layers=6), Plan(tensor=8), 8)
    counting = Counting(DeviceCompute(load_profile('h100-sxm-8')))
    price(program, CLUSTERS['h100-sxm-8'], compute=counting)
    assert len(counting.keys) == len(set(counting.keys))
    assert len(counting.keys) < len(program.op_classes) / 2


@draws(20)
@given(factor=st.sampled_from([2.0, 4.0, 8.0]), tensor=st.sampled_from([1, 2, 4, 8]))
def test_all_rates_doubled_and_no_latency_halve_every_cost(factor, tensor):
    profile = faster(load_profile('ascend910b-8'), 1.0)
    program = lower(workload(), Plan(tensor=tensor, data=8 // tensor), 8)
    slow, fast = (price(program, cluster(faster(profile, rate))) for rate in (1.0, factor))
    assert fast.compute == pytest.approx(slow.compute / factor, abs=1 / GRID)
    for one, other in zip(messages(fast), messages(slow), strict=True):
        assert one.transfer == pytest.approx(other.transfer / factor, abs=1 / GRID)


def faster(profile, factor):
    """Every rate so many times as high, no fixed times."""

    def times(figure, by):
        return dataclasses.replace(figure, value=figure.value * by)

    def none(figure):
        return dataclasses.replace(figure, value=0.0)

    device, library = profile.device, profile.library
    kernel = dataclasses.replace(device.kernel, matrix=none(device.kernel.matrix), memory=none(device.kernel.memory))
    memory = dataclasses.replace(device.memory, bandwidth=times(device.memory.bandwidth, factor))
    return dataclasses.replace(
        profile,
        device=dataclasses.replace(
            device,
            matrix={dtype: times(rate, factor) for dtype, rate in device.matrix.items()},
            vector={dtype: times(rate, factor) for dtype, rate in device.vector.items()},
            memory=memory,
            kernel=kernel,
        ),
        links=tuple(
            dataclasses.replace(link, bandwidth=times(link.bandwidth, factor), latency=none(link.latency))
            for link in profile.links
        ),
        library=dataclasses.replace(library, start=none(library.start)),
    )
