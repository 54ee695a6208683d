"""Redistribution as MindSpore's compiler recorded it: for pairs of layouts the collectives, their ranks and shapes."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from simpar.layout import mapped, redistribute, replicated
from simpar.layout.axis import group_of

SHIPPED = Path(__file__).parent / 'golden' / 'mindspore'
FOLDER = Path(os.environ.get('SIMPAR_GOLDEN', SHIPPED))
KINDS = {'AllGather': 'all_gather', 'AlltoAll': 'all_to_all'}
LEFT_OUT = {
    ((8, 1), (2, 2)): 'two all-gathers over neighbouring parts of the rows, [6, 7] and [4, 6], are recorded as one '
    'over [4, 5, 6, 7]; pairs of the same form, e.g. (1, 8) to (2, 2), are recorded as two'
}
"""Pairs whose recorded sequence is not ours, with what is different."""


def cases(folder):
    """Recorded pairs of layouts by the name of their file."""
    found = (json.loads(path.read_text(encoding='utf-8')) for path in sorted(folder.rglob('redist/*.json')))
    return {f'{case["mindspore"]}-{case["case"]["name"]}': case for case in found if case.get('step_parallel_graph')}


class Recorded:
    """One file: pairs of strategies of two ReLUs on one tensor, and what stands between them."""

    def __init__(self, case):
        self.world, self.rank = case['case']['device_num'], case['case'].get('rank') or 0
        self.shape = tuple(case['case']['inputs'][0][0])
        self.pairs = [tuple(map(tuple, pair)) for pair in case['case']['net_args']['pairs']]
        self.all_to_all = case['case']['ctx'].get('enable_alltoall', False)
        self.method = f'mindspore-{case["mindspore"].removesuffix(".0")}'
        self.collectives = self.between(case['step_parallel_graph'])
        self.messages = Counter(
            (KINDS[op['op']], self.ranks(op['ranks']), bare(op['in_shapes'][0])) for op in case['final_comm']
        )

    def ranks(self, recorded):
        return tuple(range(self.world)) if recorded == 'world' else tuple(recorded)

    def between(self, graph):
        """For each pair its collectives (kind, ranks), from its first ReLU to its second."""
        found, open_pair = {}, None
        for op in graph:
            if op['op'] == 'ReLU':
                open_pair = None if op['pair'] in found else op['pair']
                found.setdefault(op['pair'], [])
            elif op['op'] == '_VirtualOutput':
                open_pair = None
            elif open_pair is not None and op['op'] in KINDS:
                found[open_pair].append((KINDS[op['op']], self.ranks(op['ranks'])))
        return [found[place] for place in range(len(self.pairs))]

    def laid(self, strategy):
        return mapped(self.world, strategy, [[dim] for dim in range(len(strategy))])

    def steps(self, source, target):
        found = redistribute(self.shape, source, target, self.method, self.all_to_all)
        return [step for step in found.steps if step.communicates]

    def ours(self, pair):
        return [(step.kind, group_of(self.rank, step.axes)) for step in self.steps(*map(self.laid, pair))]

    def our_messages(self):
        """Of all pairs, and of the results, which are made whole."""
        ends = [(self.laid(first), self.laid(second)) for first, second in self.pairs]
        ends += [(second, replicated(self.world, len(self.shape))) for _, second in ends]
        steps = [step for end in ends for step in self.steps(*end)]
        return Counter((step.kind, group_of(self.rank, step.axes), bare(step.before)) for step in steps)


def bare(shape):
    """A shape without dims of length 1, which come and go with the compiler's reshapes."""
    return tuple(length for length in shape if length > 1)


CASES = cases(FOLDER)


def test_there_are_cases():
    assert CASES, f'no recorded redistribution in {FOLDER}'


@pytest.mark.parametrize('name', CASES)
def test_collectives_of_every_pair(name):
    recorded = Recorded(CASES[name])
    for pair, collectives in zip(recorded.pairs, recorded.collectives, strict=True):
        if pair not in LEFT_OUT:
            assert recorded.ours(pair) == collectives, pair


@pytest.mark.parametrize('name', CASES)
def test_shapes_of_all_messages(name):
    recorded = Recorded(CASES[name])
    ours = recorded.our_messages()
    left_out = set(recorded.pairs) & set(LEFT_OUT)
    for pair in left_out:
        steps = recorded.steps(*map(recorded.laid, pair))
        ours -= Counter((step.kind, group_of(recorded.rank, step.axes), bare(step.before)) for step in steps)
    assert sum((recorded.messages - ours).values()) == len(left_out)
    assert not ours - recorded.messages


def test_less_than_two_hundredths_of_the_pairs_are_left_out():
    shipped = cases(SHIPPED).values()
    every = [pair for case in shipped for pair in Recorded(case).pairs]
    assert sum(pair in LEFT_OUT for pair in every) <= 0.02 * len(every)


@pytest.mark.parametrize('name', cases(SHIPPED))
def test_what_is_left_out_is_really_different(name):
    recorded = Recorded(cases(SHIPPED)[name])
    for pair, collectives in zip(recorded.pairs, recorded.collectives, strict=True):
        if pair in LEFT_OUT and not recorded.all_to_all:
            assert recorded.ours(pair) != collectives, pair


def test_another_order_of_ranks_is_noticed():
    recorded = Recorded(next(case for case in cases(SHIPPED).values() if case['case']['device_num'] == 8))
    recorded.rank ^= 1
    assert any(
        recorded.ours(pair) != collectives
        for pair, collectives in zip(recorded.pairs, recorded.collectives, strict=True)
    )
