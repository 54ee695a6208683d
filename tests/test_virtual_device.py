"""The virtual accelerator by itself: it runs late, reuses memory as devices do, and knows who did not wait."""

import pytest
import torch

from executor import virtual
from executor.devices.open import open_device
from executor.virtual.engine import Race, state
from simpar.errors import ProgramError


@pytest.fixture(autouse=True)
def device():
    open_device('virtual')
    state.reset(seed=7)
    with torch.no_grad():
        yield torch.device('virtual', 0)


def test_torch_knows_it_as_an_accelerator(device):
    assert torch.get_device_module('virtual') is virtual
    assert torch.empty(2, device='virtual').device == device
    assert torch.accelerator.current_accelerator().type == 'virtual'


def test_nothing_runs_before_the_host_waits(device):
    x = torch.ones(3, device=device)
    y = x + 1
    assert (x.cells != 1).all()
    assert (y.cells != 2).all()
    virtual.synchronize()
    assert y.cells.tolist() == [2, 2, 2]


def test_numbers_and_forms_are_those_of_the_cpu(device):
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def work(x):
        x = torch.ops.aten.silu_backward(x, 2 * x)
        y = torch.nn.functional.layer_norm(x @ x.mT, (4,)).chunk(2, 1)[1].contiguous()
        y.masked_fill_(y < 0, 2.0)
        torch._foreach_mul_([y, x], 3.0)
        x[1:, ::2].copy_(y[1:].repeat(1, 2)[:, :3])
        return torch.cat([x.flatten()[3:], y.view(-1).sort(stable=True).values]).cumsum(0)

    found, wanted = work(x.to(device)), work(x)
    assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    assert torch.equal(found.cpu(), wanted)


def two_streams():
    return virtual.Stream(name='one'), virtual.Stream(name='other')


@pytest.mark.parametrize('seed', range(3))
def test_a_missing_event_is_a_race_in_every_order(device, seed):
    state.reset(seed)
    one, other = two_streams()
    with virtual.stream(one):
        x = torch.ones(1000, device=device)
    with virtual.stream(other):
        y = x + 1
    virtual.synchronize()
    assert y.shape == x.shape
    with pytest.raises(Race, match=r'aten.add.Tensor on other does not wait for .* on one'):
        state.engine.races.check()


@pytest.mark.parametrize('seed', range(3))
def test_an_event_orders_two_streams(device, seed):
    state.reset(seed)
    one, other = two_streams()
    with virtual.stream(one):
        x = torch.ones(1000, device=device)
    other.wait_event(one.record_event())
    with virtual.stream(other):
        assert (x + 1).cpu().eq(2).all()
    state.engine.races.check()


def test_an_event_that_is_recorded_too_late_orders_nothing(device):
    one, other = two_streams()
    event = virtual.Event()
    with virtual.stream(one):
        x = torch.ones(4, device=device)
    other.wait_event(event)
    event.record(one)
    with virtual.stream(other):
        x.add_(1)
    with pytest.raises(Race):
        state.engine.races.check()


def test_memory_that_the_host_drops_is_reused_while_another_stream_reads_it(device):
    one, other = two_streams()
    with virtual.stream(one):
        x = torch.ones(64, device=device)
    other.wait_event(one.record_event())
    with virtual.stream(other):
        y = x * 2
    before = virtual.memory_reserved()
    del x
    with virtual.stream(one):
        again = torch.zeros(64, device=device)
    assert virtual.memory_reserved() == before
    with pytest.raises(Race, match=r'an allocation on one does not wait for aten.mul.Tensor on other'):
        state.engine.races.check()
    assert again.shape == y.shape


def test_disjoint_parts_of_one_tensor_are_no_race(device):
    one, other = two_streams()
    x = torch.zeros(8, device=device)
    ready = virtual.default_stream().record_event()
    for stream, part in ((one, x[:4]), (other, x[4:])):
        stream.wait_event(ready)
        with virtual.stream(stream):
            part.add_(1)
    virtual.synchronize()
    state.engine.races.check()
    assert x.cpu().tolist() == [1.0] * 8


def test_the_host_may_not_read_a_number_while_it_issues(device):
    x = torch.ones(2, device=device)
    assert float(x.sum()) == 2
    state.issuing = True
    with pytest.raises(ProgramError, match='read by the host inside of a step'):
        float(x.sum())
    with pytest.raises(ProgramError, match='how many elements a mask picks'):
        x[x > 0]
    with pytest.raises(ProgramError, match='copy without blocking'):
        torch.ones(2).to(device)
    assert torch.ones(2).to(device, non_blocking=True).device == device


def test_operations_of_two_devices_are_refused(device):
    with pytest.raises(ProgramError, match='tensors on virtual:0 and on virtual:1'):
        torch.ones(2, device='virtual:0') + torch.ones(2, device='virtual:1')


def test_the_time_between_two_events_is_that_of_what_ran(device):
    first, last = (virtual.Event(enable_timing=True) for _ in range(2))
    first.record()
    x = torch.randn(300, 300).to(device)
    for _ in range(5):
        x = x @ x
    last.record()
    with pytest.raises(RuntimeError, match='reached'):
        first.elapsed_time(last)
    last.synchronize()
    assert first.elapsed_time(last) > 0


def test_seeds_of_torch_go_on_without_a_warning(device):
    torch.manual_seed(3)
    first = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), first)
