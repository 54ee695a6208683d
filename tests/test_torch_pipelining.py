"""Torch's own pipelining runs the same model in the same order, and computes what the executor computes on gloo."""

import random
from dataclasses import dataclass
from itertools import product

import pytest
from every import some
from pipeline_cases import any_order
from rank_jobs import found_by
from torch_ranks import CLASSES

from executor.ranks.pool import Pool
from simpar.lower import lower
from simpar.lower.graph.stages import stage_of_layer
from simpar.model import Dense, Network, Relu
from simpar.pipeline import Order, named_order, write_csv
from simpar.plans import Plan
from simpar.workload import Sgd, Workload

RANKS = 2
MICRO_BATCHES = 4
LAYERS = 5


def workload(loss):
    layers = [layer for _ in range(LAYERS) for layer in (Dense(inputs=8, outputs=8), Relu())][:-1]
    return Workload(
        model=Network(layers=tuple(layers), init_std=0.4),
        batch=16,
        loss=loss,
        precision='fp64',
        optimizer=Sgd(learning_rate=0.1),
    )


@dataclass(frozen=True)
class Case:
    """An order, its name where torch has a schedule for it, and a loss."""

    order: Order
    name: str = ''
    loss: str = 'mse'

    @property
    def counts(self):
        stages = stage_of_layer(LAYERS, self.order.stages, ())
        return [stages.count(stage) for stage in range(self.order.stages)]


def ours(name):
    return named_order(name, RANKS, MICRO_BATCHES)


TORCHS = {name: Case(ours(name), name) for name in CLASSES}
WRITTEN = {
    name: Case(ours(name)) for name in ('zb-h1', 'zb-h2', 'mindspore-2.10/seqvpp', 'mindspore-2.10/zero_bubble_v')
}
ANY = {
    f'any order {seed}': Case(
        any_order(random.Random(seed), RANKS, 4, MICRO_BATCHES, overtake=False), loss='cross-entropy'
    )
    for seed in range(3)
}
CASES = {**TORCHS, **WRITTEN, **ANY}


@pytest.fixture(scope='module')
def theirs(tmp_path_factory):
    """What torch's ranks found, all cases one after the other."""
    folder = tmp_path_factory.mktemp('torch')
    jobs = {}
    for index, (name, case) in enumerate(CASES.items()):
        write_csv(case.order, folder / f'{index}.csv')
        jobs[name] = {
            'order': case.name,
            'csv': f'{index}.csv',
            'workload': workload(case.loss),
            'seed': index,
            'placement': case.order.placement,
            'counts': case.counts,
            'micro_batches': MICRO_BATCHES,
        }
    return found_by('torch_ranks', jobs, RANKS, folder)


@pytest.fixture(scope='module')
def pool():
    with Pool(RANKS, timeout=60) as ranks:
        yield ranks


@pytest.mark.parametrize('name', CASES)
def test_torch_does_the_actions_of_our_order(theirs, name):
    for rank, row in enumerate(CASES[name].order.actions):
        parts = [str(part) for action in row for part in action.parts]
        assert theirs[rank][name]['done'] == parts


@pytest.mark.parametrize(('name', 'copies'), some(product(CASES, (1, 2))))
def test_losses_and_gradients_are_torchs(theirs, pool, name, copies):
    case = CASES[name]
    plan = Plan(pipeline=RANKS, micro_batches=MICRO_BATCHES, copies=copies)
    program = lower(workload(case.loss), plan, RANKS, case.order)
    run = pool.run(program, steps=1, seed=list(CASES).index(name), dtype='fp64', keep=True)
    (loss,) = [found[name]['loss'] for found in theirs if found[name]['loss'] is not None]
    assert run.losses[0] == pytest.approx(loss, rel=1e-12)
    gradients = {key: gradient for found in theirs for key, gradient in found[name]['gradients'].items()}
    assert gradients.keys() == run.gradients.keys()
    for key, gradient in gradients.items():
        assert (run.gradients[key] - gradient).norm() <= 1e-12 * gradient.norm(), key
