"""The planner's actions: what is sent inside of them is known before copies are chosen; what a rank holds at them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from simpar.case import cluster_of
from simpar.pipeline.orders import named_order
from simpar.planner.clock import timed
from simpar.planner.judge import Judge
from simpar.planner.moments import moments, moments_of
from simpar.planner.space import KEYS
from simpar.schedule import load_schedule
from simpar.sweep.outcome import predicted
from tests.planner_cases import MODELS, small_space


@pytest.mark.parametrize(('model', 'key', 'share'), [(MODELS[0], 'tensor', 0.4), (MODELS[3], 'expert', 0.37)])
def test_a_step_of_messages_is_known_before_copies_are_chosen(model, key, share):
    schedule = load_schedule(
        {
            'simpar': 1,
            'cluster': {'profile': 'a100-sxm-8', 'nodes': 4, 'devices': 1},
            'workload': {'transformer': model, 'batch': 32, 'precision': 'bf16', 'optimizer': 'adam'},
        }
    )
    keys = {f'plan.{one}': 'fixed' for one in KEYS}
    keys |= {f'plan.{key}': [2], 'plan.pipeline': [2], 'plan.micro_batches': [4], 'plan.copies': [1, 2]}
    space = small_space(replace(schedule, plan=replace(schedule.plan, order='1f1b')), keys)
    judge = Judge(space, cluster_of(space.base))
    leaves = [tuple(copies if one == 'copies' else 0 for one in space.keys) for copies in (0, 1)]
    steps = [predicted(space.schedule(leaf)).figures.step for leaf in leaves]
    known = judge(leaves[0][: space.keys.index('recompute') + 1]).seconds
    # By computation alone 0.33 and 0.35 would be known.
    assert share * steps[0] < known <= min(steps)


@pytest.mark.parametrize('order', ['1f1b', 'gpipe', 'interleaved-1f1b', 'zb-h1', 'zb-v', 'dualpipe-v'])
def test_a_rank_holds_most_at_one_of_few_moments(order):
    clock = timed(named_order(order, 4, 16, 0), awaited=False)
    draw = random.Random(order)
    for rank in range(clock.ranks):
        every, few = list(moments(clock, rank)), moments_of(clock, rank)
        assert set(few) <= set(every)
        assert len(few) < len(every) / 2
        for _ in range(5):
            each = [[draw.random() for _ in one] for one in every[0][3:]]
            for action in {one[:3] for one in every}:
                most = [
                    max(
                        sum(
                            a * b
                            for some, its in zip(each, one[3:], strict=True)
                            for a, b in zip(some, its, strict=True)
                        )
                        for one in those
                        if one[:3] == action
                    )
                    for those in (every, few)
                ]
                assert most[0] == most[1]
