"""The order of axes over devices: where ranks lie, what it costs, and that launched ranks train the same."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.cluster import Launch
from simpar import cluster, export, load_case, load_profile
from simpar.cost.collective import ClusterCollectives
from simpar.errors import ScheduleError
from simpar.hardware import Placement
from simpar.plans import NEAREST_FIRST, Plan
from simpar.program import OpClass

AXES = ('pipeline', 'data', 'context', 'tensor')
"""As ranks are numbered, the outermost first."""
TORCHRUN = Path(sys.executable).parent / 'torchrun'


def schedule(**plan):
    return {
        'simpar': 1,
        'cluster': {'profile': 'h100-sxm-8', 'nodes': 2, 'stack': 'none'},
        'workload': {'transformer': {'layers': 4, 'hidden': 4096, 'heads': 32, 'vocab': 512, 'sequence': 2048},
                     'batch': 16, 'precision': 'bf16'},
        'plan': {'tensor': 4, 'pipeline': 2, 'micro_batches': 4, 'data': 2, **plan},
    }  # fmt: skip


def devices_by_loops(degrees, order):
    """Count devices with the nearest axis running fastest, and number ranks with tensor running fastest."""
    found = {}
    outermost_first = order[::-1]
    for device, place in enumerate(itertools.product(*(range(degrees[axis]) for axis in outermost_first))):
        at = dict(zip(outermost_first, place, strict=True))
        rank = 0
        for axis in AXES:
            rank = rank * degrees[axis] + at[axis]
        found[rank] = device
    return [found[rank] for rank in range(len(found))]


@given(st.permutations(AXES), st.lists(st.sampled_from([1, 2, 3, 4]), min_size=4, max_size=4))
def test_ranks_are_on_the_devices_that_nested_loops_say(order, sizes):
    degrees = dict(zip(AXES, sizes, strict=True))
    world = int(np.prod(sizes))
    made = Placement.of(Plan(**degrees, placement='-'.join(order)), world)
    wanted = devices_by_loops(degrees, order)
    assert (made.devices(np.arange(world)).tolist() if made else list(range(world))) == wanted


def test_each_group_costs_what_the_group_of_its_devices_costs():
    case = load_case(schedule(placement='data-pipeline-context-tensor'))
    plain = ClusterCollectives(cluster(load_profile('h100-sxm-8'), nodes=2))
    placed = ClusterCollectives(case.cluster)
    degrees = {'pipeline': 2, 'data': 2, 'context': 1, 'tensor': 4}
    device = devices_by_loops(degrees, ('data', 'pipeline', 'context', 'tensor'))
    for name, part in case.program.partitions.items():
        for group in part.groups_GP.tolist():
            op = OpClass('op', 'collective', 'all_reduce', 'F', bytes=1e6, partition=name)
            there = plain.cost(op, [device[rank] for rank in group])
            here = placed.cost(op, group)
            assert (here.alpha, here.transfer, here.links) == (there.alpha, there.transfer, there.links), name


def test_tensor_groups_over_nodes_lose_and_the_usual_order_changes_nothing():
    step = {
        order: load_case(schedule(placement=order)).predict().step
        for order in (NEAREST_FIRST, 'data-pipeline-context-tensor', 'context-tensor-data-pipeline')
    }
    usual, across, alike = step.values()
    assert across > 1.1 * usual
    assert alike == usual


def test_a_slow_device_is_told_by_its_own_number():
    slow = {'cluster': {**schedule()['cluster'], 'slow': {1: 0.5}}}
    usual = load_case(schedule() | slow).predict()
    moved = load_case(schedule(placement='data-pipeline-context-tensor') | slow).predict()
    degrees = {'pipeline': 2, 'data': 2, 'context': 1, 'tensor': 4}
    rank = devices_by_loops(degrees, ('data', 'pipeline', 'context', 'tensor')).index(1)
    assert rank != 1
    for prediction, slowed in ((usual, 1), (moved, rank)):
        speeds = prediction.costs.rank_speed
        assert np.flatnonzero(speeds < max(speeds)).tolist() == [slowed]


@pytest.mark.parametrize('order', ['tensor-data', 'tensor-tensor-data-pipeline', 'tp-cp-dp-pp', ''])
def test_an_order_without_each_axis_once_is_refused_with_the_usual_one(order):
    with pytest.raises(ScheduleError, match=r'stand once each.*write e.g. tensor-context-data-pipeline'):
        load_case(schedule(placement=order))


def test_an_order_that_moves_no_rank_is_said_to_have_no_effect():
    case = load_case(schedule(placement='context-tensor-data-pipeline'))
    assert 'plan.placement' in {one.key for one in case.without_effect()}
    moved = load_case(schedule(placement='data-pipeline-context-tensor'))
    assert 'plan.placement' not in {one.key for one in moved.without_effect()}


def test_megatrons_own_order_goes_out_and_comes_back(put):
    script = put('train.sh', export(load_case(schedule(placement='tensor-context-pipeline-data')), 'megatron').text)
    assert '--use-tp-pp-dp-mapping' in script.read_text()


def test_a_launched_process_is_the_rank_that_is_on_its_device():
    degrees = {'pipeline': 2, 'data': 2, 'context': 1, 'tensor': 2}
    order = ('data', 'pipeline', 'context', 'tensor')
    placement = Placement.of(Plan(**degrees, placement='-'.join(order)), 8)
    device = devices_by_loops(degrees, order)
    ranks = [Launch('torchrun', started, 8, 'a', 1, per_host=4).placed(placement) for started in range(8)]
    assert [device[launch.rank] for launch in ranks] == list(range(8))
    assert [ranks[0].where(rank) for rank in range(8)] == [f'host {device[rank] // 4}' for rank in range(8)]


def test_ranks_of_torchrun_on_other_devices_train_the_same(put):
    """As where every rank is on the device of its number, in one process."""
    from executor.train import train

    file = put('placed.yaml', json.dumps({
        'simpar': 1, 'cluster': {'profile': 'cpu-gloo', 'devices': 4}, 'workload': {
            'network': [{'dense': {'in': 16, 'out': 32}}, {'relu': {}}, {'dense': {'in': 32, 'out': 16}}],
            'loss': 'mse', 'batch': 8},
        'plan': {'data': 2, 'tensor': 2, 'placement': 'data-tensor-context-pipeline'},
    }))  # fmt: skip
    words = [TORCHRUN, '--standalone', '--nproc-per-node', '4', '-m', 'executor', 'run', file, '--json']
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=dict(os.environ), timeout=120)
    assert done.returncode == 0, done.stderr
    assert 'executor: rank 0 of 4, started by torchrun' in done.stderr
    facts = json.loads(done.stdout)
    usual = train(file, [f'plan.placement={NEAREST_FIRST}'], steps=len(facts['losses']), processes=False)
    assert facts['ranks'] == 4
    assert facts['losses'] == pytest.approx(usual.losses, rel=1e-6)
