"""Recordings of torch.profiler: busy, exposed and overlap as HTA tells them; joined with a schedule by op."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded_training import Gpt, record, stepper
from tables import load_table

from simpar import cli, load_case
from simpar.cost.collective import ClusterCollectives
from simpar.cost.compute import DeviceCompute
from simpar.profiles import cluster, load_profile, load_stack, read_table
from simpar.program import OpClass
from simpar.recording.join import MESSAGES, Join, Joined, collectives, compute_ops, join
from simpar.recording.readers import write_measured
from simpar.trace_files import load_trace
from simpar.traces import figures, read_traces
from simpar.traces.table import COMMUNICATION

FOLDER = Path(__file__).parent / 'recorded' / 'kineto'
ANSWERS = json.loads((FOLDER / 'hta.json').read_text(encoding='utf-8'))['answers']
SCHEDULE = load_table(__file__, 'SCHEDULE')
ALONE = SCHEDULE.replace('cluster: cpu-gloo', 'cluster: {profile: cpu-gloo, devices: 1}')


@pytest.mark.parametrize('name', ANSWERS)
def test_busy_exposed_and_overlap_equal_those_of_hta(name):
    (recording,), theirs = read_traces(FOLDER / f'{name}.json.gz', host=True), ANSWERS[name]
    kernels = recording.kernels
    # HTA counts what was launched before the first step, too, and no kernel without a launch.
    launched = np.isin(kernels.correlation, recording.host.correlation[recording.host.correlation >= 0])
    mine = figures(kernels.of((kernels.step != recording.cut) & launched))
    assert recording.rank == theirs['rank']
    for key, seconds in (('span_us', mine.span), ('idle_us', mine.idle), ('compute_us', mine.computing)):
        assert seconds * 1e6 == pytest.approx(theirs[key], abs=0.1), key
    assert (mine.span - mine.idle - mine.computing) * 1e6 == pytest.approx(theirs['non_compute_us'], abs=0.1)
    overlap = mine.overlapped / mine.communication if (kernels.kind == COMMUNICATION).any() else 0.0
    assert 100 * overlap == pytest.approx(theirs['overlap_percent'], abs=0.006)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A recording of a model that torch alone trains, and the schedule of the same model."""
    folder = tmp_path_factory.mktemp('trained')
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    record(folder / 'rank0.json', stepper(Gpt(64, 2, 32), 4, 32))
    torch.set_num_threads(threads)
    schedule = folder / 'schedule.yaml'
    schedule.write_text(SCHEDULE, encoding='utf-8')
    return folder / 'rank0.json', schedule


def test_every_product_of_a_training_is_found_in_the_program(trained):
    path, schedule = trained
    found = join(load_case(schedule, ['cluster.devices=1']).program, read_traces(path, host=True))
    exact = [line for line in found.lines if line.key[0] in {'matmul', 'attention'}]
    # A layer has four products, each with two gradients, and one attention; the head has a product more.
    assert sum(line.program for line in exact) == 2 * (4 * 3 + 2) + 3
    assert all(line.recorded == line.program for line in exact)
    assert found.matched > 0.3 * found.step


def test_a_profile_with_recorded_ops_prices_them_as_recorded(trained, tmp_path, json_of):
    path, schedule = trained
    schedule.write_text(ALONE, encoding='utf-8')
    output = tmp_path / 'new' / 'mine.yaml'
    told = json_of('import', str(path), '--for', str(schedule), '--output', str(output))
    again = json_of('import', str(path), '--for', str(schedule), *_on(output, schedule))
    for before, after in zip(told['ops'], again['ops'], strict=True):
        assert after['predicted'] == pytest.approx(before['seconds'], rel=1e-3), before['key']
    assert told['predicted_with_them'] == again['step']['predicted']


