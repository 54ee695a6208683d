"""Hosts that wait for their devices: closed forms, and every machine to the bit."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from simpar import Plan, cluster, load_profile, price, simulate
from simpar.engine.fold import Representatives, groups_of
from simpar.engine.queues import WAITS, hosted
from simpar.lower import lower
from simpar.workload import Adam, Transformer, Workload

MODEL = Transformer(layers=4, hidden=256, heads=4, vocab=512, sequence=64)
UNIT = 2.0**-20
"""Seconds; sums of them are exact."""


def made(plan: Plan, ranks: int, clip: float = 0.0):
    work = Workload(model=MODEL, batch=8, precision='bf16', optimizer=Adam(), clip_norm=clip)
    return lower(work, plan, ranks)


def costs_of(program, ranks, waits, *, device=1.0, host=4.0, step=0.0, slows=False):
    """Every op as long as every other one, on the device and on the host; messages take no time."""
    found = price(program, cluster(load_profile('h100-sxm-8'), devices=ranks))
    if slows:
        return replace(found, waits=waits, host=found.host * host)
    computes = np.array([op.kind == 'compute' for op in program.op_classes])
    free = {
        index: tuple(replace(one, alpha=0.0, transfer=0.0, links=()) for one in each)
        for index, each in found.communication.items()
    }
    return replace(
        found,
        compute=np.where(computes, device * UNIT, 0.0),
        host=np.full(len(computes), host * UNIT),
        host_step=step * UNIT,
        communication=free,
        waits=waits,
    )


def test_one_rank_bound_by_its_host_takes_as_long_as_issuing_and_the_last_op():
    program = made(Plan(), 1)
    ops = len(program.role(0))
    found = simulate(program, costs_of(program, 1, ('step',), step=7.0), steps=3)
    assert found.step_times == pytest.approx([UNIT * (7 + 4 * ops + 1)] * 3, rel=1e-12)


def test_a_host_that_never_waits_runs_ahead():
    program = made(Plan(), 1)
    ops = len(program.role(0))
    found = simulate(program, costs_of(program, 1, (), step=7.0), steps=3)
    assert found.step == pytest.approx(UNIT * (7 + 4 * ops), rel=1e-12)


def test_a_device_that_is_slower_hides_all_but_the_first_launch():
    program = made(Plan(), 1)
    ops = len(program.role(0))
    found = simulate(program, costs_of(program, 1, ('step',), device=4.0, host=1.0), steps=2)
    assert found.step == pytest.approx(UNIT * (1 + 4 * ops), rel=1e-12)


def test_waiting_for_messages_multiplies_the_bubble_by_the_hosts_time():
    """Two stages, four micro-batches, all bound by the host: (m + p − 1) / m as long as issuing."""
    plan = Plan(pipeline=2, micro_batches=8, receive='late', exchange='fused')
    program = made(plan, 2)
    free, waiting = (simulate(program, costs_of(program, 2, waits, device=0.0)).step for waits in ((), WAITS))
    assert free < waiting < free * (8 + 2 - 1) / 8 * 1.15
    assert waiting > free * 1.05


@pytest.mark.parametrize('chunks', [1, 2])
@pytest.mark.parametrize('receive', ['early', 'late'])
def test_messages_that_are_issued_one_by_one_never_make_the_host_wait(receive, chunks):
    """Megatron-LM synchronises behind batch_isend_irecv alone; an isend or irecv is waited for on the device."""
    order = 'interleaved-1f1b' if chunks > 1 else '1f1b'
    plan = Plan(pipeline=2, micro_batches=8, order=order, chunks=chunks, receive=receive, exchange='separate')
    program = made(plan, 2)
    free, waiting = (simulate(program, costs_of(program, 2, waits)).step for waits in ((), ('receive',)))
    assert waiting == free
    batched = made(replace(plan, exchange='fused'), 2)
    free, waiting = (simulate(batched, costs_of(batched, 2, waits)).step for waits in ((), ('receive',)))
    assert waiting > free


def test_the_norm_of_gradients_is_waited_for():
    program = made(Plan(data=2), 2, clip=1.0)
    without, norm = (
        simulate(program, costs_of(program, 2, waits, device=9.0)).step for waits in (('step',), ('step', 'norm'))
    )
    assert norm > without


def test_the_host_waits_before_each_gather_of_weights():
    """Bound by the host, each wait costs what computes before it, by hand; of two gathers in a row the first waits."""
    program = made(Plan(data=2, zero=3), 2)
    ops = [program.op_classes[index] for index in program.role(0).op_class]
    waited = sum('weights.data.all_gather' in op.name and before.kind == 'compute' for before, op in pairwise(ops))
    free, waiting = (simulate(program, costs_of(program, 2, waits)).step for waits in (('step',), ('gather', 'step')))
    assert waited > 4
    assert waiting - free == pytest.approx(UNIT * waited, rel=1e-12)


@pytest.mark.parametrize(('waits', 'times'), [(('step',), 0), (('pass', 'step'), 8), (('batch', 'step'), 3)])
def test_the_host_waits_about_each_pass_or_where_it_reads_a_batch(waits, times):
    """Bound by the host, each wait costs the op before it, by hand: four forwards, four backwards and the update have
    eight borders, and three forwards have something before them."""
    program = made(Plan(micro_batches=4), 1)
    ops = len(program.role(0))
    found = simulate(program, costs_of(program, 1, waits), steps=3)
    assert found.step_times == pytest.approx([UNIT * (4 * ops + 1 + times)] * 3, rel=1e-12)


def test_no_pass_waits_for_sums_of_gradients():
    """They are issued before the message of the last backward, which would come as late as they end."""
    program = made(Plan(pipeline=2, data=2, micro_batches=4, reduce_gradients='end', fusion='all'), 4)
    ops = hosted(program, Representatives(groups_of(program), [0, 0, 1, 1], []), ('pass',))
    count = len(ops) // 2
    row, item = ops.need.pairs().T
    waited = item[(row >= count) & (item < count)]
    kinds = {program.op_classes[index].kind for index in ops.op_class[waited].tolist()}
    assert kinds == {'compute', 'send', 'recv'}
