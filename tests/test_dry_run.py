"""What ranks would ask of devices that are not there: right plans pass, and each kind of sabotage is named."""

from dataclasses import replace

import pytest
import torch
from op_tables import recorded

from executor import kernels
from executor.virtual.dry_run import DryIssuer, FoldedComputation, check_time, dry_run
from executor.virtual.engine import Race
from simpar import Plan, from_module, load_case
from simpar.errors import Infeasible, ProgramError
from simpar.lower import lower
from simpar.model.library.experts import Experts
from simpar.size import LIMIT, Limit
from simpar.workload import AdamW, Sgd, Transformer, Workload

SGD = Sgd(learning_rate=0.01)
MODEL = Transformer(layers=1, hidden=64, heads=2, vocab=32, sequence=8, init_std=0.1)


def program(world=2, layers=1, optimizer=SGD, **plan):
    workload = Workload(model=replace(MODEL, layers=layers), batch=32, optimizer=optimizer, precision='bf16')
    return lower(workload, Plan(**plan), world)


@pytest.fixture(scope='module')
def parallel():
    return program(data=2)


def test_a_right_plan_passes_and_holds_what_the_program_says():
    found = dry_run(program(optimizer=AdamW(learning_rate=1e-3), data=2, copies=2))
    assert found.wrong == []
    assert (found.ranks, found.collectives > 0) == ((0, 1), True)
    assert [one.device for one in found.bytes] == [one.program for one in found.bytes]


def test_of_many_ranks_those_that_differ_stand_for_all():
    # Of each stage the first rank; of the first rank's group of data its last peer.
    found = dry_run(program(world=64, layers=2, pipeline=2, data=32, micro_batches=1))
    assert (found.ranks, found.world, found.wrong) == ((0, 31, 32), 64, [])


def test_masks_turned_around_and_views_of_inputs_are_as_on_a_device():
    # Its loss has weights, from a mask that `~` turns around; one of its operators gives a view of an input.
    found = dry_run(load_case(recorded()['propagation-00']['schedule']).program)
    assert found.wrong == []
    assert [one.device for one in found.bytes] == [one.program for one in found.bytes]


def test_experts_that_drop_no_token_have_room_for_all_of_them():
    # The program counts the tokens that come to an expert; the executor has a slot for each token.
    model = replace(MODEL, experts=Experts(count=4, top_k=2), bias=(), activation='swiglu')
    found = dry_run(lower(Workload(model=model, batch=32, optimizer=SGD, precision='bf16'), Plan(data=2, expert=2), 2))
    assert found.wrong == []
    # A torch without CUDA takes it apart; CUDA has a kernel of it.
    assert found.calls['silu_backward', 'bfloat16']


def test_what_the_program_has_in_8_bits_is_held_in_32():
    workload = Workload(model=MODEL, batch=32, optimizer=SGD, precision='bf16', fp8='hybrid')
    found = dry_run(lower(workload, Plan(data=2), 2))
    assert found.wrong == []
    assert [one.device for one in found.bytes] == [one.program for one in found.bytes]


ON_HOST = {'layers': 1, 'data': 2, 'offload': ('activations', 'optimizer'), 'optimizer': AdamW(learning_rate=1e-3)}


def test_what_waits_on_the_host_is_copied_and_is_not_counted_on_the_device():
    found, plain = (dry_run(program(**{**ON_HOST, 'layers': 2, 'offload': of})) for of in (ON_HOST['offload'], ()))
    assert found.wrong == []
    assert [one.device for one in found.bytes] == [one.program for one in found.bytes]
    assert found.bytes[0].device < 0.9 * plain.bytes[0].device
    assert found.calls['copy_', 'bfloat16'] > plain.calls['copy_', 'bfloat16']


class WithoutEventsOfCopies(DryIssuer):
    way = 'host.out'

    def _wait_for_needs(self, slot, step, stream, marks):
        if slot.op.partition != self.way:
            super()._wait_for_needs(slot, step, stream, marks)


class WithoutEventsOfFetches(WithoutEventsOfCopies):
    way = 'host.in'


