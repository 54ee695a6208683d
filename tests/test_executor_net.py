"""Paced links, the virtual device and clocks, on clocks that jump instead of threads that sleep where possible."""

import threading
import time
from functools import partial
from itertools import pairwise

import pytest
from at_once import at_once
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from jump_clock import JumpClock
from paced_links import prove

from executor.host import Clock, offset_by_ping
from executor.ranks.collectives import Link
from executor.ranks.emulated import Busy, VirtualDevice, stretched_end
from simpar.hardware.net import Net, parse_net

# what --net says


@pytest.mark.parametrize(
    ('text', 'net'),
    [
        ('none', Net()),
        ('paced:1gbit,50us', Net('paced', 125e6, 50e-6)),
        ('paced:1 Gbit/s,1ms', Net('paced', 125e6, 1e-3)),
        ('paced:100 MB/s', Net('paced', 100e6)),
        ('netns:500mbit', Net('netns', 62.5e6)),
        # The name before this one: scripts and profiles have it.
        ('lab:500mbit', Net('netns', 62.5e6)),
    ],
)
def test_networks_are_read(text, net):
    assert parse_net(text) == net


@pytest.mark.parametrize(
    'text',
    ['', 'paced', 'paced:fast', 'paced:1gbit,50', 'netns', 'netns:1gbit,1us', 'paced:0 MB/s', 'none:1gbit', 'wifi'],
)
def test_other_networks_are_refused_with_what_to_write(text):
    with pytest.raises(ValueError, match=r'write'):
        parse_net(text)


# sharing a link


def test_transfers_end_at_the_engines_times_at_any_uptime():
    """Through the production code, on a clock that jumps; 100,000 sets by `make prove-paced`."""
    proof = prove(first=1_000_000, count=400)
    assert (proof.sets, proof.wrong) == (400, [])
    assert proof.transfers > 1000


@pytest.mark.parametrize('uptime', [1.0, 8192.0, 1e6, 1e8])
def test_equal_transfers_beside_a_longer_one_end(uptime):
    """Their rests were once too short for a double to add to the clock, and the thread went round for ever."""
    for third in (1e6, 333_333, 1e6 / 7):
        clock = JumpClock(uptime)
        link, ends = Link(clock, 3e6, 0.0), []
        sizes = (third, third, 7 * third)
        clock.run([lambda size=size, link=link, ends=ends: ends.append(link.carry(size, uptime)) for size in sizes])
        assert sorted(end - uptime for end in ends) == pytest.approx(
            [third / 1e6, third / 1e6, 3 * third / 1e6], rel=1e-6
        )


def test_a_link_that_never_rests_keeps_time_for_hours():
    """The origin moves on under transfers; two streams in turn keep the link busy for 40,000 s."""
    clock = JumpClock(5.0)
    link, ends = Link(clock, 1.0, 0.0), {}

    def stream(first):
        due = 5.0 + first
        for _ in range(100):
            due = link.carry(200, due)
        ends[first] = due

    clock.run([lambda: stream(0.0), lambda: stream(50.0)])
    assert max(ends.values()) == 5.0 + 2 * 100 * 200


def carried(link, clock, *messages):
    """When each of (due, bytes, demand) comes out at the far end by the link's clock; threads return no earlier."""

    def send(due, size, demand):
        clock.sleep_until(due)
        end = link.carry(size, due, demand)
        assert clock.now() >= end
        return end

    return at_once(*(partial(send, *message) for message in messages))


def test_a_message_alone_takes_its_size_over_the_rate_and_the_latency():
    clock = Clock()
    begin = clock.now()
    (end,) = carried(Link(clock, 1e6, 0.02), clock, (begin, 30_000, 1.0))
    assert end - begin == pytest.approx(0.05)


