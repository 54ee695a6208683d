"""The executor's own collectives, between threads over queues in place of processes over gloo."""

import queue
from functools import partial

import pytest
import torch
from at_once import at_once
from every import draws
from hypothesis import given
from hypothesis import strategies as st

from executor import tensors
from executor.ranks import collectives
from executor.ranks.collectives import Channel


class Queues(Channel):
    """A channel whose messages go through queues; a receive checks that the message has the length it expects."""

    def __init__(self, position, size, lanes):
        self.members = tuple(range(size))
        self.position = position
        self.representatives = lanes
        self.sent = 0

    def exchange(self, sends, receives, pace=None, due=None):
        for out, peer in sends:
            self.sent += out.nbytes
            self.representatives[self.position, peer].put(out.clone())
        for into, peer in receives:
            into.copy_(self.representatives[peer, self.position].get(timeout=10))


def on_all(size, act):
    """What ``act(channel)`` gives on every position, and the bytes that each has sent."""
    lanes = {(one, two): queue.Queue() for one in range(size) for two in range(size)}
    channels = [Queues(position, size, lanes) for position in range(size)]
    return at_once(*(partial(act, channel) for channel in channels)), [channel.sent for channel in channels]


def drawn(size, count, dtype=torch.float64):
    return [
        torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=torch.float64).to(dtype)
        for rank in range(size)
    ]


LARGE = collectives.SMALL // 8 + 3
sizes = st.integers(2, 8)
counts = st.one_of(st.integers(1, 40), st.integers(LARGE, LARGE + 40))


@draws(25)
@given(sizes, counts, st.sampled_from(['sum', 'max']))
def test_all_reduce_is_the_sum_or_maximum_with_the_same_bits_everywhere(size, count, reduce):
    values = drawn(size, count)
    wanted = tensors.all_reduce([[value] for value in values], reduce)[0][0]

    def act(channel):
        flat = values[channel.position].clone()
        collectives.Rings(channel).all_reduce(flat, reduce)
        return flat

    results, _ = on_all(size, act)
    for result in results:
        torch.testing.assert_close(result, wanted, rtol=1e-12, atol=1e-12)
        assert torch.equal(result, results[0])


@draws(25)
@given(sizes, st.integers(1, 500))
def test_reduce_scatter_gives_each_position_its_slice_of_the_sum(size, count):
    values = drawn(size, size * count)
    wanted = tensors.reduce_scatter(values, 0)

    def act(channel):
        return collectives.Rings(channel).reduce_scatter(list(values[channel.position].clone().chunk(size)), 'sum')

    results, sent = on_all(size, act)
    for result, piece in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, piece, rtol=1e-12, atol=1e-12)
    assert sent == [(size - 1) * count * 8] * size, 'a ring sends no more than it must'


@draws(25)
@given(sizes, st.integers(1, 500))
def test_all_gather_gives_everybody_all_pieces_by_position(size, count):
    values = drawn(size, count)
    results, sent = on_all(size, lambda channel: collectives.Rings(channel).all_gather(values[channel.position]))
    for result in results:
        assert torch.equal(result, torch.stack(values))
    assert sent == [(size - 1) * count * 8] * size


@draws(25)
@given(sizes, st.integers(1, 500))
def test_all_to_all_gives_everybody_the_chunks_meant_for_it(size, count):
    values = [list(value.chunk(size)) for value in drawn(size, size * count)]
    results, sent = on_all(size, lambda channel: collectives.Rings(channel).all_to_all(values[channel.position]))
    for position, result in enumerate(results):
        assert torch.equal(torch.cat(result), torch.cat([chunks[position] for chunks in values]))
    assert sent == [(size - 1) * count * 8] * size, 'nothing goes over a peer'


@pytest.mark.parametrize('size', [2, 4])
def test_a_ring_all_reduce_sends_twice_what_is_not_its_own(size):
    values = drawn(size, LARGE + LARGE % size)
    length = 4 * (len(values[0]) // 4)
    _, sent = on_all(
        size, lambda channel: collectives.Rings(channel).all_reduce(values[channel.position][:length].clone(), 'sum')
    )
    assert sent == [2 * (size - 1) * (length // size) * 8] * size


@given(sizes, st.lists(st.floats(0, 1e6), min_size=8, max_size=8))
@draws(20)
def test_everybody_learns_when_the_last_arrived(size, moments):
    results, _ = on_all(size, lambda channel: channel.latest(moments[channel.position]))
    assert results == [max(moments[:size])] * size


def test_a_group_of_one_has_nothing_to_reduce():
    (result,), (sent,) = on_all(1, lambda channel: collectives.Rings(channel).all_gather(torch.ones(3)))
    assert torch.equal(result, torch.ones(1, 3))
    assert sent == 0


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_deterministic_in_every_precision(dtype):
    values = drawn(4, LARGE * 4, dtype)

    def act(channel):
        flat = values[channel.position].clone()
        collectives.Rings(channel).all_reduce(flat, 'sum')
        return flat

    once, _ = on_all(4, act)
    again, _ = on_all(4, act)
    assert all(torch.equal(result, once[0]) for result in (*once, *again))
