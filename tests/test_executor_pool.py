"""Programs on real ranks over gloo: messages between stages, few ranks of many, the same bits each time."""

import numpy as np
import pytest
from plain_costs import plain_costs

from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.program import OpClass, Partition, ProgramBuilder, Tensor
from simpar.workload import Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.inprocess import InProcess
from executor.ranks.pool import Pool
from simpar.hardware.net import Net

pytestmark = pytest.mark.torch


@pytest.fixture(scope='module')
def pool():
    with Pool(3, timeout=10) as pool:
        yield pool


def network(plan, world):
    model = Network(layers=(Dense(inputs=8, outputs=16), Relu(), Dense(inputs=16, outputs=4)), init_std=0.3)
    return lower(Workload(model=model, batch=12, loss='mse'), plan, world)


def two_stages():
    """Rank 0 computes y and sends it, 64 KB; rank 1 receives it and has the loss."""
    build = ProgramBuilder(2, [Partition('stage', np.array([[0, 1]], dtype=np.int32))])
    for name, kind in (('x', 'input'), ('target', 'input'), ('y', 'activation'), ('z', 'activation')):
        initial = 'normal:1' if kind == 'input' else ''
        build.add_tensor(Tensor(name, kind, (128, 128), 'fp32', initial=initial))
    build.add_tensor(Tensor('loss', 'activation', (1,), 'fp32'))
    build.add_op_class(OpClass('F', 'compute', 'relu', 'F', reads=('x',), writes=('y',)))
    message = {'bytes': 128 * 128 * 4.0, 'partition': 'stage'}
    build.add_op_class(OpClass('give', 'send', 'send', 'F', peer=1, reads=('y',), **message))
    build.add_op_class(OpClass('take', 'recv', 'recv', 'F', peer=-1, writes=('z',), **message))
    build.add_op_class(
        OpClass('L', 'compute', 'mse', 'F', reads=('z', 'target'), writes=('loss',), attributes={'scale': 1.0})
    )
    build.add_role('first', [0], [('F', 'compute', 0, 0), ('give', 'stage', 0, 0)], ('compute', 'stage'))
    build.add_role('last', [1], [('take', 'stage', 0, 0), ('L', 'compute', 0, 0)], ('compute', 'stage'))
    return build.build()


def test_what_one_stage_sends_another_receives(pool):
    program = two_stages()
    execution = pool.run(program, steps=3, seed=5)
    assert execution.losses == pytest.approx(InProcess(program, 5, None).run(3).losses, rel=1e-6)
    assert execution.trace.origin == 'measured'


def test_a_send_and_its_receive_start_together(pool):
    """Rank 1 is ready at once; the message starts when rank 0 has computed for 0.1 s."""
    program = two_stages()
    seconds = {'F': 0.1, 'L': 0.01}
    costs = plain_costs(program, lambda op: seconds[op.name], lambda op: (0.0, 0.01))
    trace = pool.run(program, costs, compute='emulated', steps=1).trace
    give, take = list(trace.spans(0))[1], next(trace.spans(1))
    assert give.start == take.start == give.arrive == pytest.approx(0.1)
    assert take.arrive < 0.05 < 0.1 <= take.end


@pytest.mark.parametrize('plan', [Plan(data=2, copies=2), Plan(data=1, tensor=2, copies=3, reduce='late')], ids=str)
def test_a_pool_runs_programs_for_fewer_ranks_than_it_has(pool, plan):
    program = network(plan, 2)
    execution = pool.run(program, steps=4, keep=True)
    expected = InProcess(program, 0, None).run(4)
    assert execution.losses == pytest.approx(expected.losses, rel=1e-6)
    for found, wanted in ((execution.parameters, expected.parameters), (execution.gradients, expected.gradients)):
        assert found.keys() == wanted.keys()
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_a_run_gives_the_same_bits_each_time(pool):
    program = network(Plan(data=3, copies=2), 3)
    one, two = (pool.run(program, steps=2, keep=True) for _ in range(2))
    assert one.losses == two.losses
    assert all(torch.equal(one.parameters[name], two.parameters[name]) for name in one.parameters)


def test_another_precision_takes_the_place_of_the_programs(pool):
    program = network(Plan(data=1, tensor=2), 2)
    execution = pool.run(program, steps=1, dtype='fp64', keep=True)
    assert {tensor.dtype for tensor in execution.parameters.values()} == {torch.float64}
    assert execution.losses == pytest.approx(InProcess(program).run().losses, rel=1e-12)


def test_pacing_pinning_and_scheduling_change_no_result(pool):
    program = network(Plan(data=2, copies=2), 2)
    plain = pool.run(program, steps=2)
    with Pool(2, net=Net('paced', 10e6, 1e-4), timeout=10, pinned=True) as other:
        assert other.run(program, steps=2, favour=True).losses == plain.losses


def test_a_paced_transfer_takes_its_bytes_over_the_rate():
    """64 KB at 1 MB/s and 10 ms of latency, from when the sender is ready: the receiver may come later."""
    program = two_stages()
    with Pool(2, net=Net('paced', 1e6, 0.01), timeout=10) as pool:
        trace = pool.run(program, steps=3).trace
    takes = [next(trace.spans(1, step)) for step in range(3)]
    gives = [list(trace.spans(0, step))[1] for step in range(3)]
    seconds = [take.end - give.arrive for take, give in zip(takes, gives, strict=True)]
    assert min(seconds) >= 0.0655 + 0.01
    assert min(seconds) < 0.15


def test_emulated_compute_needs_costs(pool):
    with pytest.raises(ValueError, match='needs costs'):
        pool.run(two_stages(), compute='emulated')