@pytest.mark.parametrize('issuer', [WithoutEventsOfCopies, WithoutEventsOfFetches])
def test_a_copy_that_waits_for_no_event_is_named(issuer):
    with pytest.raises(Race, match=f'on {issuer.way} of rank 0 does not wait for'):
        dry_run(program(**ON_HOST), issuer=issuer)


def test_a_copy_that_the_host_waits_for_is_named(monkeypatch):
    class Blocking(FoldedComputation):
        def copy(self, slot, step):
            made = self.memory.room_for(slot.op)
            for into, tensor in zip(made, self.reads(slot, step), strict=True):
                into.copy_(tensor)

    monkeypatch.setattr(DryIssuer, 'computation_of', Blocking)
    with pytest.raises(ProgramError, match='copy without blocking'):
        dry_run(program(**ON_HOST))


def changed(monkeypatch, operator, phase, how):
    right = kernels.KERNELS[operator, phase]
    monkeypatch.setitem(
        kernels.KERNELS, (operator, phase), lambda op, where, *tensors: how(where, right(op, where, *tensors))
    )


def test_a_kernel_of_a_dtype_that_there_is_none_of_is_named(parallel, monkeypatch):
    # The CPU multiplies matrices of whole numbers, and CUDA does not.
    def whole(where, results):
        return [(results[0].flatten(0, 1).int() @ results[0].flatten(0, 1).int().mT)[:1, :1] * 0 + results[0]]

    changed(monkeypatch, 'gelu', 'F', whole)
    assert any('mm of int32' in what for what in dry_run(parallel).wrong)


def test_a_tensor_on_another_device_is_named(parallel, monkeypatch):
    def elsewhere(where, results):
        return [results[0] + torch.zeros(1, device='cuda:3') if where.rank == 1 else results[0]]

    changed(monkeypatch, 'gelu', 'F', elsewhere)
    with pytest.raises(ProgramError, match=r'gelu.F on rank 1: .*cuda:1.*cuda:3'):
        dry_run(parallel)


def test_a_number_that_the_host_reads_is_named(parallel, monkeypatch):
    changed(monkeypatch, 'gelu', 'F', lambda where, results: [results[0] * float(results[0].sum())])
    with pytest.raises(ProgramError, match='read by the host inside of a step'):
        dry_run(parallel)


class OutOfOrder(DryIssuer):
    def __post_init__(self):
        super().__post_init__()
        if self.start.rank == 1:
            one, other, *_ = [
                at for at, slot in enumerate(self.slots) if slot.op.phase == 'W' and slot.op.kind != 'compute'
            ]
            self.slots[one], self.slots[other] = self.slots[other], self.slots[one]


class WithoutEvents(DryIssuer):
    def _wait_for_needs(self, slot, step, stream, marks):
        if slot.op.kind == 'compute':
            super()._wait_for_needs(slot, step, stream, marks)


@pytest.mark.parametrize(
    ('issuer', 'error', 'what'),
    [
        (OutOfOrder, ProgramError, r'different collectives on data.*head\.gradients.*norm\.gradients'),
        (WithoutEvents, Race, r'head\.gradients\.data\.all_reduce\.W on data of rank 0 does not wait for .*head\.W'),
    ],
)
def test_sabotage_of_the_host_is_named(issuer, error, what):
    # Of two copies: of one alone, whoever comes too early also lacks its gradient.
    with pytest.raises(error, match=what):
        dry_run(program(data=2, copies=2), issuer=issuer)


def test_derivatives_of_autograd_are_issued_call_by_call():
    # Torch's autograd asks for the device and would end the process: it sees tensors without one.
    module = from_module(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()), torch.zeros(4, 8))
    found = dry_run(lower(Workload(model=module.model, batch=16, loss='mse'), Plan(data=2), 2))
    assert (found.wrong, found.calls['tanh_backward', 'float32'] > 0) == ([], True)
    assert [one.device for one in found.bytes] == [one.program for one in found.bytes]


def test_what_takes_too_long_is_refused_before_anything_is_issued(parallel):
    check_time(parallel, LIMIT)
    with pytest.raises(Infeasible, match=r'ops takes at least .*fewer micro-batches.*--limit \d+s'):
        check_time(parallel, Limit(seconds=1e-2))
