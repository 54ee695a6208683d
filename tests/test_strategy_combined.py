"""Strategies with pipelines, optimizer parallelism and recomputation compute what autograd computes on the model."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from combined_cases import combined_case
from sabotage import change_ops

from executor.numerics import check
from simpar.case import load_case
from simpar.errors import NumericsWrong
from simpar.lower import lower

pytestmark = pytest.mark.torch
CASES = 120
HYBRID = Path(__file__).parents[1] / 'examples' / 'hybrid_strategies.yaml'

case = cache(combined_case)


def test_the_plans_cover_what_can_be_combined():
    programs = [lower(*case(seed)) for seed in range(CASES)]
    operators = Counter((op.operator, op.phase) for program in programs for op in program.op_classes)
    for operator in ('all_to_all', 'all_gather', 'reduce_scatter', 'send', 'scale'):
        assert {(operator, 'F'), (operator, 'I')} <= operators.keys(), operator
    assert {('reduce_scatter', 'W'), ('all_gather', 'U'), ('piece', 'U'), ('reshard', 'I')} <= operators.keys()
    assert {('square_sum', 'U'), ('finite_check', 'U'), ('momentum', 'U'), ('adam', 'U')} <= operators.keys()
    plans = [case(seed)[1] for seed in range(CASES)]
    assert len({plan.order for plan in plans if plan.pipeline > 1}) >= 8
    several = [{op.partition for op in program.op_classes if '.reduce_scatter.W' in op.name} for program in programs]
    assert sum(len(partitions) > 1 for partitions in several) >= 10, 'parameters cut over different ranks'
    again = [any('recompute' in op.attributes for op in program.op_classes) for program in programs]
    assert sum(again) >= 20


# The hybrid tutorial: two stages, four micro-batches, optimizer parallelism, recomputed relus, strategies by hand.


@pytest.mark.parametrize('level', ['off', 'level1', 'level2', 'level3'])
def test_the_hybrid_tutorial_trains_as_the_unsharded_model(level):
    hybrid = load_case(HYBRID, [f'plan.hsdp={level}'])
    check(hybrid.program, hybrid.workload, hybrid.plan, steps=2)


def test_every_stage_has_the_same_groups():
    program = load_case(HYBRID).program
    assert program.partitions['2x2'].groups_GP.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert program.partitions['stage'].groups_GP.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # layer1's weight is cut over the two ranks with the same half, layer3's is too small.
    shapes = {one.name: program.local_shape(one) for one in program.tensors if one.kind == 'parameter'}
    assert shapes['layer1.weight'] == (512 // 2 // 2, 784)
    assert shapes['layer3.weight'] == (1, 512)


# What is wrong is found wrong.


def test_a_weight_gathered_over_other_ranks_is_found():
    hybrid = load_case(HYBRID)
    wrong = change_ops(hybrid.program, 'layer1.weights.2x2.all_gather.F', partition='2x1')
    with pytest.raises(NumericsWrong):
        check(wrong, hybrid.workload, hybrid.plan)
