"""Kineto files: what readers rely on, the same bytes every time, and the overlap that HTA computes from them."""

import importlib.util
import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_traces import B, F, plan_of, trace_of
from worked import shared_link_costs, shared_link_program, worked_costs, worked_program

from simpar import cli, load_case, simulate
from simpar.commands import measure
from simpar.cost.costs import Communication
from simpar.errors import ScheduleError
from simpar.files import write_atomically
from simpar.kineto import Style, chosen_ranks, events, in_the_merged_file, link_counters, write_kineto
from simpar.metrics import metrics
from simpar.trace_files import save_trace, to_saved, to_trace

HTA = Path(__file__).parent / 'recorded' / 'hta'
RECORDED = json.loads((HTA / 'recorded.json').read_text(encoding='utf-8'))
PROGRAM = worked_program()
COSTS = worked_costs(PROGRAM)


EXAMPLE = Path(__file__).parent.parent / 'examples' / 'sharding_propagation.yaml'


def redo():
    """The script that makes the traces that HTA was asked about."""
    spec = importlib.util.spec_from_file_location('redo', HTA / 'redo.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def worked(**costs):
    return simulate(PROGRAM, worked_costs(PROGRAM, **costs), steps=2)


@pytest.mark.parametrize('times', ['overlap in percent', 'overlap in percent, times rounded to microseconds'])
@pytest.mark.parametrize('case', redo().CASES)
def test_overlap_equals_what_hta_computes(case, times):
    """HTA 0.5.0's get_comm_comp_overlap on our files, recorded by tests/recorded/hta/redo.py; it covers all steps."""
    trace = redo().trace_of(case)
    whole = metrics(trace).whole
    for rank, percent in RECORDED[times][case].items():
        lane = trace.representatives[trace.representative_of_rank[int(rank)]]
        assert 100 * whole.rank(lane.rank).overlap == pytest.approx(percent, rel=1e-3)


def test_files_of_a_rank_are_found_by_hta_and_the_merged_one_is_not(tmp_path):
    paths = write_kineto(tmp_path, worked(), costs=COSTS)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        'rank0.json', 'rank1.json', 'merged/all_ranks.json',
    ]  # fmt: skip
    assert sorted(name for name in os.listdir(tmp_path) if name.endswith('.json')) == ['rank0.json', 'rank1.json']
    for rank in (0, 1):
        lines = paths[rank].read_text(encoding='utf-8').splitlines()
        found = [match.group(1) for line in lines if (match := re.search(r'"rank":\s+(\d+)', line))]
        assert found == [str(rank)]


def test_a_file_is_what_torch_writes():
    """The keys of a trace of torch.profiler 2.13 that readers use."""
    trace = worked()
    kernels = [event for event in events(trace, [1], Style()) if event.get('cat') == 'kernel']
    assert len(kernels) == 2 * 19
    first, reduce = kernels[:2]
    assert (first['name'], first['ts'], first['dur']) == ('FA.c0', 0.125e6, 4e6)
    assert reduce['name'] == 'ncclDevKernel_AllReduce RA.c0'
    assert reduce['args'] | {'op': 'RA', 'phase': 'F', 'micro-batch': 0, 'copy': 0, 'waited us': 0.0} == {
        'device': 1, 'stream': 8, 'correlation': 2, 'op': 'RA', 'phase': 'F', 'micro-batch': 0, 'copy': 0,
        'Collective name': 'all_reduce', 'In msg nelems': 16, 'Out msg nelems': 16, 'dtype': 'Float', 'Group size': 2,
        'Process Group Name': 'tp', 'Process Group Ranks': '[0, 1]', 'waited us': 0.0,
    }  # fmt: skip
    assert {event['args']['stream'] for event in kernels} == {7, 8}


@pytest.mark.parametrize(('library', 'pattern'), [('nccl', '^nccl.*Kernel'), ('hccl', '^hccl'), ('gloo', '^gloo')])
def test_communication_kernels_are_named_by_the_library(library, pattern):
    kernels = [event for event in events(worked(), [0], Style(library=library)) if event.get('cat') == 'kernel']
    for kernel in kernels:
        assert bool(re.match(pattern, kernel['name'])) == (kernel['args']['stream'] == 8)