def test_a_recording_becomes_a_measured_trace_that_is_compared(trained, tmp_path, capsys, json_of):
    path, schedule = trained
    schedule.write_text(ALONE, encoding='utf-8')
    saved, predicted = tmp_path / 'measured.json', tmp_path / 'predicted.json'
    assert cli.main(['import', str(path), '--for', str(schedule), '--save', str(saved)]) == 0
    assert cli.main(['run', str(schedule), '--save', str(predicted)]) == 0
    trace = load_trace(saved)
    assert trace.origin == 'measured'
    # Steps follow one another, and every op that was found lies in its own.
    ends = trace.representatives[0].end_KS.max(axis=1)
    assert (trace.representatives[0].start_KS[1:].min(axis=1) >= ends[:-1] - 1e-3).all()
    (recording,) = read_traces(path, host=True)
    assert trace.step_times[1:] == pytest.approx([(end - begin) / 1e9 for begin, end in recording.marks[1:]], rel=0.25)
    capsys.readouterr()
    told = json_of('compare', str(predicted), str(saved))
    assert told['origin'] == 'measured'


def test_a_rank_that_the_schedule_has_not_is_told(trained, tmp_path, refused):
    _, schedule = trained
    step = ('ProfilerStep#1', 'user_annotation', 0, 100, {})
    op = ('aten::mm', 'cpu_op', 1, 8, {'Input Dims': [[128, 64], [64, 512]]})
    path = made(tmp_path, 'a.json', [step, op], rank=3, world_size=4)
    schedule.write_text(ALONE, encoding='utf-8')
    assert 'rank 3: is recorded, and the schedule has 1 ranks' in refused(
        'import', path, '--for', schedule, '--save', tmp_path / 'm.json'
    )


def _on(profile, schedule):
    """The schedule, now on the new profile."""
    text = SCHEDULE.replace('cluster: cpu-gloo', f'cluster: {{profile: {profile}, devices: 1}}')
    schedule.write_text(text, encoding='utf-8')
    return []


def made(tmp_path, name, events, **told):
    """A recording made by hand, of ``(name, category, start, duration, args)`` in microseconds."""
    path = tmp_path / name
    listed = [
        {'ph': 'X', 'name': each[0], 'cat': each[1], 'tid': 1, 'ts': 1e9 + each[2], 'dur': each[3], 'args': each[4]}
        for each in events
    ]
    path.write_text(json.dumps({'distributedInfo': told, 'traceEvents': listed}), encoding='utf-8')
    return path


REDUCE = {'stream': 9, 'Collective name': 'allreduce', 'In msg nelems': 500, 'dtype': 'Float', 'Group size': 2}


def test_a_collective_lasts_from_its_last_arrival(tmp_path):
    """Rank 1 comes 60 us late: the transfer took 20 us, though rank 0's kernel ran for 80."""
    for rank, start in ((0, 100), (1, 160)):
        events = [('ncclDevKernel_AllReduce', 'kernel', start, 180 - start, REDUCE)]
        # An event before, at another time of each rank, that clocks must not be counted from.
        made(tmp_path, f'r{rank}.json', [('aten::add', 'cpu_op', 10 * rank, 1, {}), *events], rank=rank, world_size=2)
    for (found,), waited in zip(collectives(read_traces(tmp_path, host=True)), (60e-6, 0.0), strict=True):
        assert found.key == ('collective', 'all_reduce', 2, 2000)
        assert found.seconds == pytest.approx(20e-6, rel=1e-6)
        assert found.start - found.arrive == pytest.approx(waited, abs=1e-9)


