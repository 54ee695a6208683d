"""MindSpore's orders are those that its compiler wrote: F and B in order, the same W, each behind its backward."""

import json

import pytest
from golden_shapes import FOLDER, SHIPPED

from simpar.pipeline import check_order, named_order


def stage_orders(folder):
    """Recorded stage orders by the name of their case."""
    paths = sorted({*folder.rglob('pp_*.json'), *folder.rglob('pipeline/*.json')})
    recorded = (json.loads(path.read_text(encoding='utf-8')) for path in paths)
    return {case['case']['name']: case for case in recorded if case.get('schedule')}


CASES = stage_orders(FOLDER)


class Recorded:
    """What a case says: which order it is, and what the stage does in it."""

    def __init__(self, case):
        context = case['case']['ctx']
        self.ranks = context['pipeline_stages']
        self.scheduler = context.get('pipeline_config', {}).get('pipeline_scheduler', '1f1b')
        self.micro_batches = case['case']['wrap']['pipeline']
        self.chunks = max(case['case']['net_args'].get('segments') or [0]) + 1
        self.rank = case['case']['rank'] // (case['case']['device_num'] // self.ranks)
        tasks = [task for task in case['schedule'] if task[0] in ('F', 'B', 'W')]
        self.pieces = max(task[3] for task in tasks) + 1
        self.tasks = [(kind, self.stage(chunk), micro * self.pieces + piece) for kind, micro, chunk, piece in tasks]

    def stage(self, chunk):
        turned = self.scheduler == 'zero_bubble_v' and chunk % 2
        return chunk * self.ranks + (self.ranks - 1 - self.rank if turned else self.rank)

    def ours(self):
        name = f'mindspore-2.10/{self.scheduler}'
        order = check_order(named_order(name, self.ranks, self.micro_batches, self.chunks, self.pieces))
        return [('B' if a.kind == 'I' else a.kind, a.stage, a.micro_batch) for a in order.actions[self.rank]]


def test_there_are_cases():
    assert CASES, f'no recorded stage order in {FOLDER}'


@pytest.mark.parametrize('name', CASES)
def test_stage_order(name):
    recorded = Recorded(CASES[name])
    ours = recorded.ours()
    assert [task for task in ours if task[0] != 'W'] == [task for task in recorded.tasks if task[0] != 'W']
    assert {task for task in ours if task[0] == 'W'} == {task for task in recorded.tasks if task[0] == 'W'}
    for kind, stage, micro_batch in ours:
        if kind == 'W':
            assert ours.index(('B', stage, micro_batch)) < ours.index((kind, stage, micro_batch))


@pytest.mark.parametrize('name', stage_orders(SHIPPED))
def test_weight_gradients_stand_where_they_are_recorded(name):
    recorded = Recorded(stage_orders(SHIPPED)[name])
    assert recorded.ours() == recorded.tasks
