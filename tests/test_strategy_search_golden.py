"""Both of MindSpore's searches choose what its compiler wrote down, in every version recorded."""

import json
from collections import Counter
from math import prod

import pytest
from every import some
from golden_shapes import FOLDER, SHIPPED
from mindspore_networks import NETWORKS, case_graph, fixed, tuples

from simpar.strategy_search import double_recursive, evaluate, propagate

GROUPS = ('prop', 'rec_chain', 'rec_transformer', 'seeds')
VERSIONS = {'v2.0.0': '2.0', 'v2.10.0': '2.10'}
AFTER_SEARCH = {'Receive'}
"""Operators that the compiler adds behind the search, when it splits the pipeline."""


def recorded(folder):
    """Cases of a search by version, group and name."""
    found = {}
    for path in sorted(folder.rglob('*.json')):
        parts = path.relative_to(folder).parts
        version = next((part for part in (*parts, *folder.parts[::-1]) if part in VERSIONS), None)
        if version is None or not set(GROUPS) & {*parts, folder.name}:
            continue
        case = json.loads(path.read_text(encoding='utf-8'))
        if case['case']['ctx'].get('search_mode') and case.get('strategies') and case['case']['net'] in NETWORKS:
            found[f'{version}/{case["case"]["name"]}'] = case
    return found


CASES = recorded(FOLDER)


def search(name):
    """The graph of a case and what our search chooses for it."""
    case = CASES[name]['case']
    graph, context, compat = case_graph(case), case['ctx'], VERSIONS[name.split('/')[0]]
    if context['search_mode'] == 'sharding_propagation':
        return graph, propagate(graph, fixed(case), case['device_num'], compat)
    parallel, stages = context.get('enable_parallel_optimizer', False), context.get('pipeline_stages', 1)
    return graph, double_recursive(graph, case['device_num'], compat, optimizer_parallel=parallel, stages=stages)


def written(case):
    """Operators and strategies that the compiler wrote, in its order."""
    return [
        (entry['op'], tuples(entry['in_strategy']), scattered(entry))
        for entry in case['strategies']
        if entry['op'] not in AFTER_SEARCH
    ]


def scattered(entry):
    """The out_strategy as one tensor's pieces."""
    given = tuples(entry.get('out_strategy') or [])
    return (given[0] if given and isinstance(given[0], tuple) else given) or None


def chosen(graph, choices, kinds):
    """Ours in the same form; operators that the compiler's dump leaves out (2.10: Reshape) are left out."""
    return [
        (operator.primitive, choices[operator.name].strategy, choices[operator.name].out_strategy)
        for operator in graph.operators
        if operator.primitive in kinds
    ]


def test_there_are_cases():
    assert CASES, f'no recorded search in {FOLDER}'
    assert FOLDER != SHIPPED or len(CASES) == 215


@pytest.mark.parametrize('name', some(CASES, 2))
def test_strategies_and_their_bytes(name):
    graph, choices = search(name)
    if counted(CASES[name]):
        compare_bytes(CASES[name], graph, choices)
    theirs = written(CASES[name])
    ours = chosen(graph, choices, {entry[0] for entry in theirs})
    if CASES[name]['case']['ctx'].get('pipeline_stages', 1) > 1:
        # A rank's dump has the operators of its stage; each is there once for every micro-batch.
        extra = Counter(theirs) - Counter(ours)
        assert not extra
        products = Counter(entry for entry in theirs if entry[0] == 'MatMul')
        assert all(count % CASES[name]['case']['wrap']['pipeline'] == 0 for count in products.values())
    elif 'Mnist' in CASES[name]['case']['net']:
        # The dump of the loss is in another topological order.
        assert Counter(ours) == Counter(theirs)
    else:
        assert ours == theirs


def test_both_stages_of_the_pipeline_together_have_every_operator():
    names = [name for name in CASES if CASES[name]['case']['ctx'].get('pipeline_stages', 1) > 1]
    if not names:
        pytest.skip('no recorded pipeline')
    graph, choices = search(names[0])
    together = Counter(entry for name in names for entry in written(CASES[name]))
    ours = Counter(chosen(graph, choices, {operator.primitive for operator in graph.operators}))
    missing = ours - together
    assert not missing


def ring_bytes(collective, devices):
    """Bytes that a rank sends in ring form, fp32."""
    ranks = devices if collective['ranks'] == 'world' else len(collective['ranks'])
    sent = 4 * sum(prod(shape) for shape in collective['in_shapes'])
    share = {'AllReduce': 2 * (ranks - 1) / ranks, 'AllGather': ranks - 1, 'ReduceScatter': (ranks - 1) / ranks}
    return sent * share[collective['op']]


def counted(case):
    """Whether a case's collectives are those of our count: a recursive search, no optimizer parallelism."""
    context = case['case']['ctx']
    plain = context['search_mode'] == 'recursive_programming' and not context.get('enable_parallel_optimizer')
    return case.get('final_comm') and case['case']['net'] == 'MatMulChain' and plain


def compare_bytes(case, graph, choices):
    """Equal to the byte where nothing is redistributed; where it is, the compiler's sequence moves no less."""
    devices = case['case']['device_num']
    collectives = [entry for entry in case['final_comm'] if entry['op'][0] != '_']
    theirs = sum(ring_bytes(entry, devices) for entry in collectives)
    ours = evaluate(graph, choices, devices).cost
    scalars = 64
    assert ours <= theirs + scalars
    if all(entry['op'] == 'AllReduce' for entry in collectives):
        assert ours == pytest.approx(theirs, abs=scalars)


def test_a_strategy_of_another_version_is_noticed():
    name = 'v2.0.0/seed003_prop_d8_r0'
    if name not in CASES:
        pytest.skip('not among these cases')
    case = CASES[name]['case']
    other = propagate(case_graph(case), fixed(case), case['device_num'], '2.10')
    theirs = written(CASES[name])
    graph = case_graph(case)
    assert chosen(graph, other, {operator.primitive for operator in graph.operators}) != theirs
