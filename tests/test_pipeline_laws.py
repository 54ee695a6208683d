"""What holds for every order, whatever its ranks, micro-batches and chunks."""

import json
from collections import Counter, defaultdict, deque

import pytest
from every import draws, some
from golden_shapes import FOLDER, SHIPPED
from hypothesis import given, reject
from hypothesis import strategies as st

from simpar import Plan, Transformer, Workload, cluster, load_profile
from simpar.errors import ScheduleError
from simpar.lower import lower
from simpar.lower.lower import with_messages
from simpar.pipeline import ORDERS, check_order, faults, message, named_order, peak_live, with_communication
from simpar.pipeline.messages import in_exchanges, needs
from simpar.pipeline.order import COMMUNICATION
from simpar.predict import predict


def rounds(p, m):
    return m // max(1, m // p)


MOST_LIVE = {
    'gpipe': lambda p, m, v, r: m,
    '1f1b': lambda p, m, v, r: p - r,
    'interleaved-1f1b': lambda p, m, v, r: (v - 1) * rounds(p, m) + 2 * (p - 1 - r) + 1,
    'looped-bfs': lambda p, m, v, r: m * v,
    'interleaved-zero-bubble': lambda p, m, v, r: (v - 1) * rounds(p, m) + p,
    'zb-h1': lambda p, m, v, r: p,
    'zb-h2': lambda p, m, v, r: 2 * p - 1,
    'zb-v': lambda p, m, v, r: 2 * p,
    'dualpipe-v': lambda p, m, v, r: 2 * p + 1,
    # The first rank's first W comes a cell earlier.
    'v-min': lambda p, m, v, r: 2 * ((p + 4) // 3) - (p % 3 == 2 and r == 0),
    'v-half': lambda p, m, v, r: 2 * ((p + 2) // 2),
    'mindspore-2.10/1f1b': lambda p, m, v, r: (p + m % p) * (v - 1) + (1 if v == 1 else 2) * (p - 1 - r) + 1,
    'mindspore-2.10/gpipe': lambda p, m, v, r: p - r,
    'mindspore-2.10/zero_bubble_v': lambda p, m, v, r: 2 * p,
}
"""Activations of one stage that a rank keeps at most, of p ranks, m micro-batches, v chunks, on rank r: the rows of the
papers (Narayanan et al. 2021; Qi et al. 2023, table 2, and 2024), and warm-up + 1 where there is none."""


@st.composite
def orders(draw, names=tuple(ORDERS)):
    name = draw(st.sampled_from(names))
    least, most = ORDERS[name].chunks
    ranks, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    chunks = draw(st.integers(least, min(most, 4)))
    pieces = draw(st.integers(1, 3)) if ORDERS[name].sequences else 1
    try:
        return name, named_order(name, ranks, micro_batches, chunks, pieces)
    except ScheduleError:
        reject()


def count(order):
    return Counter((part.kind, part.stage, part.micro_batch) for row in order.actions for a in row for part in a.parts)


@given(orders())
@draws(60)
def test_every_forward_and_backward_is_done_once_on_its_rank(drawn):
    _, order = drawn
    done = count(order)
    for stage in range(order.stages):
        for micro_batch in range(order.micro_batches):
            times = [done['F', stage, micro_batch], done['B', stage, micro_batch]]
            split = [done[kind, stage, micro_batch] for kind in 'IW']
            assert (times, split) in (([1, 1], [0, 0]), ([1, 0], [1, 1]))
    assert all(stage < order.stages and micro_batch < order.micro_batches for _, stage, micro_batch in done)
    for rank, row in enumerate(order.actions):
        assert {order.placement[part.stage] for a in row for part in a.parts} <= {rank}


def finish(order):
    """Every rank does its next action as soon as all that it needs is done; what is done, in that order."""
    done, position, last = set(), [0] * order.ranks, order.stages - 1
    pieces = order.sequence_chunks

    def ready(kind, s, m):
        if kind == 'F':
            return (s == 0 or ('F', s - 1, m) in done) and (m % pieces == 0 or ('F', s, m - 1) in done)
        if kind == 'W':
            return ('I', s, m) in done
        later = s == last or {('B', s + 1, m), ('I', s + 1, m)} & done
        behind = (m + 1) % pieces == 0 or {('B', s, m + 1), ('I', s, m + 1)} & done
        return ('F', s, m) in done and later and behind

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(order.actions):
            while position[rank] < len(row):
                parts = [(p.kind, p.stage, p.micro_batch) for p in row[position[rank]].parts]
                if not all(ready(*part) for part in parts):
                    break
                done.update(parts)
                position[rank] += 1
                moved = True
    return [len(row) - at for row, at in zip(order.actions, position, strict=True)]


@given(orders())
@draws(60)
def test_needs_are_respected_and_every_rank_ends(drawn):
    _, order = drawn
    assert finish(order) == [0] * order.ranks
    assert faults(order) == ()


@given(orders(tuple(MOST_LIVE)))
@draws(60)
def test_activations_stay_within_the_bound_of_the_order(drawn):
    name, order = drawn
    chunks, m = order.stages // order.ranks, order.micro_batches
    for rank, row in enumerate(order.actions):
        live = peak = 0
        for action in row:
            live += sum(part.kind == 'F' for part in action.parts)
            peak = max(peak, live)
            live -= sum(part.kind in ('B', 'W') for part in action.parts)
        assert peak <= min(MOST_LIVE[name](order.ranks, m, chunks, rank), m * chunks)
        assert peak_live(order)[rank] == peak


@pytest.mark.parametrize('name', MOST_LIVE)
@pytest.mark.parametrize('ranks', some([1, 2, 4, 5]))
def test_the_bound_is_reached_with_many_micro_batches(name, ranks):
    order = named_order(name, ranks, 4 * ranks)
    chunks = order.stages // ranks
    bound = [MOST_LIVE[name](ranks, 4 * ranks, chunks, rank) for rank in range(ranks)]
    assert list(peak_live(order)) == bound


@given(st.integers(1, 8), st.integers(1, 30), st.sampled_from([0.25, 0.5, 1.0]))
def test_zero_bubble_memory_where_a_part_waits_for_w(ranks, more, kept):
    """(p − i + 1) M_B + (i − 1) M_W and (2p − 2i + 1) M_B + (2i − 2) M_W on worker i (Qi et al. 2023, section 2.3)."""
    m = 2 * ranks - 1 + more
    assert peak_live(named_order('zb-h1', ranks, m), kept) == tuple(ranks - r + r * kept for r in range(ranks))
    expected = tuple(2 * (ranks - r) - 1 + 2 * r * kept for r in range(ranks))
    assert peak_live(named_order('zb-h2', ranks, m), kept) == expected


def rendezvous(order):
    """Ranks left waiting, where a send and its receive end only when both ranks are at them."""
    position = [0] * order.ranks
    step = {'SEND_F': ('RECV_F', 1), 'SEND_B': ('RECV_B', -1)}

    def head(rank):
        row = order.actions[rank]
        return row[position[rank]] if position[rank] < len(row) else None

    moved = True
    while moved:
        moved = False
        for rank in range(order.ranks):
            action = head(rank)
            if action is None or action.kind.startswith('RECV'):
                continue
            if action.kind in step:
                kind, hop = step[action.kind]
                peer = order.placement[action.stage + hop]
                other = head(peer)
                if other is None or (other.kind, other.stage) != (kind, action.stage + hop):
                    continue
                if other.micro_batch != action.micro_batch:
                    continue
                position[peer] += 1
            position[rank] += 1
            moved = True
    return [rank for rank in range(order.ranks) if head(rank) is not None]


@given(orders(), st.sampled_from(['early', 'late']))
@draws(60)
def test_sends_and_receives_never_block_each_other_for_ever(drawn, receive):
    _, order = drawn
    sent = with_communication(order, receive)
    assert rendezvous(sent) == []
    assert faults(sent) == ()
    without = [tuple(a for a in row if a.kind not in COMMUNICATION) for row in sent.actions]
    assert tuple(without) == order.actions


@given(orders(), st.sampled_from(['early', 'late']))
@draws(60)
def test_messages_between_two_ranks_arrive_in_the_order_in_which_they_are_sent(drawn, receive):
    order = with_communication(drawn[1], receive)
    queues = defaultdict(list)
    for rank, row in enumerate(order.actions):
        for a in row:
            if a.kind in COMMUNICATION:
                hop = 1 if a.kind[-1] == 'F' else -1
                sends = a.kind.startswith('SEND')
                other = order.placement[a.stage + hop if sends else a.stage - hop]
                ranks = (rank, other) if sends else (other, rank)
                queues[ranks, sends].append((a.kind[-1], a.stage if sends else a.stage - hop, a.micro_batch))
    for ranks, sends in list(queues):
        assert queues[ranks, sends] == queues[ranks, not sends]
        assert ranks[0] != ranks[1]


@given(orders())
@draws(60)
def test_a_late_receive_waits_for_its_use_or_for_a_send_that_would_block(drawn):
    order = with_communication(drawn[1], 'late')
    for row in order.actions:
        received = set()
        for action in row:
            if action.kind.startswith('RECV'):
                received.add(message(action))
            else:
                assert not received or action.kind.startswith('SEND') or received & set(needs(action, order))
                received.clear()


def test_late_is_later_than_early():
    order = named_order('1f1b', 2, 3)
    early, late = (with_communication(order, receive).actions[1] for receive in ('early', 'late'))
    assert ' '.join(map(str, early)) == (
        '1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1RECV_F2 1B1 1SEND_B1 1F2 1B2 1SEND_B2'
    )
    assert ' '.join(map(str, late)) == ('1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2')


# One exchange between two turns of a rank, as Megatron-LM has it without overlap of messages


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


# MindSpore's orders are those that its compiler wrote: F and B in order, the same W, each behind its backward


def stage_orders(folder):
    """Recorded stage orders by the name of their case."""
    paths = sorted({*folder.rglob('pp_*.json'), *folder.rglob('pipeline/*.json')})
    recorded = (json.loads(path.read_text(encoding='utf-8')) for path in paths)
    return {case['case']['name']: case for case in recorded if case.get('schedule')}


STAGE_ORDERS = stage_orders(FOLDER)


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
    assert STAGE_ORDERS, f'no recorded stage order in {FOLDER}'


@pytest.mark.parametrize('name', STAGE_ORDERS)
def test_stage_order(name):
    recorded = Recorded(STAGE_ORDERS[name])
    ours = recorded.ours()
    assert [task for task in ours if task[0] != 'W'] == [task for task in recorded.tasks if task[0] != 'W']
    assert {task for task in ours if task[0] == 'W'} == {task for task in recorded.tasks if task[0] == 'W'}
    for kind, stage, micro_batch in ours:
        if kind == 'W':
            assert ours.index(('B', stage, micro_batch)) < ours.index((kind, stage, micro_batch))


@pytest.mark.parametrize('name', some(stage_orders(SHIPPED), 2))
def test_weight_gradients_stand_where_they_are_recorded(name):
    recorded = Recorded(stage_orders(SHIPPED)[name])
    assert recorded.ours() == recorded.tasks
