"""Recordings of Ascend and of Kineto as tables of kernels: totals, kinds of kernels, refusals, and who waits."""

import gzip
import json
import re
import shutil
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import prove_stragglers
import prove_what_if
import pytest
from tables import load_table

from simpar import Plan, Program, price
from simpar.case import load_case, on_net
from simpar.cli import main
from simpar.errors import ScheduleError
from simpar.hardware.net import parse_net
from simpar.kineto import write_kineto
from simpar.page import ranks_page
from simpar.recording.join import program_key
from simpar.recording.readers import join_ascend, write_measured
from simpar.traces import RankTrace, culprit_of, figures, read_traces, step_figures, waits_of
from simpar.traces.ascend import nanoseconds
from simpar.traces.kineto import kind_of
from simpar.traces.replay import change_of, what_if
from simpar.traces.stream import Stream

RECORDED = Path(__file__).parent / 'recorded'
MSPROF = RECORDED / 'msprof'
CASES = RECORDED / 'kineto_cases'
EXPECTED: dict[str, dict[str, Any]] = json.loads((MSPROF / 'expected.json').read_text(encoding='utf-8'))
FIGURES = load_table(__file__, 'FIGURES')
PIPELINES = """simpar: 1
cluster: {profile: h100-sxm-8}
workload: {transformer: {layers: 8, hidden: 1024, heads: 16, vocab: 8192, sequence: 1024}, batch: 8, precision: bf16}
plan: {pipeline: 4, data: 2, micro_batches: 4}
"""
TENTH = 0.1
"""Microseconds: the profiler's own totals went by way of doubles."""
OUTPUT = 'ASCEND_PROFILER_OUTPUT'


def microseconds(path: Path) -> dict[str, float]:
    """The figures of the one step of the one rank of a recording."""
    (trace,) = read_traces(path)
    ((_, found),) = step_figures(trace)
    return {name: getattr(found, name) * 1e6 for name in FIGURES}


@pytest.mark.parametrize('folder', [name for name, totals in EXPECTED.items() if 'computing_us' in totals])
def test_a_rank_folder_has_the_totals_that_were_worked_out_in_decimals(folder: str) -> None:
    """Within 2 ns, and within 0.1 us of what the profiler itself says of the step, in 0.25 us for the stage."""
    found, expected = microseconds(MSPROF / folder), EXPECTED[folder]
    for name, key in FIGURES.items():
        if key in expected:
            assert found[name] == pytest.approx(expected[key], abs=2e-3), name
    own = expected['step_trace_time']
    for name, column in (('computing', 'Computing'), ('overlapped', 'Overlapped'), ('communication', 'Communication')):
        assert found[name] == pytest.approx(own.get(column, own.get(name)), abs=TENTH), name


@pytest.mark.parametrize(
    'folder', ['ddp8_level0/rank0_ascend_pt', 'ddp8_level1/rank0_ascend_pt', 'ddp8_level1/rank1_ascend_pt']
)
def test_the_view_and_the_table_of_kernels_say_the_same(folder: str) -> None:
    view = microseconds(MSPROF / folder / OUTPUT / 'trace_view.json.gz')
    table = microseconds(MSPROF / folder / OUTPUT / 'kernel_details.csv')
    for name, value in table.items():
        assert view[name] == pytest.approx(value, abs=TENTH), name


def test_a_product_keeps_its_type_and_shapes() -> None:
    (trace,) = read_traces(MSPROF / 'qwen3_pp2_dp2' / 'rank_0_ascend_pt')
    assert trace.kernels is not None
    products = [kind for kind in trace.kernels.type.tolist() if kind.startswith('MatMulV')]
    # 14 layers, 2 micro-batches, 4 products with two gradients each.
    assert len(products) == 14 * 2 * 12
    assert trace.kernels.shapes[1] == '"151936,1024;1,4096;1"'