def test_a_wait_for_peers_belongs_to_the_kernel():
    """On the page with rank 1 at half speed: RA.0 arrives on rank 0 at 4.125, starts at 8.125, ends at 12.125."""
    kernels = [event for event in events(worked(slow={1: 0.5}), [0], Style()) if event.get('cat') == 'kernel']
    reduce = kernels[1]
    assert (reduce['ts'], reduce['dur'], reduce['args']['waited us']) == (4.125e6, 8e6, 4e6)


@pytest.mark.parametrize('case', ['random-3-slow-rank', 'pipeline'])
def test_slices_of_a_thread_never_overlap_partly(tmp_path, case):
    """Perfetto refuses such tracks."""
    trace = redo().trace_of(case)
    for path in write_kineto(tmp_path, trace):
        threads = {}
        for event in json.loads(path.read_text(encoding='utf-8'))['traceEvents']:
            if event['ph'] == 'X':
                ends = round((event['ts'] + event['dur']) * 1000)
                threads.setdefault((event['pid'], event['tid']), []).append((round(event['ts'] * 1000), ends))
        for spans in threads.values():
            spans.sort()
            assert all(following[0] >= span[1] for span, following in itertools.pairwise(spans))


def test_steps_are_annotated_and_an_empty_one_is_last_for_hta():
    steps = [event for event in events(worked(), [0], Style(for_hta=True)) if event.get('cat') == 'user_annotation']
    assert [(step['name'], step['dur']) for step in steps] == [
        ('ProfilerStep#1', 56.125e6), ('ProfilerStep#2', 56e6), ('ProfilerStep#3', 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize('costs', [COSTS, None])
def test_every_kernel_has_one_launch_before_it_for_hta(costs):
    found = list(events(worked(), [0], Style(for_hta=True), costs))
    launches = {event['args']['correlation']: event for event in found if event.get('cat') == 'cuda_runtime'}
    kernels = {event['args']['correlation']: event for event in found if event.get('cat') == 'kernel'}
    assert launches.keys() == kernels.keys()
    for correlation, launch in launches.items():
        assert launch['ts'] + launch['dur'] <= kernels[correlation]['ts']


def test_arrows_join_needs_across_streams():
    found = list(events(worked(), [0], Style()))
    begins = {event['id']: event for event in found if event['ph'] == 's'}
    ends = {event['id']: event for event in found if event['ph'] == 'f'}
    assert begins.keys() == ends.keys()
    assert all(begins[arrow]['tid'] != ends[arrow]['tid'] for arrow in begins)
    assert all(begins[arrow]['ts'] <= ends[arrow]['ts'] for arrow in begins)
    # on the page: RA RA RB RB GB GB need an op of the compute stream; FB FB L L WA WA one of the other
    assert len(begins) == 12
    assert len([event for event in events(worked(), [0], Style(most_arrows=3)) if event['ph'] == 's']) == 3


PIPELINE, PIPELINE_COSTS = trace_of(plan_of(micro_batches=2), send=2.0)


@pytest.mark.parametrize(
    ('library', 'names'), [('nccl', {'ncclDevKernel_SendRecv'}), ('gloo', {'glooSend', 'glooRecv'})]
)
def test_sends_and_receives_are_kernels_while_they_transfer(library, names):
    """NCCL's kernel for both; what torch's profiler says about each. Rank 1 waits for rank 0's first forward."""
    kernels = [event for event in events(PIPELINE, [1], Style(library=library)) if event.get('cat') == 'kernel']
    transfers = [kernel for kernel in kernels if 'Src Rank' in kernel['args']]
    assert {kernel['name'].partition(' ')[0] for kernel in transfers} == names
    assert {kernel['dur'] for kernel in transfers} == {2e6}
    first = transfers[0]
    ends = [first['args'][key] for key in ('Collective name', 'Src Rank', 'Dst Rank', 'Group size')]
    assert ends == ['recv', 0, 1, 2]
    assert (first['ts'], first['args']['waited us']) == pytest.approx((F * 1e6, F * 1e6))
    sent = next(kernel['args'] for kernel in transfers if kernel['args']['Collective name'] == 'send')
    assert (sent['Src Rank'], sent['Dst Rank']) == (1, 0)


@pytest.mark.parametrize(('library', 'name'), [('nccl', 'ncclDevKernel_SendRecv'), ('hccl', 'hcclAllToAll')])
def test_an_all_to_all_is_sends_and_receives_to_nccl(library, name):
    program = worked().program
    ops = tuple(replace(op, operator='all_to_all') if op.kind == 'collective' else op for op in program.op_classes)
    trace = replace(worked(), program=program.replace(op_classes=ops))
    kernels = [one for one in events(trace, [0], Style(library=library)) if one.get('cat') == 'kernel']
    found = [kernel for kernel in kernels if kernel['args'].get('Collective name') == 'all_to_all']
    assert found
    assert {kernel['name'].partition(' ')[0] for kernel in found} == {name}
    assert all(kernel['args']['In msg nelems'] == kernel['args']['Out msg nelems'] for kernel in found)


def test_actions_of_a_pipeline_are_annotated_as_torch_does():
    """torch.distributed.pipelining records ``PP:`` and the action; here for each of three steps."""
    found = [event for event in events(PIPELINE, [0], Style()) if event['name'].startswith('PP:')]
    assert [event['name'] for event in found] == ['PP:0F0', 'PP:0F1', 'PP:0B0', 'PP:0B1'] * 3
    assert [event['dur'] for event in found[:4]] == pytest.approx([F * 1e6, F * 1e6, B * 1e6, B * 1e6])
    assert all(two['ts'] >= one['ts'] + one['dur'] - 1e-3 for one, two in itertools.pairwise(found))
    assert not [event for event in events(worked(), [0], Style()) if event['name'].startswith('PP:')]


def test_arrows_go_from_each_send_to_its_receive_on_the_other_rank():
    found = [event for event in events(PIPELINE, [0, 1], Style()) if event.get('cat') == 'transfer']
    begins = {event['id']: event for event in found if event['ph'] == 's'}
    ends = {event['id']: event for event in found if event['ph'] == 'f'}
    assert begins.keys() == ends.keys()
    assert sorted((begins[arrow]['pid'], ends[arrow]['pid']) for arrow in begins) == [(0, 1), (0, 1), (1, 0), (1, 0)]
    assert all(ends[arrow]['ts'] - begins[arrow]['ts'] == pytest.approx(2e6, abs=1) for arrow in begins)
    others = {event['id'] for event in events(PIPELINE, [0, 1], Style()) if event.get('cat') == 'need'}
    assert len(others) > 0
    assert not [event for event in events(PIPELINE, [0], Style()) if event.get('cat') == 'transfer']


def test_links_count_sends_and_links_used_alike_are_shown_once():
    """Each send transfers 2 s alone over both links, half of one's capacity each."""
    cost = Communication(alpha=0.0, transfer=2.0, links=((0, 0.5), (1, 0.5)))
    costs = replace(
        PIPELINE_COSTS, links=('up', 'down'), communication=dict.fromkeys(PIPELINE_COSTS.communication, (cost,))
    )
    counters = list(link_counters(simulate(PIPELINE.program, costs, steps=1), costs))
    assert {event['name'] for event in counters} == {'link up and 1 alike'}
    assert [event['args']['use'] for event in counters] == [0.5, 0.0] * 4


def test_prediction_and_measurement_stand_side_by_side(tmp_path):
    trace = worked()
    paths = write_kineto(tmp_path, trace, measured=replace(trace, origin='measured'), most_ranks=1)
    merged = json.loads(paths[-1].read_text(encoding='utf-8'))['traceEvents']
    names = {event['pid']: event['args']['name'] for event in merged if event['name'] == 'process_name'}
    assert names == {0: 'rank 0 (measured)', 1000: 'rank 0 (predicted)'}
    assert len(paths) == 2


def test_a_recording_is_drawn_as_the_trace_that_it_is_of():
    found = to_trace(to_saved(PIPELINE), PIPELINE.program)
    assert list(events(found, [0, 1], Style())) == list(events(PIPELINE, [0, 1], Style()))
    with pytest.raises(ScheduleError, match=r'the trace: is of program .*; measure the schedule again'):
        to_trace(to_saved(PIPELINE), PROGRAM)


def test_use_of_a_link_on_the_page():
    """A, demand 1, transfers 3 s of its 4.5; B, demand 1/2, 3 s of its 4.5 from second 2 on."""
    program = shared_link_program()
    costs = shared_link_costs(program)
    counters = list(link_counters(simulate(program, costs, steps=1), costs))
    assert {event['name'] for event in counters} == {'link wire'}
    assert [(event['ts'] / 1e6, event['args']['use']) for event in counters] == [
        (0.0, pytest.approx(2 / 3, abs=1e-6)), (2.0, pytest.approx(1.0)),
        (4.5, pytest.approx(1 / 3, abs=1e-6)), (6.5, 0.0),
    ]  # fmt: skip


def test_ranks_that_differ_come_first():
    trace = redo().trace_of('random-3-slow-rank')
    assert chosen_ranks(trace, 8) == [0, 1, 2, 3]
    folded = worked()
    assert chosen_ranks(folded, 1) == [0]
    assert chosen_ranks(replace(folded, representative_of_rank=folded.representative_of_rank), 2) == [0, 1]


def test_links_and_what_is_no_regular_file_are_written_through(tmp_path):
    link, pipe = tmp_path / 'link.json', tmp_path / 'pipe'
    link.symlink_to('target.json')
    write_atomically(link, 'new')
    assert (link.is_symlink(), (tmp_path / 'target.json').read_text()) == (True, 'new')
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, 'told')
    assert (os.read(reader, 9), pipe.is_fifo()) == (b'told', True)
    os.close(reader)


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    path, other = tmp_path / 'trace.json', tmp_path / 'other.json'
    write_atomically(path, b'new')
    other.write_text('new')
    assert path.stat().st_mode == other.stat().st_mode


def test_the_merged_file_of_a_large_program_has_the_last_step_and_fewer_ranks(monkeypatch, tmp_path):
    """36,000 ops are below 20 MB; here the limit is that of two ranks of a step."""
    trace = worked()
    ranks = chosen_ranks(trace, 8)
    slots = len(trace.role(trace.times_of(ranks[0])))
    monkeypatch.setattr('simpar.kineto.MOST_EVENTS', slots * 1)
    assert in_the_merged_file(trace, ranks) == (1, ranks[:1])
    paths = write_kineto(tmp_path, trace, costs=COSTS)
    kernels = [e for e in json.loads(paths[-1].read_text())['traceEvents'] if e.get('cat') == 'kernel']
    assert 0 < len(kernels) <= slots
    assert {e['pid'] for e in kernels} == {ranks[0]}


def test_only_the_ranks_and_steps_that_are_asked_for_are_written(tmp_path):
    trace = worked().last(1)
    paths = write_kineto(tmp_path, trace, costs=COSTS, ranks=[1])
    assert [path.name for path in paths] == ['rank1.json', 'all_ranks.json']
    kernels = [e for e in json.loads(paths[0].read_text())['traceEvents'] if e.get('cat') == 'kernel']
    assert len(kernels) == len(trace.role(trace.times_of(1)))


def test_measure_writes_both_where_it_is_asked_to(tmp_path, monkeypatch, capsys):
    """Of a machine that takes just as long as predicted."""

    def run(verb, file, overrides, flags, *, silent):
        trace = replace(load_case(file, overrides).predict().trace, origin='measured')
        save_trace(Path(flags[flags.index('--save') + 1]), trace)
        return 0

    monkeypatch.setattr(measure.common, 'need_torch', lambda: None)
    monkeypatch.setattr(measure.common, 'start', run)
    folder = tmp_path / 'both'
    assert cli.main(['measure', str(EXAMPLE), '--trace', str(folder)]) == 0
    merged = (folder / 'merged' / 'all_ranks.json').read_text(encoding='utf-8')
    assert all(f'rank {rank} ({what})' in merged for rank in range(8) for what in ('measured', 'predicted'))
    assert f'wrote {folder / "rank0.json"}' in capsys.readouterr().out
