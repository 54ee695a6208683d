"""The bench: items are the executor's own ops, and a whole bench on two ranks makes a profile."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from executor.bench import rounds
from executor.bench.__main__ import main
from executor.bench.bench import bench, bench_messages, schedule_programs
from executor.bench.items import (
    QUICK,
    TINY,
    grid_items,
    message_items,
    program_items,
    program_messages,
    program_of,
    twice,
)
from executor.bench.kinds import KINDS
from executor.bench.ranks import Timed
from executor.ranks.collectives import SMALL
from executor.state import Outcome
from executor.validate import validate
from simpar import Plan, cluster, load_profile, price
from simpar.calibrate import calibrate, load_record, write_profile
from simpar.hardware.net import Net, parse_net
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.program import OpClass, Partition, ProgramBuilder
from simpar.workload import Adam, Transformer, Workload

NETWORK = Network(layers=(Dense(inputs=48, outputs=32), Relu(), Dense(inputs=32, outputs=16), Relu()))
MODEL = Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=16)


def job(copies=2, model=MODEL, **plan):
    workload = Workload(model=model, batch=8, optimizer=Adam(), loss='mse' if model is NETWORK else 'cross-entropy')
    return lower(workload, Plan(copies=copies, **{'tensor': 2, **plan}), 2)


# items


def test_items_make_programs_that_may_run():
    computing, talking = grid_items(TINY, 2), message_items(TINY, Net(), 2)
    for items in (computing, talking, computing + talking):
        validate(program_of(items, 2))


@pytest.mark.parametrize('model', [MODEL, NETWORK], ids=['transformer', 'network'])
@pytest.mark.parametrize('tensor', [1, 2])
def test_every_operator_of_a_program_is_measured_in_every_phase(model, tensor):
    measured = {(item.ops[-1].operator, item.ops[-1].phase) for item in grid_items(TINY, 2)}
    computes = [op for op in job(model=model, tensor=tensor).op_classes if op.kind == 'compute']
    assert {(op.operator, op.phase) for op in computes} <= measured


def test_ops_of_a_program_are_alone_what_they_are_in_it():
    program = job()
    items = program_items(program, 2, 'job')
    costs = {op.cost_key for op in program.op_classes if op.kind == 'compute'}
    assert {item.ops[-1].cost_key for item in items} == costs
    shapes = {op.name: program.local_shape(program.tensor[op.reads[0]]) for op in program.op_classes if op.reads}
    for item in items:
        first = next(tensor for tensor in item.tensors if tensor.name == item.ops[-1].reads[0])
        assert first.shape == shapes[item.name.removeprefix('job.')]


def test_collectives_of_a_program_keep_their_bytes_and_tensors():
    program = job(tensor=1)
    messages = program_messages(program, 2, 'job')
    assert {item.key['bytes'] for item in messages} == {
        int(op.bytes) for op in program.op_classes if op.kind == 'collective'
    }
    assert max(len(item.ops[-1].reads) for item in messages) > 1


def test_a_program_for_more_ranks_is_measured_as_far_as_it_can_be():
    """Of its ops those that are told a position stay; collectives of eight ranks do not."""
    program = lower(Workload(model=MODEL, batch=8, optimizer=Adam()), Plan(tensor=4), 8)
    validate(program_of(items := program_items(program, 2, 'job'), 2))
    assert {'embedding', 'ce_sum', 'matmul'} <= {item.ops[-1].operator for item in items}
    assert {item.key['ranks'] for item in program_messages(program, 2, 'job')} == {2}


def test_adding_to_a_gradient_is_measured_behind_the_op_that_creates_it():
    item = next(item for item in program_items(job(), 2, 'job') if item.ops[-1].accumulates)
    both = twice(item)
    first, again = both.ops
    assert not first.frees
    assert again.frees == again.accumulates == first.accumulates
    validate(program_of([both, item, both], 2))


def test_messages_stay_short_on_a_slow_network():
    fast, slow = (message_items(QUICK, net, 2) for net in (Net(), parse_net('paced:10Mbit/s')))
    assert max(item.key['bytes'] for item in slow) <= 10e6 / 8 * QUICK.message_seconds
    assert {item.key['operator'] for item in slow} == {item.key['operator'] for item in fast}


# what runs at once


class Traced:
    """As much of a trace as overlap asks for: ranks, steps and spans."""

    def __init__(self, spans):
        self.program = type('', (), {'world': 1})
        self.steps, self._spans = 3, spans

    def spans(self, rank, step):
        return [span for span in self._spans if span.step == step]


class Span:
    def __init__(self, kind, start, end, slot=0, step=2):
        self.op = type('', (), {'name': kind, 'kind': kind})
        self.start, self.end, self.slot, self.step = start, end, slot, step


def kernel(start, end, slot=0):
    return Span('compute', start, end, slot)


def message(start, end, step=2):
    return Span('collective', start, end, step=step)


def timed(spans, own, process):
    """A run of one rank and three steps, with the CPU seconds of the last."""
    thread_RKS, process_RKS = np.zeros((2, 1, 3, len(own)))
    thread_RKS[0, 2], process_RKS[0, 2] = own, process
    return Timed(Traced(spans), thread_RKS, process_RKS)


def test_kernels_stretch_by_what_messages_take_of_their_core():
    """Two kernels of two seconds; beside messages they need 2.2, and messages take half a second meanwhile. A third
    has no messages beside it."""
    spans = [message(0, 5.4, step=0), kernel(0, 2.7), kernel(2.7, 5.4, 1), kernel(5.4, 9, 2)]
    run = timed(spans, own=[2.2, 2.2, 3], process=[2.7, 2.7, 3])
    for shaped in (False, True):
        assert list(rounds.kernel_stretches(run, {'compute': 2.0}, shaped=shaped)) == [pytest.approx(2.7 / 2)]


def test_others_on_the_machine_do_not_stretch_kernels():
    """All takes twice as long by the clock. Messages of a shaped network kept their pace: they had twice the CPU time
    beside a kernel; others were slowed as the kernels were."""
    spans = [message(0, 10.8, step=0), kernel(0, 5.4), kernel(5.4, 10.8, 1)]
    kept = timed(spans, own=[2.2, 2.2], process=[3.2, 3.2])
    assert list(rounds.kernel_stretches(kept, {'compute': 2.0}, shaped=True)) == [pytest.approx(2.7 / 2)]
    slowed = timed(spans, own=[2.2, 2.2], process=[2.7, 2.7])
    assert list(rounds.kernel_stretches(slowed, {'compute': 2.0}, shaped=False)) == [pytest.approx(2.7 / 2)]


def test_messages_stretch_beside_kernels():
    """Two messages of two seconds. Kernels run from 0 to 7, but for the second from 3 to 4: of the six seconds from 0
    to 6 one is free of them, so three seconds of work took five. What ends behind them does not count."""
    kernels = [kernel(0, 3), kernel(4, 7)]
    messages = [message(0, 3.5), message(3.5, 6), message(6, 9)]
    assert list(rounds.message_stretches(Traced(kernels + messages), {'collective': 2.0})) == [5 / 3]


# the whole bench


@pytest.fixture(scope='module')
def record():
    programs = [job(copies=1, model=NETWORK), job(copies=2, model=NETWORK)]
    return json.loads(json.dumps(bench(2, Net(), TINY, rounds.Reporter(), programs=programs)))


def test_every_line_has_all_repeats_of_both_ranks(record):
    repeats = 2 * TINY.orders * TINY.trials
    rows = [row for table in record['tables'].values() for row in table]
    assert len(rows) > 100
    # Sends and exchanges are repeated until their spread is narrow.
    longer = [row for row in rows if row.get('algorithm') in ('pairwise', 'direct')]
    assert {row['operator'] for row in longer} == {'all_to_all', 'send_recv', 'send'}
    steps = [row for row in rows if 'quiet' in row and 'low' in row['wall']]
    assert {row['cpu']['n'] for row in steps} == {2 * TINY.trials * rounds.STEPS}
    for row in [row for row in rows if row not in steps]:
        assert row['wall']['n'] == repeats or row in longer
        assert 0 < row['wall']['p10'] <= row['wall']['median']
        assert row['cpu']['n'] <= repeats or row in longer
    kernels = [row for row in rows if 'quiet' in row]
    assert all(0 <= row['quiet'] <= 1 for row in kernels)
    # CPU time is part of the time by the clock, but for the reading of clocks; in steps other threads' is in it too.
    assert all(row['cpu']['p10'] <= row['wall']['median'] + 20e-6 for row in kernels if row not in steps)


def test_messages_are_measured_on_both_sides_of_every_change_of_algorithm(record):
    sizes = {
        row['bytes']: row['algorithm'] for row in record['tables']['collective'] if row['operator'] == 'all_reduce'
    }
    assert (sizes[SMALL], sizes[min(size for size in sizes if size > SMALL)]) == ('exchange', 'ring')
    assert min(size for size in sizes if size > SMALL) == SMALL + 8


def test_the_ops_of_schedules_are_measured_in_their_steps(record):
    """Whole batch and half of it, in the tables in place of what the same op takes alone; as often as steps have it."""
    rows = [(row['m'], row['n'], row['k'], row['phase'], row) for row in record['tables']['matmul']]
    for copies in (1, 2):
        program = job(copies=copies, model=NETWORK)
        for index, op in enumerate(program.op_classes):
            if op.operator == 'matmul':
                (row,) = [row for *key, row in rows if key == [*(op.dims[name] for name in 'mnk'), op.phase]]
                assert 'low' in row['wall']
                assert row['weight'] == 2 * program.roles[0].op_class.tolist().count(index)
    assert len([row for *_, row in rows if 'low' not in row['wall']]) == len(TINY.products) ** 3 * 3


class Ticking:
    """A pool whose every op ends a second after the op before it, on every rank."""

    def ran(self, program, steps):
        slots = len(program.roles[0])
        ticks = np.arange(1.0, steps * slots + 1).reshape(steps, slots)
        return [Outcome(ticks, ticks, cpu=np.stack([ticks] * 4))] * program.world


def test_ops_take_all_of_a_step_between_them():
    """What passes between ops, and what a view takes, counts with the op behind."""
    program = job(copies=2)
    steps = rounds.InOrder(Ticking(), [program])
    steps.round()
    rows = [row for table in steps.rows().values() for row in table]
    assert sum(row['weight'] * row['wall']['low'] for row in rows) == program.world * len(program.roles[0])
    assert max(row['wall']['low'] for row in rows) > 1
    role, seconds = program.roles[0], steps.seconds()[program.hash]
    named = [program.op(role, slot).name for slot in range(len(role))]
    assert sum(seconds.get(name, 0.0) for name in named) == len(role)


def test_an_op_has_what_passes_from_its_needs_to_the_message_that_waits_for_it():
    """Of two steps the second: an op, a message for which all wait, an op beside which the next message begins."""
    builder = ProgramBuilder(2, [Partition('all', np.array([[0, 1]], dtype=np.int32))])
    for name in ('first', 'second', 'third'):
        builder.add_op_class(OpClass(name=name, kind='compute', operator='relu', phase='F', bytes=4.0))
    for name in ('message', 'late'):
        what = {'kind': 'collective', 'operator': 'all_reduce', 'partition': 'all'}
        builder.add_op_class(OpClass(name=name, phase='F', bytes=4.0, **what))
    slots = [('first', 'compute', 0, 0), ('message', 'sends', 0, 0, (0,)), ('second', 'compute', 0, 0, (1,))]
    slots += [('late', 'sends', 0, 0, (2,)), ('third', 'compute', 0, 0)]
    builder.add_role('all', range(2), slots, ('compute', 'sends'))
    role = builder.build().roles[0]
    # The first message starts 0.5 s behind its op, the second op 0.25 s behind the message.
    arrive = np.array([[0.0, 1.5, 3.25, 4.5, 4.75], [10.0, 11.5, 13.25, 14.5, 14.75]])
    end = np.array([[1.0, 3.0, 4.0, 6.0, 9.0], [11.0, 13.0, 14.0, 16.0, 19.0]])
    seconds = rounds.own_seconds(role, [0, 2, 4], Outcome(arrive, end, cpu=end))[1]
    # From 9 to 11 and on to 11.5; from 13 to 14; from 14, in spite of the message that starts meanwhile, to 19.
    assert seconds.tolist() == [2.5, 1.0, 5.0]


def test_an_op_has_no_part_of_the_message_before_on_the_stream_of_its_own():
    """Two sends of a stage: the second is there at 2, and starts when the first is through, at 6."""
    builder = ProgramBuilder(2, [Partition('all', np.array([[0, 1]], dtype=np.int32))])
    builder.add_op_class(OpClass(name='op', kind='compute', operator='relu', phase='F', bytes=4.0))
    message = {'kind': 'collective', 'operator': 'all_reduce', 'partition': 'all'}
    builder.add_op_class(OpClass(name='message', phase='F', bytes=4.0, **message))
    slots = [('op', 'compute', 0, 0), ('message', 'sends', 0, 0, (0,))]
    slots += [('op', 'compute', 0, 0), ('message', 'sends', 0, 0, (2,))]
    builder.add_role('all', range(2), slots, ('compute', 'sends'))
    arrive = np.array([[0.0, 1.0, 1.0, 6.0], [20.0, 21.0, 21.0, 26.0]])
    end = np.array([[1.0, 6.0, 2.0, 11.0], [21.0, 26.0, 22.0, 31.0]])
    seconds = rounds.own_seconds(builder.build().roles[0], [0, 2], Outcome(arrive, end, cpu=end))[1]
    assert seconds[1] == 1.0


def test_kernels_run_beside_the_messages_that_a_program_sends():
    sums = rounds.messages_beside(TINY, 1e6, [job(copies=2)])
    assert set(sums) == {'all_reduce'}
    assert len(sums['all_reduce']) <= rounds.USUAL
    stages = rounds.messages_beside(TINY, 1e6, [job(model=NETWORK, tensor=1, pipeline=2, micro_batches=2, copies=1)])
    assert set(stages) == {'send_recv'}
    assert set(rounds.messages_beside(TINY, 1e6, [])) == set(TINY.beside)


def test_a_bench_makes_a_profile_that_prices_programs(record, tmp_path, put):
    file = put('bench.json', json.dumps(record))
    write_profile(tmp_path / 'mine.yaml', calibrate(load_record(file)))
    profile = load_profile(tmp_path / 'mine.yaml')
    program = job()
    costs = price(program, cluster(profile))
    assert all(costs.compute[index] > 0 for index, op in enumerate(program.op_classes) if op.kind == 'compute')
    assert profile.devices == 2
    assert str(os.cpu_count()) in profile.device.vector['fp32'].source


def test_a_bench_says_nothing_of_where_it_ran(record):
    text = json.dumps(record)
    for name in (os.uname().nodename, os.getcwd(), os.path.expanduser('~')):
        assert name not in text


def test_the_command_line_writes_the_record_of_a_schedule(tmp_path, put):
    schedule = put(
        'schedule.yaml',
        'simpar: 1\ncluster: cpu-gloo\nworkload:\n  network: [dense: {in: 8, out: 4}]\n  batch: 8\n'
        'plan: {tensor: 2, copies: 4}\n',
    )
    assert {program.copies for program in schedule_programs(schedule)} == {1, 2, 4}
    out = tmp_path / 'bench.json'
    flags = ['--sizes', 'least', '--net', 'paced:1Gbit/s,50us', '--output', str(out), '--for', str(schedule)]
    run = subprocess.run(
        [sys.executable, '-m', 'executor.bench', *flags], capture_output=True, text=True, check=False, timeout=120
    )
    assert (run.returncode, run.stdout) == (0, ''), run.stderr
    assert [line.partition(': ')[0] for line in run.stderr.splitlines()] == ['bench'] * 5
    found = load_record(out)
    assert found.net == 'paced:1Gbit/s,50us'
    assert (8 // 4, 4 // 2, 8, 'F') in {(row.m, row.n, row.k, row.phase) for row in found.tables.matmul}


@pytest.mark.parametrize(
    ('flags', 'code', 'words'),
    [
        (['--ranks', '1', '--output', 'x.json'], 2, '--ranks'),
        (['--for', 'none.yaml', '--output', 'x.json'], 2, 'none.yaml'),
    ],
)
def test_wrong_use_is_one_line(flags, code, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(flags) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert words in lines[0]


# messages of emulated compute


@pytest.mark.parametrize('world', [2, 3])
def test_every_message_of_emulated_compute_is_measured(world):
    record = bench_messages(world, parse_net('paced:1Gbit/s,100us'), TINY, rounds.Reporter())
    rows = record['tables']['collective']
    assert {row['operator'] for row in rows} == set(KINDS)
    latency, rate = 100e-6, 125e6
    for row in rows:
        if row['operator'] == 'send':
            # By the clock of the link: no wake-up of a thread is in it.
            assert row['wall']['p10'] == pytest.approx(latency + row['bytes'] / rate, rel=0.02)
    assert [row['streams'] for row in record['streams']] == [2, 3]
