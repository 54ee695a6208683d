"""An order by arrays: each action needs and gives what its plain form does; a walk over them waits for the same."""

import pytest

from simpar.pipeline.messages import KINDS, NONE, arrays_of, gives, needs
from simpar.pipeline.orders import named_order
from simpar.planner.clock import timed

CASES = [
    ('1f1b', 4, 8, 1, 1),
    ('gpipe', 3, 5, 1, 1),
    ('interleaved-1f1b', 4, 8, 3, 1),
    ('zb-h1', 4, 8, 1, 1),
    ('zb-v', 4, 8, 2, 1),
    ('dualpipe-v', 4, 8, 2, 1),
    ('mindspore-2.10/seqpipe', 4, 8, 1, 2),
]


@pytest.mark.parametrize('case', CASES, ids=lambda case: case[0])
def test_each_action_needs_and_gives_by_number_what_it_does_by_name(case):
    order = named_order(*case)
    found = arrays_of(order)
    actions = [action for row in order.actions for action in row if action.sub_actions or action.kind in KINDS]
    assert found.rank.tolist() == [rank for rank, row in enumerate(order.actions) for _ in row]
    for place, action in enumerate(actions):
        for arrays, plain in ((found.needs(), needs(action, order)), (found.gives(), gives(action))):
            numbers = [one for one in arrays[place].tolist() if one != NONE]
            assert sorted(numbers) == sorted(_number(result, order) for result in plain), (action, plain)


def _number(result, order):
    kind, stage, micro_batch = result
    return ((kind == 'I') * order.stages + stage) * order.micro_batches + micro_batch


@pytest.mark.parametrize('case', CASES, ids=lambda case: case[0])
def test_a_walk_does_each_action_once_behind_what_it_waits_for(case):
    order = named_order(*case)
    found = timed(order, awaited=True)
    assert len(found.work) == len(arrays_of(order).rank)
    for task in range(len(found.work)):
        waits = found.before.item[found.before.start[task] : found.before.start[task + 1]]
        assert all(other < task and found.rank[other] != found.rank[task] for other in waits.tolist())
