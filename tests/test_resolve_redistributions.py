"""Redistribution that is chosen by predicted cost: never slower than what is tried, and saved as a plain value."""

from itertools import product

import pytest

from simpar.cost.price import price
from simpar.engine import simulate
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.model import Dense, Network
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.resolve import resolve
from simpar.resolve.resolve import METHODS
from simpar.workload import Workload

ASCEND = cluster(load_profile('ascend910a-8'))
OPEN = Plan(redistribution='predicted')


def crossed(width):
    """Products that each want the result of the one before cut along its other dim."""
    layers = tuple(
        Dense(inputs=width, outputs=width, bias=False, strategy=strategy)
        for strategy in (((8, 1), (1, 1)), ((1, 8), (8, 1)), ((1, 1), (1, 8)), ((8, 1), (1, 1)))
    )
    return Workload(model=Network(layers=layers), batch=width, loss='mse')


def step(workload, plan):
    """A step that another follows."""
    program = lower(workload, plan, ASCEND.world)
    return float(simulate(program, price(program, ASCEND), steps=4).step_times[-2])


@pytest.mark.parametrize('width', [64, 1024, 4096])
def test_no_way_that_is_tried_is_faster(width):
    workload = crossed(width)
    found = resolve(workload, OPEN, ASCEND)
    assert found.redistribution in METHODS
    steps = {
        (method, all_to_all): step(workload, Plan(redistribution=method, all_to_all=all_to_all))
        for method, all_to_all in product(METHODS, (False, True))
    }
    assert step(workload, found) == min(steps.values()) < max(steps.values())


def test_an_all_to_all_of_large_tensors_is_taken():
    """It moves an eighth of what a gather moves."""
    assert resolve(crossed(4096), OPEN, ASCEND).all_to_all


def test_a_workload_without_strategies_has_nothing_to_redistribute():
    plain = Workload(model=Network(layers=(Dense(inputs=8, outputs=8),)), batch=8, loss='mse')
    assert resolve(plain, OPEN, ASCEND) == Plan(redistribution='cheapest')


def test_lowering_an_open_choice_is_refused():
    with pytest.raises(Infeasible, match='still to be resolved'):
        lower(crossed(64), OPEN, 8)
