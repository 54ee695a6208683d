"""Tables and databases of several devices, Nsight Systems, flight recorders: figures or a refusal of each file."""

import json
import lzma
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tables import load_tree
from test_traces import MSPROF, OUTPUT, RECORDED, written

from simpar.errors import ScheduleError
from simpar.traces import read_traces, step_figures
from simpar.traces.flight import Stuck, stuck_of
from simpar.traces.table import COMPUTE


def summary(folder: Path, name: str, rows: list[str]) -> Path:
    """An export of msprof, whose columns are in another order than torch_npu's."""
    head = 'OP Type,Task Duration(us),Task Start Time(us),Op Name,Task Type,Step Id,Device_id'
    inner = folder / 'mindstudio_profiler_output'
    inner.mkdir(parents=True, exist_ok=True)
    (inner / name).write_bytes('\r\n'.join([head, *rows, '']).encode('utf-8-sig'))
    return folder


def test_devices_of_one_table_are_ranks(tmp_path: Path) -> None:
    """Msprof writes all devices of a host into one table: together they would look busy where each is idle."""
    rows = ['MatMulV2,10,100.5,one,AI_CORE,3,0', 'MatMulV2,30,200,two,AI_CORE,3,1', 'Add,5,130,three,AI_CORE,3,0']
    first, second = read_traces(summary(tmp_path / 'PROF_1', 'op_summary_1.csv', rows))
    ((_, one),), ((_, two),) = step_figures(first), step_figures(second)
    assert (first.rank, second.rank) == (0, 1)
    assert (one.computing, one.span) == (pytest.approx(15e-6), pytest.approx(34.5e-6))
    assert (two.computing, two.span) == (pytest.approx(30e-6), pytest.approx(30e-6))


def test_totals_of_several_devices_are_of_ranks(tmp_path: Path) -> None:
    """Two devices' step 5, not two steps of one rank."""
    head = 'Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage'
    text = f'{head}\n0,5,10,2,3,5,1,13\n1,5,20,2,3,5,1,23\n'
    traces = read_traces(written(tmp_path / 'step_trace_time.csv', text.encode()))
    told = [(trace.rank, name, round(found.computing * 1e6)) for trace in traces for name, found in step_figures(trace)]
    assert told == [(0, '5', 10), (1, '5', 20)]


def test_a_row_without_a_step_is_told_and_one_without_a_device_is_of_the_only_one(tmp_path: Path) -> None:
    rows = ['MatMulV2,10,100,one,AI_CORE,3,4', 'MatMulV2,10,110,two,AI_CORE,N/A,4', 'Add,5,120,three,AI_CORE,3,']
    (trace,) = read_traces(summary(tmp_path / 'PROF_1', 'op_summary_1.csv', rows))
    ((step, found),) = step_figures(trace)
    assert (trace.rank, step, found.computing) == (0, '3', pytest.approx(15e-6))
    assert trace.notes == ('1 tasks of no step are left out',)


@pytest.mark.parametrize(
    ('name', 'rows', 'words'), load_tree(__file__, 'test_a_table_that_is_not_whole_or_of_nobody_is_refused')
)
def test_a_table_that_is_not_whole_or_of_nobody_is_refused(
    tmp_path: Path, name: str, rows: list[str], words: str
) -> None:
    with pytest.raises(ScheduleError, match=words):
        read_traces(summary(tmp_path / 'PROF_1', name, rows))


def test_databases_of_several_devices(tmp_path: Path) -> None:
    """Of msprof: kernels are each device's; collectives that do not say whose they are cannot be told apart."""
    source = MSPROF / 'ddp8_level1_db' / 'rank0_ascend_pt' / OUTPUT
    path = tmp_path / 'msprof_1.db'
    path.write_bytes(next(source.glob('ascend_pytorch_profiler_*.db')).read_bytes())
    (whole_of,) = read_traces(path)
    assert whole_of.notes == ()
    with closing(sqlite3.connect(path)) as data:
        data.execute("update STRING_IDS set value = 'NEW_CORE' where value = 'DSA_SQE'")
        data.commit()
        (other,) = read_traces(path)
        assert other.notes == ('tasks of NEW_CORE neither compute nor communicate',)
        data.execute("update STRING_IDS set value = 'DSA_SQE' where value = 'NEW_CORE'")
        data.execute('update TASK set deviceId = deviceId + 1 where rowid % 2')
        data.commit()
        with pytest.raises(ScheduleError, match='has collectives of devices'):
            read_traces(path)
        data.execute('drop table COMMUNICATION_OP')
        data.commit()
    found = read_traces(path)
    computing = [
        int((trace.kernels.kind == COMPUTE).sum()) for trace in (*found, whole_of) if trace.kernels is not None
    ]
    assert len(found) == 2
    assert computing[0] + computing[1] == computing[2]
    assert 0 < computing[0] < computing[2]