def test_two_collectives_share_a_link_as_on_the_worked_page():
    """Transfers of 3 units, A of demand 1, B of 1/2 and 2 units later. A has done 2 when B comes; then s + s/2 <= 1, so
    both go at 2/3 and A takes 1.5 more. B has done 1 then, and does 2 more alone."""
    unit, clock = 0.05, Clock()
    link = Link(clock, 1e6, 0.0)
    size = round(3 * unit * 1e6)
    begin = clock.now() + 0.01
    ends = carried(link, clock, (begin, size, 1.0), (begin + 2 * unit, size // 2, 0.5))
    assert [(end - begin) / unit for end in ends] == pytest.approx([3.5, 5.5], abs=0.02)


def test_a_transfer_is_held_back_while_the_device_computes():
    """0.02 s of transfer at speed 1/2 from 0.01 s to 0.02 s: 5 ms more."""
    clock = Clock()
    link = Link(clock, 1e6, 0.0)
    begin = clock.now()
    ends = []
    thread = threading.Thread(target=lambda: ends.append(link.carry(20_000, begin, 1.0, 0.5)))
    thread.start()
    clock.sleep_until(begin + 0.005)
    link.computing(True, begin + 0.01)
    link.computing(False, begin + 0.02)
    thread.join()
    assert ends[0] - begin == pytest.approx(0.025)


def test_late_threads_do_not_make_a_link_late():
    """A hundred messages, each due when the last one should be through, take a hundred times one."""
    clock = Clock()
    link = Link(clock, 1e6, 0.0)
    begin = clock.now()
    for index in range(100):
        end = link.carry(1000, begin + index * 1e-3)
    assert end - begin == pytest.approx(0.1)


# the virtual device


def test_an_op_beside_nothing_takes_its_time():
    assert stretched_end(1.0, 4.0, 0.5, []) == 5.0


def test_an_op_is_slow_inside_a_collective_only():
    """FA.1 of the worked page: from 4.125 beside RA.0, which ends at 8.125; 2 of 4 done; ends at 10.125."""
    assert stretched_end(4.125, 4.0, [0.5], [Busy(4.125, 8.125)]) == 10.125


def test_an_op_that_a_collective_outlasts_ends_while_it_runs():
    assert stretched_end(0.0, 1.0, [0.5], [Busy(0.0)]) == 2.0


def test_collectives_that_overlap_slow_no_more_than_one():
    assert stretched_end(0.0, 4.0, [0.5], [Busy(1.0, 3.0), Busy(2.0, 5.0)]) == 6.0


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10), st.integers(0, 1)), max_size=6)


@given(st.integers(0, 20), st.integers(1, 30), intervals)
def test_the_end_of_an_op_is_where_its_speed_adds_up_to_its_work(start, work, pairs):
    busy, speeds = [Busy(begin, begin + length, kind) for begin, length, kind in pairs], [0.25, 0.5]
    end = stretched_end(start, work, speeds, busy)
    edges = sorted({start, end, *(edge for one in busy for edge in (one.start, one.end) if start < edge < end)})
    done = 0.0
    for one, two in pairwise(edges):
        middle = (one + two) / 2
        beside = {interval.kind for interval in busy if interval.start < middle < interval.end}
        # Of both kinds at once the one that takes more counts.
        done += (two - one) * (speeds[min(beside)] if beside else 1.0)
    assert done == pytest.approx(work)


def test_a_collective_that_starts_and_ends_under_an_op_stretches_it():
    clock = Clock()
    device = VirtualDevice(clock)
    begin = clock.now()

    def collective():
        clock.sleep_until(begin + 0.02)
        interval = device.open(begin + 0.02, 0)
        clock.sleep_until(begin + 0.06)
        device.close(interval, begin + 0.06)

    thread = threading.Thread(target=collective)
    thread.start()
    end = device.compute(begin, 0.1, [0.5])
    thread.join()
    assert end - begin == pytest.approx(0.12)
    assert clock.now() >= end


def test_ops_behind_one_another_do_not_drift():
    clock = Clock()
    device, begin = VirtualDevice(clock), clock.now()
    end = begin
    for _ in range(200):
        end = device.compute(end, 1e-3, [1.0])
    assert end - begin == pytest.approx(0.2)


# clocks


@draws(30)
@given(st.floats(-1e3, 1e3), st.lists(st.tuples(st.floats(1e-5, 1e-2), st.floats(1e-5, 1e-2)), min_size=4, max_size=8))
def test_clocks_of_two_hosts_are_aligned_within_the_bound_that_is_told(offset, delays):
    there, back, here = iter(delays), iter(delays), [0.0]

    def ping():
        sent = here[0]
        arrived = sent + next(there)[0]
        received = arrived + next(back)[1]
        here[0] = received + 0.01
        return sent, arrived + offset, received

    found, error = offset_by_ping(ping, len(delays))
    assert abs(found - offset) <= error + 1e-6


def test_sleeping_until_a_moment_that_has_passed_returns_at_once():
    begin = time.perf_counter()
    Clock().sleep_until(begin - 1)
    assert time.perf_counter() - begin < 0.1
