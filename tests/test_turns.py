"""Plan and baseline in turns: which runs follow one another, which steps count, and which run a state is of."""

from dataclasses import replace

import numpy as np
import pytest
from worked import worked_costs, worked_program

from executor.state import FIRST_STEADY, Execution, Request, blocks_of, figures, in_turns
from simpar.engine import simulate

PLAN = worked_program()
BASELINE = PLAN.replace(notes=('the baseline',))
SPEEDS = {PLAN.hash: 1.0, BASELINE.hash: 0.5}


class Machine:
    """Simulates in place of running, and remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def perform(self, program, request):
        self.asked.append((program, request))
        costs = worked_costs(program, slow={1: SPEEDS[program.hash]})
        trace = replace(simulate(program, costs, steps=request.steps), origin='measured')
        return Execution(losses=(), parameters={'kept': request.keep}, gradients={}, trace=trace, notes=('a note',))


def test_steps_are_shared_out_to_blocks():
    assert blocks_of(20, 2) == [5, 5, 5, 5]
    assert blocks_of(22, 2) == [6, 6, 5, 5]
    assert blocks_of(4, 2) == [2, 2]
    assert blocks_of(1, 2) == [1]
    assert blocks_of(20, 1) == [20]


def test_plan_and_baseline_take_turns_and_all_their_steps_but_the_cold_ones_count():
    machine = Machine()
    plan, baseline = in_turns([(PLAN, Request(seed=3)), (BASELINE, Request())], 12, machine.perform)
    assert [program for program, _ in machine.asked] == [PLAN, BASELINE] * 2
    assert [request.steps for _, request in machine.asked] == [FIRST_STEADY + 6] * 4
    assert machine.asked[0][1].seed == 3
    for execution, step in ((plan, 56), (baseline, 100)):
        warm = execution.trace.warm()
        assert execution.trace.step_times[warm] == pytest.approx([step] * 12)
    assert plan.notes == ('a note',)


def test_a_state_is_of_one_training_of_all_steps():
    """A block begins the training anew, so its losses and weights would be those of few steps."""
    machine = Machine()
    plan, _ = in_turns([(PLAN, Request(keep=True)), (BASELINE, Request(keep=True))], 10, machine.perform)
    assert [request.keep for _, request in machine.asked] == [False] * 4 + [True]
    assert machine.asked[-1][1].steps == FIRST_STEADY + 10
    assert plan.parameters == {'kept': True}
    assert len(plan.trace.step_times[plan.trace.warm()]) == 10
    alone = Machine()
    in_turns([(PLAN, Request(keep=True))], 10, alone.perform)
    assert [(request.keep, request.steps) for _, request in alone.asked] == [(True, FIRST_STEADY + 10)]


def test_figures_of_known_samples():
    cv = round(np.sqrt((101**2 - 1) / 12) / 50, 4)
    assert figures(np.arange(101.0)) == {'n': 101, 'median': 50.0, 'p10': 10.0, 'iqr': 50.0, 'cv': cv}
