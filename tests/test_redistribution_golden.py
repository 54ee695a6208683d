"""Redistribution as MindSpore's compiler recorded it: for pairs of layouts the collectives, their ranks and shapes."""

from collections import Counter

import pytest
from golden_shapes import FOLDER, SHIPPED, bare, cases

from simpar.layout import group_of, mapped, redistribute, replicated

KINDS = {'AllGather': 'all_gather', 'AlltoAll': 'all_to_all'}


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


CASES = {name: case for name, case in cases('redist').items() if case.get('step_parallel_graph')}


def test_there_are_cases():
    assert CASES, f'no recorded redistribution in {FOLDER}'


@pytest.mark.parametrize('name', CASES)
def test_collectives_of_every_pair_and_shapes_of_all_messages(name):
    recorded = Recorded(CASES[name])
    for pair, collectives in zip(recorded.pairs, recorded.collectives, strict=True):
        assert recorded.ours(pair) == collectives, pair
    assert recorded.our_messages() == recorded.messages


def test_the_other_version_is_noticed():
    recorded = Recorded(cases('redist', SHIPPED)['2.10.0-redist2d_d8_r6'])
    recorded.method = 'mindspore-2.0'
    different = [
        pair
        for pair, collectives in zip(recorded.pairs, recorded.collectives, strict=True)
        if recorded.ours(pair) != collectives
    ]
    assert ((8, 1), (2, 2)) in different
