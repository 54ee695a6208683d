"""Steps issued as captured graphs: the numbers of steps issued op by op, and the rules of capturing."""

import pytest
import torch
from every import some
from virtual_cases import differences, drop_event, program, small, waits

from executor import virtual
from executor.devices.issue import AHEAD, WARM
from executor.devices.open import open_device
from executor.inprocess import InProcess
from executor.state import Request
from executor.virtual.engine import Race, state
from executor.virtual.transport import VirtualWorld
from simpar.errors import ProgramError

STEPS = WARM + 2 * AHEAD + 1
"""Each graph is replayed twice, and one of them once more."""


def world(made, order=None):
    return VirtualWorld(made, Request(steps=STEPS, dtype='fp64', issue='graph'), order)


@pytest.fixture
def device():
    found = open_device('virtual')
    state.reset(3)
    return found.name


@pytest.mark.parametrize('name', ['network, mean absolute error, momentum, clipped', 'tensor 4, copies 2'])
def test_graphs_train_to_the_bit_as_in_process(name):
    made = program(name)
    assert differences(world(made, order=1).run(), InProcess(made).run(STEPS)) == []


def test_any_order_of_the_streams_of_a_graph_gives_the_same_bits():
    made = small()
    wanted = InProcess(made).run(STEPS)
    for order in some([None, *range(5)]):
        assert differences(world(made, order).run(), wanted) == [], order


def test_the_step_number_goes_with_the_replays():
    """Adam divides by 1 − beta^step: a number that was captured once would train otherwise."""
    made = program('network, mean squared error, Adam')
    found, wanted = world(made).run(), InProcess(made).run(STEPS)
    for name, parameter in wanted.parameters.items():
        assert torch.allclose(found.parameters[name], parameter, rtol=1e-13, atol=1e-15), name


def test_steps_of_a_graph_have_times():
    trace = world(small()).run().trace
    assert (trace.step_times > 0).all()


def test_an_event_that_is_dropped_inside_of_a_graph_is_noticed():
    made = small()
    inside = [wait for wait in waits(world(made).ranks[0]) if wait[2] == 'needs']
    assert len(inside) > 2
    for number, wait in enumerate(inside[:4]):
        ranks = world(made)
        rank = ranks.ranks[number % 2]
        # Behind the first step, which is issued op by op.
        rank._capture = dropping(rank, wait)
        with pytest.raises(Race, match=r'in a graph does not wait for .* in a graph'):
            ranks.run()


def dropping(rank, wait):
    """The rank's capture, in which one wait is missing."""
    capture = rank._capture

    def captured(step):
        if step == WARM:
            drop_event(rank, wait)
        return capture(step)

    return captured


def test_a_replay_does_the_same_with_other_numbers(device):
    x, graph, stream = torch.ones(3, device=device), virtual.Graph(), virtual.Stream()
    with virtual.graph(graph, stream=stream):
        y = x * 2
    for number in (1.0, 5.0):
        x.fill_(number)
        graph.replay()
        assert y.cpu().tolist() == [2 * number] * 3


def test_what_is_captured_does_not_run(device):
    x, stream = torch.ones(3, device=device), virtual.Stream()
    with virtual.graph(virtual.Graph(), stream=stream):
        x.fill_(9.0)
    assert x.cpu().tolist() == [1.0] * 3


def test_the_host_asks_nothing_while_it_captures(device):
    x = torch.ones(3, device=device)
    with pytest.raises(ProgramError, match='read by the host while a graph is captured'), _capture():
        x.cpu()
    with pytest.raises(ProgramError, match='the host waits for a device while it captures'), _capture():
        virtual.synchronize()


class _capture:
    """A capture on a stream that is called origin."""

    def __enter__(self):
        self._origin = virtual.Stream(name='origin')
        self._graph = virtual.graph(virtual.Graph(), stream=self._origin)
        self._graph.__enter__()
        return self._origin

    def __exit__(self, *error):
        return self._graph.__exit__(*error)


def test_a_graph_reads_no_memory_of_the_host(device):
    x = torch.ones(3, device=device)
    with pytest.raises(ProgramError, match='memory of the host, which is not kept'), _capture():
        x.copy_(torch.zeros(3), non_blocking=True)


def test_a_stream_must_come_back(device):
    other = virtual.Stream(name='other')
    capture = _capture()
    origin = capture.__enter__()
    other.wait_stream(origin)
    with virtual.stream(other):
        torch.ones(3, device=device)
    with pytest.raises(ProgramError, match='ends with work on other that origin does not wait for'):
        capture.__exit__(None, None, None)


def test_events_inside_and_outside_do_not_mix(device):
    before, inside, moved = virtual.Event(), virtual.Event(), virtual.Event(external=True)
    before.record(virtual.Stream())
    with (
        pytest.raises(ProgramError, match='waits, inside of a graph, for an event that is not in it'),
        _capture() as origin,
    ):
        origin.wait_event(before)
    with _capture() as origin:
        inside.record(origin)
        moved.record(origin)
    with pytest.raises(ProgramError, match='external=True'):
        inside.synchronize()
    moved.synchronize()


def test_what_was_never_captured_cannot_be_replayed(device):
    with pytest.raises(ProgramError, match='before it was captured'):
        virtual.Graph().replay()