def test_plain_msprof_has_the_same_columns_by_other_names(tmp_path: Path) -> None:
    """op_summary: a byte order mark, a TAB behind times, tasks that neither compute nor communicate."""
    folder = tmp_path / 'PROF_1' / 'mindstudio_profiler_output'
    folder.mkdir(parents=True)
    rows = [
        'Device_id,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Task Wait Time(us)',
        '0,one,MatMulV2,AI_CORE,"1700000000000010.000\t",100.5,0',
        '0,hcom_allReduce__868_0_1,hcom_allReduce_,COMMUNICATION,1700000000000060.250,100,0',
        '0,wait,N/A,EVENT_WAIT_SQE,1700000000000000.000,1000,0',
    ]
    (folder / 'op_summary_20260101.csv').write_text('\ufeff' + '\n'.join(rows) + '\n', encoding='utf-8')
    found = microseconds(tmp_path / 'PROF_1')
    assert found['computing'] == pytest.approx(100.5)
    assert found['communication'] == pytest.approx(100.0)
    assert found['overlapped'] == pytest.approx(50.25)
    assert found['span'] == pytest.approx(150.25)


@pytest.mark.parametrize(
    ('head', 'times'), load_table(__file__, 'test_columns_of_other_versions_are_told_by_name_and_unit')
)
def test_columns_of_other_versions_are_told_by_name_and_unit(tmp_path: Path, head: str, times: tuple[str, str]) -> None:
    """In any case, with units in brackets, packed or not; cores by their older names."""
    rows = [head, '7,one,MatMulV2,Kernel_AiCore', '7,hcom_allReduce__1_2_3,hcom_allReduce_,']
    text = '\n'.join([rows[0], *(','.join([row, *times]) for row in rows[1:])])
    (tmp_path / 'kernel_details_0.csv.gz').write_bytes(gzip.compress(text.encode()))
    (trace,) = read_traces(tmp_path)
    ((step, found),) = step_figures(trace)
    assert step == '7'
    assert found.computing == pytest.approx(20.25e-6)
    assert found.communication > 0


def test_what_communicates_is_told_by_whole_names() -> None:
    """Inductor names a kernel after all that it fuses, and DeepEP's layout of tokens says nothing to others."""
    assert kind_of('triton_poi_fused_all_gather_into_tensor_copy_3') == 'compute'
    assert kind_of('void deep_ep::layout::get_dispatch_layout<512, 32>') == 'compute'
    for name in ('void deep_ep::internode_ll::combine<x>', 'one_shot_all_reduce_kernel', 'quickreduce::allreduce'):
        assert kind_of(name) == 'communication'
    # Of MORI, TensorRT-LLM, pplx-garden, Triton-distributed, PyTorch, DeepEP 2, NVSHMEM, flux, aiter and FlashInfer.
    for name in (
        'void mori::moe::EpDispatchCopyToStaging<hip_bfloat16>', 'EpCombineInterNodeV1KernelLowLatency_bf16',
        'moeA2ADispatchKernel', 'a2a_dispatch_send_kernel', 'kernel_dispatch_token_intra_node', 'allToAllV_2d',
        'exchangeSplitAndOffset', '(anonymous namespace)::barrier_kernel(unsigned int**)', 'pplx_all2all_kernel',
        'void deep_ep::elastic::dispatch_impl<8>', 'alltoall_on_stream_kernel<float>', 'CudaIpcBarrierAllKernel',
        'void aiter::allreduce_fusion_kernel_1stage<bf16, 8>', 'twoshotAllreduceKernel', 'rocshmem_barrier',
    ):  # fmt: skip
        assert kind_of(name) == 'communication', name
    for name in ('xccl:all_reduce', 'mcclDevKernel_AllGather'):
        assert kind_of(name) == 'communication', name
    for name in ('prepDispatch_kernel', 'block_reduce_all', 'grid_barrier_kernel', 'cublas_multishmem_gemm'):
        assert kind_of(name) == 'compute', name
    assert kind_of('__amd_rocclr_fillBufferAligned') == 'memory'


@pytest.mark.parametrize(
    ('text', 'expected'),
    [('1700000000881410.320\t', 1700000000881410320), ('6.28', 6280), ('0', 0), ('12.3456', 12345), ('-1.5', -1500)],
)
def test_microseconds_are_read_exactly(text: str, expected: int) -> None:
    assert nanoseconds(text) == expected


