"""One exchange between two turns of a rank, as Megatron-LM has it without overlap of messages."""

from collections import deque

import pytest

from simpar.lower import lower
from simpar.lower.lower import with_messages
from simpar.pipeline import message, named_order, with_communication
from simpar.pipeline.messages import in_exchanges
from simpar.pipeline.order import COMMUNICATION
from simpar.plans import Plan
from simpar.predict import predict
from simpar.profiles import cluster, load_profile
from simpar.workload import Transformer, Workload

CASES = [(2, 4, 2), (2, 8, 3), (3, 12, 2), (4, 8, 2), (4, 16, 3), (4, 4, 2), (8, 8, 3), (8, 16, 6)]


def exchanges(row):
    """The messages between two computations of a rank, and how many computations stand between two exchanges."""
    groups, turns = [set()], [0]
    for action in row:
        if action.kind in COMMUNICATION:
            if turns[-1]:
                groups.append(set())
                turns.append(0)
            groups[-1].add((action.kind.startswith('SEND'), message(action)))
        else:
            turns[-1] += 1
    return groups, turns


@pytest.mark.parametrize(('ranks', 'micro_batches', 'chunks'), CASES)
def test_every_exchange_of_an_interleaved_pipeline_ends(ranks, micro_batches, chunks):
    """Carried out with all messages of an exchange at once: a rank goes on when each has met its other side."""
    plain = named_order('interleaved-1f1b', ranks, micro_batches, chunks)
    order = in_exchanges(plain)
    assert order is not None
    kept = [tuple(action for action in row if action.kind not in COMMUNICATION) for row in order.actions]
    assert tuple(kept) == plain.actions
    left = [deque(exchanges(row)[0]) for row in order.actions]
    posted = set().union(*(groups[0] for groups in left))
    while any(left):
        ended = [groups for groups in left if groups and {(not sent, one) for sent, one in groups[0]} <= posted]
        assert ended, 'ranks wait for each other'
        for groups in ended:
            groups.popleft()
            posted |= groups[0] if groups else set()


def test_a_forward_and_the_backward_behind_it_have_no_exchange_between_them():
    order = in_exchanges(named_order('interleaved-1f1b', 4, 8, 2))
    warm_up = [(2 - 1) * 4 + 2 * (4 - 1 - rank) for rank in range(4)]
    for row, forwards in zip(order.actions, warm_up, strict=True):
        _, turns = exchanges(row)
        kinds = [action.kind for action in row if action.kind not in COMMUNICATION]
        assert kinds[forwards : forwards + 4] == ['F', 'B', 'F', 'B']
        assert max(turns) == 2
        assert turns.count(2) <= 2 * 8 - forwards


def test_rounds_longer_than_the_ranks_receive_late():
    """torch has such rounds; Megatron-LM wants the ranks to divide the micro-batches."""
    order = named_order('interleaved-1f1b', 3, 8, 2)
    assert in_exchanges(order) is None
    fused = Plan(pipeline=3, micro_batches=8, chunks=2, order='interleaved-1f1b', exchange='fused')
    assert with_messages(order, fused) == with_communication(order, 'late')


@pytest.mark.parametrize('chunks', [1, 2])
def test_pipelines_idle_as_in_the_textbook_whether_their_messages_overlap_or_not(chunks):
    order = 'interleaved-1f1b' if chunks > 1 else '1f1b'
    work = Workload(model=Transformer(layers=16, hidden=4096, heads=32, vocab=64, sequence=2048), batch=32)
    ideal = 3 / (16 * chunks + 3)
    for exchange, receive in (('separate', 'late'), ('fused', 'early')):
        plan = Plan(pipeline=4, micro_batches=16, chunks=chunks, order=order, exchange=exchange, receive=receive)
        found = predict(lower(work, plan, 4), None, cluster(load_profile('a100-sxm-8'), devices=4))
        assert found.metrics.steady.bubble / found.step == pytest.approx(ideal, abs=0.03), (exchange, chunks)
