"""Processes whose ranks are devices: the calls of native collectives, and messages staged through the host."""

import pytest
from trained_cases import workload_of
from virtual_cases import differences, world

from executor.ranks.pool import Pool
from simpar.errors import RunFailed
from simpar.lower import lower
from simpar.plans import Plan

STEPS = 3
PLANS = {
    'all-reduce': Plan(tensor=2, copies=2),
    'gathered and scattered': Plan(data=2, zero=3),
    'pipeline': Plan(pipeline=2, micro_batches=4),
}


@pytest.fixture(scope='module')
def pool():
    with Pool(2, timeout=60) as ranks:
        yield ranks


@pytest.mark.parametrize('name', PLANS)
def test_devices_give_the_figures_of_threads(pool, name):
    program = lower(workload_of('network'), PLANS[name], 2)

    def run(**device):
        return pool.run(program, steps=STEPS, dtype='fp64', keep=True, **device)

    threads = run()
    staged = run(device='virtual', transport='gloo')
    assert differences(threads, staged) == []
    assert (staged.trace.step_times > 0).all()
    others = [world(program, steps=STEPS).run()]
    if name != 'pipeline':
        # The very calls that NCCL and HCCL get, carried out by gloo.
        others.append(run(device='cpu', transport='native'))
    for other in others:
        for found, wanted in ((other.gradients, threads.gradients), (other.parameters, threads.parameters)):
            for tensor, expected in wanted.items():
                assert (found[tensor] - expected).norm() <= 1e-12 * expected.norm(), tensor


def test_a_pipeline_does_not_wait_for_ever_on_a_device_that_blocks():
    with Pool(2, timeout=60) as pool, pytest.raises(RunFailed, match='on CPUs runs no pipeline'):
        pool.run(lower(workload_of('network'), PLANS['pipeline'], 2), device='cpu', transport='native')