@pytest.mark.parametrize(('file', 'expected'), load_table(__file__, 'test_kinds_of_kernels_of_kineto'))
def test_kinds_of_kernels_of_kineto(file: str, expected: dict[str, float]) -> None:
    (trace,) = read_traces(CASES / file)
    assert trace.kernels is not None
    (_, found), *_ = step_figures(trace)
    for name, value in expected.items():
        assert getattr(found, name) * 1e6 == pytest.approx(value, abs=1e-3), name


def test_the_last_of_three_steps_is_cut_and_told() -> None:
    (trace,) = read_traces(CASES / 'three_steps.json')
    assert [name for name, _ in step_figures(trace)] == ['0', '1']
    assert trace.cut == 2


def test_the_rank_that_computes_longer_is_named() -> None:
    """Rank 2 computes 15 ms a step, the others 10; the all-reduce itself takes 0.5 ms."""
    traces = read_traces(CASES / 'straggler4')
    culprit = culprit_of(traces)
    assert culprit is not None
    assert (culprit.ranks, culprit.cause) == ((2,), 'computes')
    assert culprit.seconds == pytest.approx(5e-3)
    assert culprit.times == pytest.approx(1.5)
    waits = waits_of(traces)
    assert waits[0].waited / 3 == pytest.approx(5e-3)
    assert waits[0].own / 3 == pytest.approx(0.5e-3)


def lasting(category: str, name: str, begin: float, lasts: float, **args: object) -> dict[str, Any]:
    return {'ph': 'X', 'cat': category, 'name': name, 'tid': 1, 'ts': begin, 'dur': lasts, 'args': args}


def shifted(folder: Path, by: dict[int, tuple[float, float]]) -> Path:
    """Ranks with four steps, each a product of 1 ms times a factor and an all-reduce, their clocks moved by us."""
    folder.mkdir()
    longest = max(factor for factor, _ in by.values())
    for rank, (factor, clock) in by.items():
        events = []
        for step in range(4):
            begin, product = step * 1000 * (longest + 1) + clock, 1000 * factor
            events.append(lasting('user_annotation', f'ProfilerStep#{step}', begin, 1000 * (longest + 0.5)))
            for number, (name, since, until) in enumerate(
                [('gemm', 0.0, product), ('ncclDevKernel_AllReduce', product, 1000 * longest + 100)]
            ):
                own = {'correlation': 2 * step + number}
                events.append(lasting('cuda_runtime', 'launch', begin + number, 1, **own))
                events.append(lasting('kernel', name, begin + since, until - since, stream=7, **own))
        told = {'deviceProperties': [{'name': 'GPU'}], 'distributedInfo': {'rank': rank, 'world_size': len(by)}}
        (folder / f'rank{rank}.json').write_text(json.dumps({**told, 'traceEvents': events}), encoding='utf-8')
    return folder


def test_clocks_of_hosts_need_not_agree(tmp_path: Path) -> None:
    """A collective ends at once everywhere, so clocks that are seconds apart name the same rank."""
    by = {0: (1.0, 0.0), 1: (1.4, 3e6), 2: (1.0, -2e6 + 5e6), 3: (1.01, 7.5)}
    culprit = culprit_of(read_traces(shifted(tmp_path / 'job', by)))
    assert culprit is not None
    assert (culprit.ranks, culprit.cause) == ((1,), 'computes')
    assert culprit.seconds == pytest.approx(0.4e-3, rel=1e-3)