def test_a_sum_of_gloo_is_what_it_was_called_for_and_copies_belong_to_messages(tmp_path):
    """Gloo sums in full for a reduce-scatter; FSDP2's thread copies 30 us before it waits, and 20 behind."""
    floats = {'Input type': ['float']}
    product = {'Input Dims': [[8, 4], [4, 2]]}
    events = [
        ('aten::mm', 'cpu_op', 0, 10, product),
        ('FSDP::post_backward_reduce', 'user_annotation', 20, 100, {}),
        ('c10d::_reduce_scatter_base_', 'cpu_op', 50, 5, {}),
        ('gloo:all_reduce', 'cpu_op', 50, 50, {'Input Dims': [[1000]], **floats}),
        ('aten::mm', 'cpu_op', 120, 10, product),
        ('c10d::allreduce_', 'cpu_op', 140, 5, {}),
        ('gloo:all_reduce', 'cpu_op', 145, 20, {'Input Dims': [[250]], **floats}),
    ]
    traces = read_traces(made(tmp_path, 'a.json', events, rank=0, world_size=2), host=True)
    ((scatter, reduce),) = collectives(traces)
    assert (scatter.key, reduce.key) == (
        ('collective', 'reduce_scatter', 2, 4000),
        ('collective', 'all_reduce', 2, 1000),
    )
    first, copies, second = compute_ops(*traces)
    assert copies.key[0] == MESSAGES
    assert [op.seconds for op in (first, copies, second)] == pytest.approx([20e-6, 50e-6, 10e-6])


def test_a_thread_computes_beside_a_message_that_it_does_not_wait_for(tmp_path):
    """Behind a product a bias takes 30 us beside a message, which is waited for 20 us behind that."""
    product, floats = {'Input Dims': [[8, 4], [4, 2]]}, {'Input type': ['float']}
    events = [
        ('aten::mm', 'cpu_op', 0, 10, product),
        ('autograd::engine::evaluate_function: AddmmBackward0', 'cpu_op', 10, 60, {}),
        ('aten::sum', 'cpu_op', 15, 30, {}),
        ('gloo:all_reduce', 'cpu_op', 10, 55, {'Input Dims': [[1000]], **floats}),
        ('aten::mm', 'cpu_op', 70, 10, product),
    ]
    (trace,) = read_traces(made(tmp_path, 'a.json', events, rank=0, world_size=2), host=True)
    first, second = compute_ops(trace)
    # 10 alone, 30 of the bias, 5 when the message is over; of 25 us beside it nothing was computed.
    assert (first.seconds, second.seconds) == (pytest.approx(45e-6), pytest.approx(10e-6))


def test_an_op_counts_as_it_is_alone_where_it_was_and_its_speed_beside_others_is_told(tmp_path, put):
    """Products of 10 us alone take 25 us beside an all-reduce."""
    shapes, floats = {'Input Dims': [[8, 4], [4, 2]]}, {'Input type': ['float']}
    times = ((0, 10), (10, 10), (20, 25), (45, 25), (70, 10), (80, 10))
    events = [('aten::mm', 'cpu_op', begin, lasts, shapes) for begin, lasts in times]
    events.append(('gloo:all_reduce', 'cpu_op', 20, 50, {'Input Dims': [[1000]], **floats}))
    traces = read_traces(made(tmp_path, 'a.json', events, rank=0, world_size=2), host=True)
    schedule = put('one.yaml', ALONE)
    found = join(load_case(schedule).program, traces)
    assert found.speeds == {'matrix': pytest.approx(10 / 25)}


def test_an_op_of_a_device_lasts_as_long_as_its_kernels(tmp_path):
    """A product of two kernels, launched while the host was in it, which run when it is over."""
    shapes = {'Input Dims': [[8, 4], [4, 2]]}
    launch = [('cudaLaunchKernel', 'cuda_runtime', 2 + at, 1, {'correlation': at}) for at in (1, 2, 9)]
    kernels = [('gemm', 'kernel', 50 + 10 * at, 3 * at, {'correlation': at, 'stream': 7}) for at in (1, 2, 9)]
    path = made(tmp_path, 'a.json', [('aten::mm', 'cpu_op', 0, 8, shapes), *launch, *kernels])
    (found,) = compute_ops(*read_traces(path, host=True))
    assert found.key == ('matmul', 8, 2, 4)
    assert found.seconds == pytest.approx(9e-6)


@pytest.mark.parametrize(('content', 'says'), load_table(__file__, 'test_what_is_no_recording_is_told_so'))
def test_what_is_no_recording_is_told_so(put, refused, content, says):
    path = put('trace.json', content)
    told = refused('import', path)
    assert str(path) in told
    assert says in told


