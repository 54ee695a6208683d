"""What ranks would ask of devices that are not there: right plans pass, and each kind of sabotage is named."""

import pytest

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor import kernels
from executor.virtual.dry_run import DryIssuer, dry_run
from simpar.errors import Deadlock, ProgramError
from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import AdamW, Transformer, Workload

pytestmark = pytest.mark.torch
MODEL = Transformer(layers=2, hidden=64, heads=2, vocab=32, sequence=8, init_std=0.1)


def program(world=2, **plan):
    workload = Workload(model=MODEL, batch=32, optimizer=AdamW(learning_rate=1e-3), precision='bf16')
    return lower(workload, Plan(**plan), world)


@pytest.fixture(scope='module')
def interleaved():
    return program(data=2, copies=2)


def test_a_right_plan_passes_and_holds_what_the_program_says(interleaved):
    found = dry_run(interleaved)
    assert found.wrong == []
    assert (found.ranks, found.collectives > 0) == ((0, 1), True)
    assert [one.device for one in found.bytes] == [one.program for one in found.bytes]


def test_of_many_ranks_those_that_differ_stand_for_all():
    found = dry_run(program(world=64, pipeline=2, data=32, micro_batches=1))
    assert (len(found.ranks) < 8, found.world, found.wrong) == (True, 64, [])


def changed(monkeypatch, operator, phase, how):
    right = kernels.KERNELS[operator, phase]
    monkeypatch.setitem(
        kernels.KERNELS, (operator, phase), lambda op, where, tensors: how(where, right(op, where, tensors))
    )


def test_a_kernel_of_a_dtype_that_there_is_none_of_is_named(interleaved, monkeypatch):
    # The CPU multiplies matrices of whole numbers, and CUDA does not.
    def whole(where, results):
        return [(results[0].flatten(0, 1).int() @ results[0].flatten(0, 1).int().mT)[:1, :1] * 0 + results[0]]

    changed(monkeypatch, 'gelu', 'F', whole)
    assert any('mm of int32' in what for what in dry_run(interleaved).wrong)


def test_a_tensor_on_another_device_is_named(interleaved, monkeypatch):
    def elsewhere(where, results):
        return [results[0] + torch.zeros(1, device='cuda:3') if where.rank == 1 else results[0]]

    changed(monkeypatch, 'gelu', 'F', elsewhere)
    with pytest.raises(ProgramError, match=r'gelu.F on rank 1: .*cuda:1.*cuda:3'):
        dry_run(interleaved)


def test_a_number_that_the_host_reads_is_named(interleaved, monkeypatch):
    changed(monkeypatch, 'gelu', 'F', lambda where, results: [results[0] * float(results[0].sum())])
    with pytest.raises(ProgramError, match='read by the host inside of a step'):
        dry_run(interleaved)


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
        (OutOfOrder, (ProgramError, Deadlock), r'ranks meet in different collectives on data|reads d:'),
        (WithoutEvents, ProgramError, r'the tensors of .* does not wait for'),
    ],
)
def test_sabotage_of_the_host_is_named(interleaved, issuer, error, what):
    with pytest.raises(error, match=what):
        dry_run(interleaved, issuer=issuer)