def test_a_view_of_several_devices_is_refused(tmp_path: Path) -> None:
    events = [
        {'ph': 'M', 'name': 'process_name', 'pid': pid, 'tid': 0, 'args': {'name': 'Ascend Hardware'}} for pid in (1, 2)
    ]
    path = written(tmp_path / 'msprof_1.json', json.dumps(events).encode())
    with pytest.raises(ScheduleError, match='shows 2 devices'):
        read_traces(path)


def nsight(path: Path, kernels: Any, ranges: Any = ()) -> Path:
    """A database with the columns that Nsight Systems exports: kernels as (begin, end, device, name, launched)."""
    process = 18_007_227 * 2**24
    with closing(sqlite3.connect(path)) as data:
        data.executescript("""
            create table StringIds (id integer primary key, value text);
            create table TARGET_INFO_GPU (id integer, name text);
            create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, "end" integer, globalTid integer,
                correlationId integer);
            create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, "end" integer, deviceId integer, streamId integer,
                correlationId integer, globalPid integer, bytes integer);
            create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, "end" integer, deviceId integer, streamId integer,
                correlationId integer, globalPid integer, demangledName integer, gridX integer, gridY integer,
                gridZ integer);
            create table NVTX_EVENTS (start integer, "end" integer, globalTid integer, text text, textId integer);
            insert into TARGET_INFO_GPU values (0, 'NVIDIA A100-SXM4-40GB');
        """)
        for number, (begin, end, device, name, launched) in enumerate(kernels):
            data.execute('insert into StringIds values (?, ?)', (number, name))
            data.execute(
                'insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, 7, ?, ?, ?, 2, 1, 1)',
                (begin, end, device, number, process, number),
            )
            called = (launched, launched + 9, process + 5, number)
            data.execute('insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?)', called)
        # Memory of a device on which the process runs no kernel.
        data.execute('insert into CUPTI_ACTIVITY_KIND_MEMCPY values (1, 2, 3, 7, 99, ?, 4)', (process,))
        data.executemany(f'insert into NVTX_EVENTS values (?, ?, {process + 5}, ?, null)', [(*one,) for one in ranges])
        data.commit()
    return path


@pytest.mark.parametrize(('name', 'kernels', 'memory'), [('saxpy', 5, 40), ('cloverleaf', 1312, 80)])
def test_public_recordings_of_nsight_systems_are_read(tmp_path: Path, name: str, kernels: int, memory: int) -> None:
    """Exported by 2022.2 and 2024.5, see recorded/nsight; what SQL adds up of kernels that run one after the other."""
    path = tmp_path / 'job_rank3.sqlite'
    path.write_bytes(lzma.decompress((RECORDED / 'nsight' / f'{name}.sqlite.xz').read_bytes()))
    with closing(sqlite3.connect(path)) as data:
        (total,) = data.execute(
            'select count(*), sum("end" - start), max("end") - min(start) from CUPTI_ACTIVITY_KIND_KERNEL'
        )
    (trace,) = read_traces(path)
    ((_, found),) = step_figures(trace)
    assert (trace.rank, trace.device, total[0]) == (3, f'NVIDIA A100-SXM4-{memory}GB', kernels)
    assert found.computing == pytest.approx(total[1] * 1e-9)
    assert found.communication == 0
    assert total[2] * 1e-9 <= found.span
    assert trace.kernels is not None
    assert int((trace.kernels.kind == COMPUTE).sum()) == kernels


def test_a_kernel_of_nsight_systems_is_of_the_step_that_launched_it_and_of_its_device(tmp_path: Path) -> None:
    """Launched in step 1, between steps, in step 2; the first runs when its range is over."""
    kernels = [(90, 150, 0, 'gemm', 20), (160, 170, 0, 'between', 105), (210, 250, 0, 'ncclDevKernel_AllReduce', 120),
        (95, 115, 1, 'gemm', 30)]  # fmt: skip
    first, second = read_traces(nsight(tmp_path / 'a.sqlite', kernels, [(0, 100, 'step 1'), (110, 200, 'step 2')]))
    assert [(name, found.computing, found.communication) for name, found in step_figures(first)] == [
        ('1', pytest.approx(60e-9), 0.0), ('2', 0.0, pytest.approx(40e-9))
    ]  # fmt: skip
    assert [found.computing for _, found in step_figures(second)] == [pytest.approx(20e-9), 0.0]


def test_a_row_of_a_database_without_times_is_left_out_or_refused(tmp_path: Path) -> None:
    """Of CUPTI, 0 and 0 are times that could not be collected; a row that ends before it begins is broken."""
    (trace,) = read_traces(nsight(tmp_path / 'a.sqlite', [(0, 0, 0, 'lost', 0), (500, 600, 0, 'gemm', 400)]))
    ((_, found),) = step_figures(trace)
    assert found.span == pytest.approx(100e-9)
    with pytest.raises(ScheduleError, match='ends before it begins'):
        read_traces(nsight(tmp_path / 'b.sqlite', [(600, 500, 0, 'gemm', 400)]))