def test_two_files_of_one_rank_are_refused(tmp_path, refused):
    for name in ('a.json', 'b.json'):
        made(tmp_path, name, [('aten::add', 'cpu_op', 0, 1, {})], rank=0)
    assert 'are of one rank' in refused('import', tmp_path)


@pytest.mark.parametrize(
    ('file', 'expected'),
    [
        ('cuda_attention', {('attention', 1, 64, 559, 256, 'F'): 113.4, ('attention', 1, 64, 559, 256, 'I'): 300.0}),
        ('optimizer_after_an_inner_op', {('update',): 205.0}),
    ],
)
def test_what_a_known_op_calls_is_part_of_it(file, expected):
    """A flash attention calls another one with other shapes; an optimizer adds, then launches its own kernel."""
    (recording,) = read_traces(FOLDER.parent / 'kineto_cases' / f'{file}.json', host=True)
    found = {op.key: op.seconds * 1e6 for op in compute_ops(recording)}
    assert found == {key: pytest.approx(seconds, abs=1e-3) for key, seconds in expected.items()}


def test_a_profile_has_the_link_of_what_was_recorded_and_scales_below_it(tmp_path):
    """All-reduces of two ranks, α = 100 us a step and 2 GB/s: other kinds and small messages are told from them."""
    sizes = (2**16, 2**18, 2**22)
    times = {size: 2 * 100e-6 + size / 2e9 for size in sizes}
    lines = [
        Joined(key=('collective', 'all_reduce', 2, size), seconds=times[size], times=9, program=1, recorded=1.0)
        for size in sizes
    ]
    path = tmp_path / 'mine.yaml'
    write_measured(
        path, 'cpu-gloo', Join(lines=tuple(lines), missing=(), host=True, step=1.0, matched=0.0), 'x', 'fp32'
    )
    profile = load_profile(path)
    assert profile.links[0].latency.value == pytest.approx(100e-6, rel=1e-3)
    assert profile.links[0].bandwidth.value == pytest.approx(2e9, rel=1e-3)
    assert profile.links[0].bandwidth.grade == 'estimate'
    model = ClusterCollectives(cluster(profile, devices=2))
    ops = {
        (operator, size): OpClass('x', 'collective', operator, 'F', bytes=size, partition='all', reduce='sum')
        for operator, size in (('all_reduce', 2**22), ('all_reduce', 2**15), ('all_gather', 2**22))
    }
    costs = {key: model.cost(op, (0, 1)) for key, op in ops.items()}
    assert costs['all_reduce', 2**22].grade == 'measured'
    small, other = ('all_reduce', 2**15), ('all_gather', 2**22)
    for key, expected in ((small, 2 * 100e-6 + 2**15 / 2e9), (other, 1e-4 + 2**21 / 2e9)):
        assert costs[key].alpha + costs[key].transfer == pytest.approx(expected, rel=0.02)
        assert costs[key].grade == 'estimate'


def joined_of(lines, **told):
    return Join(lines=tuple(lines), missing=(), host=True, step=1.0, matched=0.0, **told)


def test_what_one_size_tells_scales_the_link_and_holds_for_the_sum_of_the_other_name(tmp_path):
    """cpu-gloo has 150 us a step and 2.3 GB/s: 1 MiB takes 2 · 150 us + 456 us; three times that was recorded."""
    usual = 2 * 150e-6 + 2**20 / 2.3e9
    line = Joined(
        key=('collective', 'reduce_scatter', 2, 2**20),
        seconds=1.5 * usual,
        times=9,
        program=1,
        recorded=1.0,
        beside=0.5,
    )
    # Half of it ran beside computation at half its speed.
    path = tmp_path / 'mine.yaml'
    write_measured(path, 'cpu-gloo', joined_of([line], speeds={'collective': 0.5}), 'x', 'fp32')
    profile = load_profile(path)
    rows = read_table(profile.tables.collective, 'collective')
    assert {row[0]: row[-1] for row in rows} == {
        name: pytest.approx(1.125 * usual, rel=1e-4) for name in ('all_reduce', 'reduce_scatter')
    }
    assert profile.slow_down.collective.value == 0.5
    ring = 150e-6 + 2**19 / 2.3e9
    assert profile.links[0].latency.value == pytest.approx(150e-6 * 1.125 * usual / ring, rel=1e-3)


