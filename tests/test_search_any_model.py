"""Searches of strategies on a transformer: what they find trains, and exact search finds nothing worse than degrees."""

from dataclasses import replace
from math import prod

import pytest
from every import some
from trains import trains

from simpar import Plan, Transformer, Workload, cluster, load_profile
from simpar.case import load_case, written_out
from simpar.resolve import find_strategies
from simpar.resolve.strategies import weighed
from simpar.strategy_search.graph import workload_graph

PROFILE = load_profile('ascend910a-8')
GPT = Workload(model=Transformer(layers=2, hidden=24, heads=6, vocab=36, sequence=12), batch=24)
MODELS = {
    'flash': GPT,
    'unfused, dropout': replace(GPT, model=replace(GPT.model, attention='unfused', dropout=0.1)),
    'tied': replace(GPT, model=replace(GPT.model, tied=True)),
}
FC1 = {'layer0.fc1': ((1, 1, 1), (1, 2))}
SEARCHES = {
    'exact': Plan(search='exact'),
    'exact, by time': Plan(search='exact', objective='time'),
    'double recursive 2.10': Plan(search='double-recursive'),
    'double recursive 2.0, beside degrees': Plan(search='double-recursive', compat='2.0', tensor=2),
    'propagation': Plan(search='sharding-propagation', strategies=FC1),
    'exact, one given': Plan(search='exact', strategies=FC1),
    'exact, copies, zero': Plan(search='exact', copies=2, zero=2),
    'exact, pipeline': Plan(search='exact', pipeline=2, micro_batches=2),
}


@pytest.mark.parametrize(
    ('model', 'search'),
    some([*(('flash', one) for one in SEARCHES), ('unfused, dropout', 'exact'), ('tied', 'exact')], 2),
)
def test_what_a_search_finds_for_a_transformer_trains(model, search):
    plan, workload, ranks = SEARCHES[search], MODELS[model], 4 * SEARCHES[search].pipeline
    found = find_strategies(workload, plan, cluster(PROFILE, devices=ranks))
    assert found.plan.search == 'none'
    assert found.workload.model == workload.model
    assert set(plan.strategies.items()) <= set(found.plan.strategies.items())
    assert len(found.plan.strategies) > len(plan.strategies)
    trains(found.workload, found.plan, ranks, steps=1)


def test_a_tied_weight_is_summed_once():
    tied, untied = (workload_graph(MODELS[kind]) for kind in ('tied', 'flash'))
    summed = [sum(prod(graph.shapes[name]) for name in graph.parameters) for graph in (tied, untied)]
    assert summed[1] - summed[0] == GPT.model.vocab * GPT.model.hidden


@pytest.mark.parametrize('ranks', [2, 4, 8])
def test_exact_search_sends_no_more_than_any_layout_of_degrees(ranks):
    hardware = cluster(PROFILE, devices=ranks)
    best = find_strategies(GPT, Plan(search='exact'), hardware).proposals[0]
    for tensor in (one for one in (1, 2) if ranks % one == 0):
        plan = Plan(data=ranks // tensor, tensor=tensor)
        assert best.sent <= weighed('degrees', GPT, plan, hardware).sent


def test_a_resolved_file_has_what_was_found(put):
    path = put(
        'schedule.yaml',
        'simpar: 1\ncluster: {profile: ascend910a-8, devices: 4}\nworkload:\n  batch: 24\n'
        '  transformer: {layers: 2, hidden: 24, heads: 6, vocab: 36, sequence: 12}\n'
        'plan: {search: exact}\n',
    )
    case = load_case(path)
    tree = written_out(case)
    assert tree['plan'].get('search', 'none') == 'none'
    assert {'layer*.qkv', 'head'} <= set(tree['plan']['strategies'])


ANY_RANKS = [
    (3, Plan(search='exact')),
    (6, Plan(search='exact')),
    (6, Plan(search='exact', objective='time', strategies={'layer0.fc1': ((1, 1, 1), (1, 6))})),
    (12, Plan(search='exact', copies=2)),
    (6, Plan(search='exact', pipeline=2, micro_batches=2)),
    (6, Plan(search='double-recursive')),
    (6, Plan(search='sharding-propagation', strategies={'layer0.fc1': ((3, 1, 1), (1, 2))})),
]


@pytest.mark.parametrize(('ranks', 'plan'), some(ANY_RANKS, 2))
def test_ranks_that_are_no_power_of_two(ranks, plan):
    found = find_strategies(GPT, plan, cluster(PROFILE, nodes=2 if ranks > 8 else 1, devices=min(ranks, 6)))
    trains(found.workload, found.plan, ranks, steps=1)
    for tensor in (one for one in (1, 2, 3, 6) if plan == Plan(search='exact') and ranks % one == 0):
        degrees = Plan(data=ranks // tensor, tensor=tensor)
        assert found.proposals[0].sent <= weighed('degrees', GPT, degrees, cluster(PROFILE, devices=ranks)).sent