def test_what_ran_on_several_devices_of_one_file_is_told(tmp_path: Path) -> None:
    """As of a process that drives two, or of a file that somebody merged."""
    events = [
        {'ph': 'X', 'cat': 'kernel', 'name': 'gemm', 'pid': pid, 'tid': 7, 'ts': 10 * pid, 'dur': 5} for pid in (0, 1)
    ]
    path = written(tmp_path / 'a.json', json.dumps({'schemaVersion': 1, 'traceEvents': events}).encode())
    (trace,) = read_traces(path)
    apart = json.dumps({'schemaVersion': 1, 'traceEvents': [*events, events[0] | {'ph': 'B'}]})
    with pytest.raises(ScheduleError, match='has kernels as begins and ends apart'):
        read_traces(written(tmp_path / 'b.json', apart.encode()))
    assert any('what ran on devices 0, 1 counts together' in note for note in trace.notes)


FLIGHT = RECORDED / 'flight'


def test_a_flight_recorder_names_the_rank_that_did_not_come(tmp_path: Path, printed) -> None:
    """Torch's own dumps of two gloo ranks, of which rank 1 left out the last sum; as JSON and as pickles."""
    for rank in (0, 1):
        dump = json.loads((FLIGHT / f'rank{rank}.json').read_text(encoding='utf-8'))
        (tmp_path / f'nccl_trace_rank_{rank}').write_bytes(pickle.dumps(dump, protocol=2 + 2 * rank))
    for folder in (FLIGHT, tmp_path):
        said = printed('trace', folder)
        assert said.startswith('rank 1 did not come to all_reduce of 64, number 4 of group 0 (default_pg)')
        assert 'in which rank 0 waits' in said


def test_a_flight_recorder_names_another_collective_and_a_chain_of_waits(tmp_path: Path) -> None:
    """Rank 2 waits for rank 1 in a group of both, so rank 0, which waits for rank 2 as well, waits for rank 1."""

    def call(number: int, what: str, group: str, retired: bool) -> dict[str, Any]:
        return {'collective_seq_id': number, 'profiling_name': f'nccl:{what}', 'process_group': [group, 'tp'],
            'input_sizes': [[8, 4]], 'state': 'completed' if retired else 'started', 'retired': False}  # fmt: skip

    def stuck(name: str, *ranks: list[dict[str, Any]]) -> Stuck | None:
        folder = tmp_path / name
        folder.mkdir()
        for rank, entries in enumerate(ranks):
            dump = {'pg_config': {}, 'entries': entries}
            written(folder / f'trace_{rank}.json', json.dumps(dump).encode())
        return stuck_of(read_traces(folder))

    assert stuck('over', [call(1, 'all_reduce', '1', True)], [call(1, 'all_reduce', '1', True)]) is None
    other = stuck('other', [call(1, 'all_reduce', '1', False)], [call(1, 'all_gather', '1', False)])
    assert other is not None
    assert (other.waiting, other.other, other.differs) == ((0,), (1,), 'all_gather of 8×4')
    chain = stuck(
        'chain',
        [call(1, 'all_reduce', '1', False)],
        [call(1, 'all_reduce', '2', True)],
        [call(1, 'all_reduce', '2', True), call(2, 'all_reduce', '2', False), call(0, 'all_gather', '1', True)],
    )
    assert chain is not None
    assert (chain.group, chain.waiting, chain.absent) == ('2 (tp)', (2,), (1,))


@pytest.mark.parametrize('where', ['profiling_name', 'process_group'])
def test_a_pickle_whose_words_have_no_end_is_refused_at_once(tmp_path: Path, where: str) -> None:
    """Forty lists, each twice the one before it: some hundred bytes, and 2^40 words if they are written out."""
    nested: list[Any] = ['x']
    for _ in range(40):
        nested = [nested, nested]
    dump = json.loads((FLIGHT / 'rank0.json').read_text(encoding='utf-8'))
    dump['entries'][0][where] = [nested, 'default_pg'] if where == 'process_group' else nested
    with pytest.raises(ScheduleError, match='is no whole dump of a flight recorder'):
        read_traces(written(tmp_path / 'nccl_trace_rank_0', pickle.dumps(dump)))


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    """Nothing of it is imported or called."""
    data = pickle.dumps({'pg_config': {}, 'entries': [Path('/')]})
    with pytest.raises(ScheduleError, match='is none of plain values'):
        read_traces(written(tmp_path / 'nccl_trace_rank_0', data))