def test_ranks_of_a_recording_stand_side_by_side_on_one_clock(tmp_path: Path) -> None:
    """Rank 1 computes 0.4 ms longer; its peers, whose clocks are seconds apart, wait as long for its message."""
    folder = shifted(tmp_path / 'job', {0: (1.0, 0.0), 1: (1.4, 3e6), 2: (1.0, -2e6 + 5e6)})
    assert main(['trace', str(folder), '--html', str(tmp_path / 'new' / 'ranks.html')]) == 0
    page = (tmp_path / 'new' / 'ranks.html').read_text(encoding='utf-8')
    assert not re.search(r'(src|href)=|https?://|@import', page)
    assert 'Rank 1 makes the others wait' in page
    assert re.findall('<tr><td>(.*?)</td>', page) == ['0', '1', '2']
    found = json.loads(re.search(r'application/json">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    (side,) = found['sides']
    ends = []
    for group, waits in zip(side['groups'], (0.4e-3, 0.0, 0.4e-3), strict=True):
        (row,) = group['rows']
        kinds = [side['ops'][op][1] for op in row['op']]
        assert kinds == ['F', 'communication']
        assert [wait * found['unit'] for wait in row['wait']] == pytest.approx([0.0, waits], abs=1e-8)
        assert row['begin'][0] == 0
        ends.append(row['begin'][1] + row['wait'][1] + row['run'][1])
    assert len(set(ends)) == 1
    assert ends[0] == side['step']


def test_of_many_ranks_timelines_that_are_alike_are_drawn_once(tmp_path: Path) -> None:
    """It took minutes to compare 1,024 ranks, and hundreds of equal timelines were drawn."""
    traces = read_traces(shifted(tmp_path / 'job', {rank: (1.4 if rank == 17 else 1.0, 0.0) for rank in range(20)}))
    page = ranks_page(traces, '')
    assert set(re.findall(r'"label":"rank (\d+)"', page)) == {'0', '17'}
    assert '18 more ranks are not drawn; each is like one that is.' in page


def test_a_kernel_whose_name_is_markup_runs_nothing_on_the_page(tmp_path: Path) -> None:
    name = '</script><script>alert(1)</script>'
    event = {'ph': 'X', 'cat': 'kernel', 'name': name, 'pid': 0, 'tid': 7, 'ts': 10, 'dur': 5}
    path = written(tmp_path / 'a.json', json.dumps({'schemaVersion': 1, 'traceEvents': [event]}).encode())
    assert main(['trace', str(path), '--html', str(tmp_path / 'ranks.html')]) == 0
    page = (tmp_path / 'ranks.html').read_text(encoding='utf-8')
    assert '<script>alert' not in page
    data = json.loads(re.search(r'application/json">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert data['sides'][0]['ops'][0][0] == name


def test_no_page_is_drawn_of_totals(tmp_path: Path, refused) -> None:
    totals = MSPROF / 'ddp8_level1' / 'rank0_ascend_pt' / OUTPUT / 'step_trace_time.csv'
    assert '--html: no kernel of a device was recorded' in refused('trace', totals, '--html', tmp_path / 'a.html')


def test_the_command_names_the_rank_in_its_first_sentence(json_of, printed) -> None:
    first = printed('trace', CASES / 'straggler4').splitlines()[0]
    assert first.startswith('rank 2 makes the others wait 5 ms of each step of 15.5 ms: it computes 1.5 times')
    assert json_of('trace', CASES / 'straggler4')['culprit']['ranks'] == [2]


def _database(path: Path, table: str) -> Path:
    with closing(sqlite3.connect(path)) as data:
        data.execute(f'create table {table} (id integer)')
    return path


def test_what_is_not_read_is_refused_by_its_name(tmp_path: Path) -> None:
    """Each with what to do instead."""
    cases = {
        'cannot be read: no such table: StringIds': _database(tmp_path / 'report.sqlite', 'CUPTI_ACTIVITY_KIND_KERNEL'),
        "is Ascend's analysis.db": MSPROF / 'ddp8_level1_db' / 'rank0_ascend_pt' / OUTPUT / 'analysis.db',
        "is Ascend's communication.json": MSPROF / 'ddp8_level1' / 'rank0_ascend_pt' / OUTPUT / 'communication.json',
        'is an execution trace of PyTorch': written(
            tmp_path / 'et.json', b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}'
        ),
        'is JSON of rocprofv3': written(tmp_path / '908_results.json', b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}'),
        'is an XPlane of XLA': written(tmp_path / 'a.xplane.pb', b'\n\x9d\xb2\x08\x12\x0e/host:metadata"\x93\x07'),
        'is a pickle': written(tmp_path / 'weights_0', b'\x80\x05\x95abc'),
        'does not say its rank': written(tmp_path / 'fr.json', b'{"pg_config": {}, "entries": []}'),
        'is no whole dump': written(tmp_path / 'fr_1.json', b'{"pg_config": {}, "entries": [{}]}'),
        'is no recording': written(tmp_path / 'notes.txt', b'hello'),
        'is not there': tmp_path / 'nothing',
        'holds no recording': tmp_path / 'empty',
    }
    (tmp_path / 'empty').mkdir()
    for words, path in cases.items():
        with pytest.raises(ScheduleError, match=words):
            read_traces(path)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (lambda text: text.replace('Start Time(us)', 'When'), 'is no recording'),
        (lambda text: text.replace('1700000000881410.320', 'soon'), 'no number of microseconds'),
        (lambda text: text.splitlines()[0] + '\n', 'has no row'),
        (lambda text: text.replace('1700000000881410.320', '9' * 30), 'no number of microseconds'),
        (lambda text: text.replace('1700000000881410.320', '5' * 16), 'no time before the year 2116'),
        (lambda text: text.replace(',50.621,', ',-50.621,'), 'a duration below 0'),
        (lambda text: text.replace('op_0000', '"op\r_0000'), 'no row|is no table|no number'),
        (lambda text: 'Duration(us),' + text.replace('\n', '\n1,'), 'has more than one column Duration'),
    ],
)
def test_a_broken_table_is_a_refusal_with_its_line(put, change: Any, words: str) -> None:
    whole = MSPROF / 'ddp8_level0' / 'rank0_ascend_pt' / OUTPUT / 'kernel_details.csv'
    path = put('kernel_details.csv', change(whole.read_text(encoding='utf-8')))
    with pytest.raises(ScheduleError, match=words):
        read_traces(path)


QWEN3 = load_table(__file__, 'QWEN3')


@pytest.fixture
def qwen3(put) -> Path:
    """The schedule of the recorded job."""
    return put('qwen3.yaml', QWEN3)


def computing(program: Program, rank: int, seconds: Any) -> float:
    """Seconds that a rank computes in a step."""
    role = program.role(rank)
    priced = [program_key(program, program.op_classes[index]) is not None for index in range(len(program.op_classes))]
    return sum(
        float(seconds[index])
        for index in role.op_class.tolist()
        if priced[index] and program.op_classes[index].kind == 'compute'
    )


def test_an_ascend_recording_is_joined_with_its_schedule(qwen3: Path) -> None:
    """14 layers, 2 micro-batches: each product of the schedule is found as often as it has it."""
    program = load_case(qwen3).program
    found = join_ascend(program, read_traces(MSPROF / 'qwen3_pp2_dp2' / 'rank_0_ascend_pt'))
    exact = [line for line in found.lines if line.key[0] in {'matmul', 'attention'}]
    assert sum(line.program for line in exact) == 28 * (12 + 2)
    assert all(line.recorded == line.program for line in exact)
    expected = EXPECTED['qwen3_pp2_dp2/rank_0_ascend_pt']
    assert found.matched * 1e6 > 0.9 * expected['computing_us']
    attention = {line.key[-1]: line.seconds * 28 * 1e6 for line in found.lines if line.key[0] == 'attention'}
    by_type = expected['by_type']
    assert attention['F'] == pytest.approx(by_type['FlashAttentionScore'][1], abs=0.1)
    assert attention['I'] == pytest.approx(by_type['FlashAttentionScoreGrad'][1], abs=0.1)


def test_a_profile_of_a_recording_predicts_what_was_recorded(qwen3: Path, json_of) -> None:
    """Of the recorded stage: to the digit without a framework; with it within 5 %, the recorded attention in both."""
    mine = qwen3.with_name('mine.yaml')
    folder = str(MSPROF / 'qwen3_pp2_dp2')
    assert json_of('import', folder, '--for', qwen3, '--output', mine)['written'][0] == str(mine)
    recorded = EXPECTED['qwen3_pp2_dp2/rank_0_ascend_pt']['computing_us']
    for stack, most in (('none', 1e-3), ('mindspeed', 0.05)):
        case = load_case(qwen3, [f'cluster.profile={mine}', f'cluster.stack={stack}'])
        predicted = computing(case.program, 0, price(case.program, case.cluster).compute) * 1e6
        assert predicted == pytest.approx(recorded, rel=most), stack


def family(operator: str, phase: str) -> str:
    """Products are of one; of others each phase is another kernel."""
    return operator if operator == 'matmul' else f'{operator}.{phase}'


def test_one_micro_batch_of_a_recording_predicts_the_other(qwen3: Path) -> None:
    """A profile of the first of two: the second within 5 %, families of a hundredth of it or more within 10 %."""
    qwen3.write_text(QWEN3.replace('micro_batches: 2', 'micro_batches: 1').replace('batch: 4', 'batch: 2'))
    (trace,) = read_traces(MSPROF / 'qwen3_pp2_dp2' / 'rank_0_ascend_pt')
    kernels = trace.kernels
    assert kernels is not None
    # Forward, forward, backward, backward; each backward ends with the embedding's gradient, its cast and its sum.
    types = kernels.type.tolist()
    forward = [place for place, kind in enumerate(types) if kind == 'GatherV2'][1]
    backward = next(place for place, kind in enumerate(types) if place > forward and 'atchSendRecv' in kind) + 1
    begins = [forward, backward, types.index('EmbeddingDenseGradV2') + 3, types.index('LpNormV2')]
    turn = np.searchsorted(begins, np.arange(len(types)), side='right')
    program = load_case(qwen3).program
    first, second = (
        join_ascend(program, [replace(trace, kernels=kernels.of((turn == half) | (turn == half + 2)))])
        for half in (0, 1)
    )
    mine = qwen3.with_name('mine.yaml')
    write_measured(mine, 'ascend910b-8', first, 'the first micro-batch', 'bf16')
    recorded: dict[str, float] = defaultdict(float)
    for line in second.lines:
        key = line.key if line.key[0] != 'operator' else line.key[1:3]
        recorded[family(str(key[0]), str(key[-1]))] += line.seconds * line.program
    whole = sum(recorded.values())
    for stack in ('none', 'mindspeed'):
        case = load_case(qwen3, [f'cluster.profile={mine}', f'cluster.stack={stack}'])
        seconds = price(case.program, case.cluster).compute
        found: dict[str, float] = defaultdict(float)
        for index in case.program.role(0).op_class.tolist():
            op = case.program.op_classes[index]
            if op.kind == 'compute' and op.phase != 'U':
                found[family(op.operator, op.phase)] += float(seconds[index])
        assert sum(found.values()) == pytest.approx(whole, rel=0.05), stack
        for name, took in recorded.items():
            assert took < whole / 100 or found[name] == pytest.approx(took, rel=0.1), (stack, name)


def test_events_come_alike_in_batches_of_any_size(put, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and arguments look like places between events; times have more digits than a double."""
    events: list[Any] = [lasting('cpu_op', '"}, {"ph": "X"', 10, 1, inner=[{'a': [1]}, {'b': '}, {'}])] * 40
    events += [lasting('kernel', f'k{n}', 20 + n, 1, stream=7, more=[{}, {}]) for n in range(40)]
    text = json.dumps({'deviceProperties': [{'name': 'GPU'}], 'traceEvents': events, 'distributedInfo': {'rank': 3}})
    path = put('one.json', text.replace('"ts": 20,', '"ts": 1736408883704643.217,'))
    for size in (50, 333, 2**22):
        monkeypatch.setattr(f'{Stream.__module__}.BLOCK', size)
        (trace,) = read_traces(path, host=True)
        assert (trace.rank, trace.device) == (3, 'GPU')
        assert trace.kernels is not None
        assert trace.kernels.name.tolist() == [f'k{n}' for n in (*range(1, 40), 0)]
        assert trace.kernels.begin[-1] == 1736408883704643217
        assert trace.host is not None
        assert len(trace.host) == 40


GRID, LINE = Plan(tensor=2, data=2), Plan(pipeline=4, micro_batches=8)


@pytest.mark.parametrize(
    ('kind', 'plan'),
    [*((kind, GRID) for kind in (None, 'slow_rank', 'slow_link', 'loading', 'samples')), ('slow_host', LINE)],
)
def test_what_was_made_slow_is_named_with_its_ranks(kind: str | None, plan: Plan, tmp_path: Path) -> None:
    """Some of what `make prove NAME=stragglers` draws: recordings of four ranks, with noise."""
    bed, rng = prove_stragglers.Bed(4, plan), np.random.default_rng(3)
    trace, truth = prove_stragglers.drawn(bed, getattr(prove_stragglers, kind) if kind else None, rng)
    culprit, said = prove_stragglers.asked(trace, tmp_path)
    assert prove_stragglers.right(culprit, truth) if kind else culprit is None, said


def test_what_if_on_a_recording_is_worked_out_by_hand() -> None:
    """10 kernels of 1 ms, on rank 2 of 1.5, and an all-reduce of 0.5 ms."""
    traces = read_traces(CASES / 'straggler4')
    for text, step in (
        ('rank=2:0.66666667', 10.5e-3),
        ('message=nccl:3', 16.5e-3),
        ('link=0-1:3', 16.5e-3),
        ('kernel=gemm:2', 30.5e-3),
        ('hidden=nccl', 15e-3),
        ('rank=0:1.2', 15.5e-3),
    ):
        found = what_if(traces, [change_of(text)])
        assert found.recorded == pytest.approx(15.5e-3, rel=1e-3)
        assert found.replayed == pytest.approx(15.5e-3, rel=1e-3)
        assert found.changed == pytest.approx(step, rel=1e-3), text
    for wrong in (
        'rank=2',
        'rank=x:2',
        'kernel=(:2',
        'colour=red:2',
        'kernel=gemm:-1',
        'host=3:1',
        'kernel=conv:2',
        '',
    ):
        with pytest.raises(ScheduleError, match='--what-if'):
            what_if(traces, [change_of(wrong)])


def test_a_recording_whose_kernels_take_no_time_has_no_what_if(tmp_path: Path) -> None:
    """It ended in a division by zero."""
    tree = json.loads((CASES / 'three_steps.json').read_text(encoding='utf-8'))
    events = tree['traceEvents'] if isinstance(tree, dict) else tree
    for event in events:
        if event.get('cat') in ('kernel', 'gpu_memcpy', 'gpu_memset'):
            event.update(ts=0, dur=0)
    (tmp_path / 'r.json').write_text(json.dumps(tree), encoding='utf-8')
    with pytest.raises(ScheduleError, match='take no time'):
        what_if(read_traces(tmp_path / 'r.json'), [change_of('kernel=.:0.5')])


@pytest.mark.parametrize(('text', 'plan'), [
    ('rank=1:1.6', Plan(tensor=2, data=2)), ('rank=1:1.6', Plan(pipeline=2, data=2, micro_batches=4)),
    ('message=.:2', Plan(tensor=2, data=2)), ('kernel=fc1:2', Plan(pipeline=2, data=2, micro_batches=4)),
])  # fmt: skip
def test_what_if_meets_a_recording_of_that(text: str, plan: Plan, tmp_path: Path) -> None:
    """Record A, ask for B, record B: both are simulated, B with the change made in its ops."""
    bed = prove_stragglers.Bed(4, plan)
    machine = bed.machine()
    traces = recorded(bed, machine, tmp_path / 'a')
    change = change_of(text)
    for rank in range(4):
        for slot, op in enumerate(bed.classes(machine, rank)):
            if (change.what == 'rank' and rank in change.ranks) or (change.what == 'kernel' and 'fc1' in op.name):
                machine.compute[rank][:, slot] *= change.factor
            elif change.what == 'message':
                machine.alpha[rank][:, slot] *= change.factor
                machine.transfer[rank][:, slot] *= change.factor
    found = what_if(traces, [change])
    truth = what_if(recorded(bed, machine, tmp_path / 'b'), [change])
    assert found.replayed == pytest.approx(found.recorded, rel=0.02)
    assert truth.recorded > 1.05 * found.recorded
    assert found.changed == pytest.approx(truth.recorded, rel=0.05)


def recorded(bed: Any, machine: Any, folder: Path) -> list[RankTrace]:
    write_kineto(folder, prove_stragglers.measured(machine, bed.program))
    return read_traces(folder)


@pytest.mark.parametrize('pair', prove_what_if.PAIRS, ids=lambda pair: pair[0])
def test_another_plan_or_link_is_told_by_a_recording(
    pair: tuple[str, str, str, tuple[str, ...], int], tmp_path: Path, put, json_of: Any
) -> None:
    """Record A, ask for B, record B, all simulated; `make prove NAME=what_if` runs them."""
    _, plan, asked, keys, rate = pair
    schedule = put('schedule.yaml', f'{prove_what_if.MODEL}{plan}\n')
    first, second = (
        on_net(load_case(schedule, list(more)), parse_net(prove_what_if.NET.format(net))).predict()
        for more, net in (((), prove_what_if.RATE), (keys, rate))
    )
    write_kineto(tmp_path / 'a', first.trace)
    words = ['--for', str(schedule)] if '.' in asked.partition('=')[0] else []
    told = json_of('trace', str(tmp_path / 'a'), *words, '--what-if', asked)['what_if']
    assert told['recorded'] == pytest.approx(first.step, rel=1e-3)
    assert told['recorded'] * told['changed'] / told['replayed'] == pytest.approx(second.step, rel=0.02)
    assert abs(second.step / first.step - 1) > 0.05


def test_a_key_without_a_schedule_is_no_change_and_a_schedule_needs_a_key(refused) -> None:
    for words, says in (
        (['--what-if', 'plan.copies=2'], 'is no change that is known'),
        (['--for', 'examples/multi_copy.yaml'], 'no key is asked for'),
    ):
        assert says in refused('trace', CASES / 'straggler4', *words)


def test_stages_of_a_pipeline_are_not_blamed_for_their_places_in_it(tmp_path: Path) -> None:
    """Two pipelines of four stages as predicted: no device, link or host is slower. The last stages were named."""
    found = load_case(PIPELINES).predict()
    write_kineto(tmp_path, found.trace.last(1))
    shutil.rmtree(tmp_path / 'merged')
    assert culprit_of(read_traces(tmp_path)) is None


def test_nobody_is_named_where_ranks_are_alike(tmp_path: Path) -> None:
    traces = read_traces(shifted(tmp_path / 'job', {0: (1.0, 0.0), 1: (1.003, 0.0), 2: (1.001, 0.0)}))
    assert culprit_of(traces) is None


def test_further_names_of_communication_are_given(tmp_path: Path) -> None:
    path = tmp_path / 'one.json'
    kernel = {'ph': 'X', 'cat': 'kernel', 'name': 'my_dispatch', 'tid': 7, 'ts': 0, 'dur': 10, 'args': {'stream': 7}}
    path.write_text(json.dumps({'deviceProperties': [{'name': 'GPU'}], 'traceEvents': [kernel]}), encoding='utf-8')
    (trace,) = read_traces(path, None)
    assert trace.kernels is not None
    assert figures(trace.kernels).communication == 0
    assert main(['trace', str(path), '--communication', 'my_(dispatch|combine)', '--json']) == 0
    assert main(['trace', str(path), '--communication', '(']) == 2


def test_two_recordings_of_one_rank_are_refused_and_a_stray_file_is_not(tmp_path: Path) -> None:
    for name in ('a.json.gz', 'b.json.gz'):
        (tmp_path / name).write_bytes((CASES / 'straggler4' / 'rank0.json.gz').read_bytes())
    with pytest.raises(ScheduleError, match='are of one rank'):
        read_traces(tmp_path)
    (tmp_path / 'b.json.gz').write_bytes(gzip.compress(b'{"notes": 1}'))
    assert [trace.rank for trace in read_traces(tmp_path)] == [0]