def test_between_two_recorded_sizes_a_message_takes_its_part_of_the_line(tmp_path):
    """1 ms for 16 KiB and 11 ms for 2 MiB: 6 ms half way, where a power of the size would say 8."""
    lines = [
        Joined(key=('collective', 'all_reduce', 2, size), seconds=seconds, times=9, program=1, recorded=1.0)
        for size, seconds in ((2**14, 1e-3), (2**21, 11e-3))
    ]
    path = tmp_path / 'mine.yaml'
    write_measured(path, 'cpu-gloo', joined_of(lines), 'x', 'fp32')
    profile = load_profile(path)
    op = OpClass('x', 'collective', 'all_reduce', 'F', bytes=2**20, partition='all', reduce='sum')
    cost = ClusterCollectives(cluster(profile, devices=2)).cost(op, (0, 1))
    assert cost.alpha + cost.transfer == pytest.approx(6e-3, rel=0.03)


def test_of_one_recorded_size_more_and_less_are_told_by_the_formula(tmp_path):
    """cpu-gloo moves 9.8 GB/s, and a call takes 10 us; the recorded op took twice what that says, and so do others."""
    usual = 10e-6 + 2**20 / 9.8e9
    line = Joined(key=('operator', 'gelu', 'F', 2**20), seconds=2 * usual, times=9, program=1, recorded=1.0)
    path = tmp_path / 'mine.yaml'
    write_measured(path, 'cpu-gloo', joined_of([line]), 'x', 'fp32')
    model = DeviceCompute(load_profile(path))
    for size in (2**18, 2**20, 2**22):
        op = OpClass('x', 'compute', 'gelu', 'F', bytes=size, flops=1.0, dtype='fp32')
        cost = model.seconds(op)
        assert cost.seconds == pytest.approx(2 * (10e-6 + size / 9.8e9), rel=0.02)
        assert cost.grade == ('measured' if size == 2**20 else 'estimate')


def test_the_host_takes_what_lies_between_its_launches(tmp_path, capsys):
    """A launch each 12 us forward, and each 20 us on autograd's thread; written as a stack that a schedule takes."""
    shapes, events = {'Input Dims': [[128, 64], [64, 256]]}, [('ProfilerStep#1', 'user_annotation', 0, 900, {}, 1)]
    for at in range(20):
        thread, begin = (1, 12 * at) if at < 10 else (2, 200 + 20 * (at - 10))
        events += [
            ('aten::mm', 'cpu_op', begin, 8, shapes, thread),
            ('cudaLaunchKernel', 'cuda_runtime', begin + 2, 1, {'correlation': at}, thread),
            ('gemm', 'kernel', 500 + 9 * at, 9, {'correlation': at, 'stream': 7}, 7),
        ]
    listed = [dict(zip(('name', 'cat', 'ts', 'dur', 'args', 'tid'), each, strict=True), ph='X') for each in events]
    (tmp_path / 'r.json').write_text(json.dumps({'distributedInfo': {'rank': 0}, 'traceEvents': listed}))
    schedule, output = tmp_path / 'one.yaml', tmp_path / 'mine.yaml'
    schedule.write_text(ALONE.replace('devices: 1', 'devices: 1, stack: eager'), encoding='utf-8')
    assert cli.main(['import', str(tmp_path / 'r.json'), '--for', str(schedule), '--output', str(output)]) == 0
    host = load_stack(tmp_path / 'mine.stack.yaml').host
    assert (host.forward.value, host.backward.value) == (pytest.approx(12e-6), pytest.approx(20e-6))


def test_settings_that_a_recording_has_not_are_refused(tmp_path, refused):
    path = tmp_path / 'trace.json.gz'
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}'))
    told = refused('import', path, '--output', tmp_path / 'p.yaml', '--set', 'a=1')
    assert '--output' in told
    assert '--set' in told
