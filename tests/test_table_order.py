"""The order of MindSpore's hash table, and what the compiler's walk over it comes to.

The oracles are not ours: the orders are printed by robin-hood-hashing 3.11.5 itself, and the sequences by MindSpore's
published loop (split, permute, concat, break) run over that table in C++.
"""

from collections import Counter
from math import prod

import numpy as np
import pytest
from golden_transformers import RecordedBlocks
from redistribution_machine import cut, execute

from simpar.layout import Layout, redistribute, redistribution
from simpar.layout.redistribution import table_order
from simpar.strategy_search import double_recursive
from tests.strategy_networks import transformer_blocks
from tests.tables import load_table

LISTED = load_table(__file__, 'LISTED')
"""What ``robin_hood::unordered_map<uint64_t, int64_t>`` lists after 0, 1, 2 … were put into it, by their count."""
SIXTY_FOUR = Layout((2, 2, 2, 2, 2, 2), ('a', 'b', 'c', 'd', 'e', 'f'))
"""Axes with the strides 32, 16, 8, 4, 2 and 1."""
BLOCK = {'batch': 2, 'seq': 512, 'hidden': 2048, 'heads': 16, 'ffn': 8192}


@pytest.mark.parametrize('count', LISTED)
def test_numbers_lie_as_the_library_lists_them(count):
    assert table_order(count) == tuple(map(int, LISTED[count].split()))


@pytest.mark.parametrize(
    ('source', 'target', 'sequence'),
    load_table(__file__, 'test_the_sequence_over_seven_parts_is_that_of_the_compilers_loop_over_its_table'),
)
def test_the_sequence_over_seven_parts_is_that_of_the_compilers_loop_over_its_table(source, target, sequence):
    shape = (2, 16, 8, 2, 1)[: len(source)]
    ends = [SIXTY_FOUR(*(tuple(dim) if dim else None for dim in dims)) for dims in (source, target)]
    found = redistribute(shape, *ends, 'mindspore-2.0', all_to_all=False)
    letters = {'all_gather': 'g', 'slice': 's'}
    assert ' '.join(f'{letters[step.kind]}{step.axes[0].stride}' for step in found.steps) == sequence
    tensor = np.arange(prod(shape)).reshape(shape)
    for rank, mine in enumerate(execute(found, cut(tensor, ends[0]))):
        np.testing.assert_array_equal(mine, tensor[ends[1].slices(shape, rank)])


@pytest.fixture
def upwards(monkeypatch):
    """Makes the walk go from the first part on; what was worked out before is forgotten, and so at the end."""

    yield lambda: (monkeypatch.setattr(redistribution, 'table_order', range), redistribute.cache_clear())
    redistribute.cache_clear()


def searched_block(ranks):
    """A block with the strategies that double recursive search of 2.0 chooses, in the form of a recorded case."""
    sizes = {name: BLOCK[key] for name, key in (('batch', 'batch'), ('sequence', 'seq'), ('hidden', 'hidden'))}
    graph = transformer_blocks(**sizes, heads=BLOCK['heads'], ffn=BLOCK['ffn'])
    chosen = double_recursive(graph, ranks, '2.0')
    strategies = [
        {'op': operator.primitive, 'in_strategy': [list(cuts) for cuts in chosen[operator.name].strategy]}
        for operator in graph.operators
    ]
    rows = [[BLOCK['batch'] * BLOCK['seq'], BLOCK['hidden']], 'f32']
    case = {'device_num': ranks, 'ctx': {'dataset_strategy': 'full_batch'}, 'net_args': BLOCK, 'inputs': [rows, rows]}
    return {'mindspore': '2.0.0', 'group': '', 'case': case, 'strategies': strategies}


def messages(ranks):
    return RecordedBlocks(searched_block(ranks)).ours()


def test_on_64_ranks_two_kinds_of_gathers_are_twice_as_many_as_those_of_a_walk_from_the_first_part_on(upwards):
    """As the compiler was seen to differ from such a walk: two kinds of gathers, and one of scatters half as many."""
    ours = messages(64)
    upwards()
    from_the_first = messages(64)
    for kind, before, now in (
        (('F', 'all_gather', (0, 2), 65536), 2, 4),
        (('F', 'all_gather', (0, 4), 65536), 1, 2),
        (('I', 'reduce_scatter', (0, 8), 65536), 2, 1),
    ):
        assert (from_the_first[kind], ours[kind]) == (before, now)
    assert moved(ours) == moved(from_the_first)


def moved(counted):
    """Messages by phase and kind."""
    return Counter((phase, kind) for (phase, kind, *_), count in counted.items() for _ in range(count))


@pytest.mark.parametrize('ranks', [2, 4, 8, 16, 32])
def test_on_fewer_ranks_both_walks_are_one(upwards, ranks):
    ours = messages(ranks)
    upwards()
    assert messages(ranks) == ours
