"""Steps of plain torch recorded on two gloo ranks: what a thread did for itself and for messages, and its waits."""

from pathlib import Path

import numpy as np
import pytest

from simpar.cost.compute import DeviceCompute, StackCompute
from simpar.profiles import load_profile, load_stack
from simpar.program import OpClass
from simpar.recording.join import MESSAGES, Join, collectives, compute_ops
from simpar.recording.readers import Copies, write_measured
from simpar.traces import read_traces

FOLDER = Path(__file__).parent / 'recorded' / 'kineto_gloo'
PLANS = ('ddp', 'fsdp2', 'tensor')
TICK = 1e-6


def drawn(spans, length):
    """Which microseconds of a step the spans cover."""
    found = np.zeros(length, dtype=bool)
    for begin, end in spans:
        found[round(begin / TICK) : round(end / TICK)] = True
    return found


@pytest.mark.parametrize('plan', PLANS)
def test_a_thread_computes_or_waits(plan):
    """Microsecond by microsecond: between the first and the last known op, what is no wait is some op's own time.

    A wait is a message, while the thread is neither in a known op that computes nor in an op of torch that calls none.
    """
    (trace,) = read_traces(FOLDER / f'{plan}.json.gz', host=True)
    rows = sorted(trace.host.rows(trace.origin), key=lambda each: (each.start, -each.end))
    ops, (talks,) = list(compute_ops(trace)), collectives([trace])
    length = round(max(row.end for row in rows) / TICK) + 1
    mine = [row for row in rows if row.stream == '1']
    inmost = [
        (row.start, row.end)
        for row, behind in zip(mine, [*mine[1:], None], strict=True)
        if row.name.startswith('aten::') and (behind is None or behind.start >= row.end)
    ]
    message = drawn(((one.start, one.end) for one in talks), length)
    busy = drawn(inmost, length) | drawn(((op.issued, op.ran) for op in ops if op.key[0] != MESSAGES), length)
    span = drawn([(ops[0].issued, max(op.ran for op in ops))], length)
    own = (span & (busy | ~message)).sum() * TICK
    assert sum(op.seconds for op in ops) == pytest.approx(own, rel=0.01)
    # In each of them the thread waits, by DDP for its last bucket alone.
    assert (span & message & ~busy).any()


def test_fsdp2_calls_as_much_of_torch_for_a_block_as_its_stack_says():
    (trace,) = read_traces(FOLDER / 'fsdp2.json.gz', host=True)
    rows = list(trace.host.rows(trace.origin))
    stack = load_stack('torch-gloo')
    for hook, message in (('pre_forward', '*.weights.*all_gather*'), ('post_backward_reduce', '*.gradients.*scatter*')):
        (outer,) = (row for row in rows if row.name == f'FSDP::{hook} (blocks.1)')
        inside = [row for row in rows if outer.start < row.start < outer.end and row.stream == outer.stream]
        calls = [row for row in inside if not row.name.startswith('FSDP::')]
        (told,) = (one for name, one in stack.launches.items() if name.replace('reduce_', '') == message)
        assert told.calls == len(calls)


def test_calls_for_a_message_take_time_where_the_thread_is_the_device():
    """84 calls of 10 us beside the copies on a CPU; on a GPU the host makes them."""
    op = OpClass('layer0.weights.data.all_gather.F', 'collective', 'all_gather', 'F', bytes=2**20)
    stack, cpu, gpu = load_stack('torch-gloo'), load_profile('cpu-gloo'), load_profile('h100-sxm-8')
    for profile, calls in ((cpu, 84 * 10e-6), (gpu, 0.0)):
        framework = StackCompute(DeviceCompute(profile), profile, stack)
        assert framework.calling(op) == pytest.approx(calls)
        assert framework.copied(op) == pytest.approx(calls + framework.copying(op))
    assert StackCompute(DeviceCompute(cpu), cpu, stack).copying(op) == pytest.approx(3 * 2**20 / (14e9 * 0.7))


@pytest.mark.parametrize(('copies', 'call'), [(Copies(1e-3, 0.0), 10e-6), (Copies(1e-3, 3e-3), 20e-6)])
def test_what_a_thread_does_for_messages_tells_memory_and_where_it_calls_its_calls(copies, call, tmp_path):
    """DDP copies alone tell nothing of calls: FSDP2, predicted by them, keeps the calls that the base has."""
    path = tmp_path / 'mine.yaml'
    found = Join(lines=(), missing=(), host=True, step=1.0, matched=0.0, messages=2 * sum(copies))
    write_measured(path, 'cpu-gloo', found, 'x', 'fp32', copies)
    device = load_profile(path).device
    assert device.memory.bandwidth.value == pytest.approx(7e9)
    assert device.kernel.memory.value == pytest.approx(call)


@pytest.mark.parametrize('plan', PLANS)
def test_recorded_messages_are_told_by_what_they_are(plan):
    """DDP sums buckets; FSDP2 gathers twice and reduces; by parts a layer sums twice forward and twice backward."""
    (talks,) = collectives(read_traces(FOLDER / f'{plan}.json.gz', host=True))
    names = [one.key[1] for one in talks]
    if plan == 'fsdp2':
        assert (names.count('all_gather'), names.count('reduce_scatter')) == (2 + 1 + 2, 2 + 1)
    else:
        assert set(names) == {'all_reduce'}
