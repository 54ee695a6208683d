"""The table of collectives agrees with the formulas of rings and with the algebra of layouts."""

from typing import get_args

import pytest

from simpar.cost.formula import share, steps
from simpar.layout import Axis, Step, StepKind
from simpar.program import COLLECTIVES

LISTED = [name for name in COLLECTIVES if name != 'send_recv']


def test_every_collective_of_layouts_stands_in_the_table():
    assert set(get_args(StepKind)) - {'slice', 'pad'} == set(LISTED)


@pytest.mark.parametrize('name', COLLECTIVES)
def test_a_gradient_goes_back_the_other_way(name):
    one = COLLECTIVES[name]
    back = COLLECTIVES[one.gradient]
    assert (back.gives, back.gets, back.gradient) == (one.gets, one.gives, name)


@pytest.mark.parametrize('name', LISTED)
def test_a_ring_sends_what_a_step_of_a_redistribution_receives(name):
    """Of a vector of 12 over 4 ranks, by the formula of a port and by the layouts' count of elements."""
    one = COLLECTIVES[name]
    step = Step(name, (Axis(4, 1),), (int(one.part(one.gives, 12, 4)),), (int(one.part(one.gets, 12, 4)),))
    assert share('ring', name, 4) * 12 == float(step.elements) == one.passes * 9
    assert steps('ring', name, 4) == one.passes * 3
