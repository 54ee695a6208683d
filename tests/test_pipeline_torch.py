"""Orders, sends and receives, and CSV are torch's own, wherever torch has them."""

import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from every import some
from extras import Later

from simpar import Plan
from simpar.errors import ScheduleError
from simpar.lower import lower
from simpar.pipeline import faults, named_order, parse_action, read_csv, with_communication, write_csv
from simpar.pipeline.checks import rows_of
from simpar.pipeline.order import COMMUNICATION, KINDS, SHARDING, Order
from simpar.workload import Transformer, Workload

schedules, visualizer, stages = (
    Later(f'torch.distributed.pipelining.{name}', 'torch') for name in ('schedules', '_schedule_visualizer', 'stage')
)

ONE, TWO, SEVERAL = (1,), (2,), (2, 3)
"""Chunks on a rank; where they are several, the points of the grid take turns."""
SINGLE = {'gpipe': ('GPipe', ONE), '1f1b': ('1F1B', ONE)}
MULTI = {
    'interleaved-1f1b': ('Interleaved1F1B', SEVERAL),
    'looped-bfs': ('LoopedBFS', SEVERAL),
    'interleaved-zero-bubble': ('InterleavedZeroBubble', SEVERAL),
    'zb-v': ('ZBVZeroBubble', TWO),
    'dualpipe-v': ('DualPipeV', TWO),
}
GRID = some(product((1, 2, 3, 4, 5, 6), (*range(1, 13), 16)), 4)


def points(name):
    chunks = {**SINGLE, **MULTI}[name][1]
    return [(ranks, m, chunks[(ranks + m) % len(chunks)]) for ranks, m in GRID]


def rows(table):
    """From 2.15 on torch says where it waits, too."""
    return tuple(
        tuple(parse_action(str(action)) for action in row if action is not None and 'WAIT' not in str(action))
        for row in table
    )


def only(table, without):
    return tuple(tuple(action for action in row if action.kind not in without) for row in table)


def from_zero(row, micro_batches):
    """torch 2.13 numbers the last rank's forwards of its 1F1B from 1; it runs them from 0."""
    if [action.micro_batch for action in row if action.kind == 'F'] != list(range(1, micro_batches + 1)):
        return row
    return tuple(
        parse_action(f'{action.stage}F{action.micro_batch - 1}') if action.kind == 'F' else action for action in row
    )


@cache
def theirs(name, ranks, micro_batches, chunks):
    """torch's computations, or None where it refuses."""
    try:
        table = rows(visualizer.get_schedule_ops({**SINGLE, **MULTI}[name][0], ranks, micro_batches, chunks))
    except ValueError:
        return None
    table = only(table, SHARDING)
    return (*table[:-1], from_zero(table[-1], micro_batches)) if name == '1f1b' else table


@pytest.mark.parametrize('name', {**SINGLE, **MULTI})
def test_orders_are_torchs(name):
    equal = 0
    for ranks, micro_batches, chunks in points(name):
        expected = theirs(name, ranks, micro_batches, chunks)
        if expected is None:
            continue
        order = named_order(name, ranks, micro_batches, chunks)
        assert order.actions == expected, (name, ranks, micro_batches, chunks)
        equal += 1
    assert 2 * equal >= len(GRID) + 1


@pytest.mark.parametrize('name', MULTI)
def test_what_torch_refuses_is_refused(name):
    refused = 0
    for ranks, micro_batches, chunks in points(name):
        if theirs(name, ranks, micro_batches, chunks) is None:
            refused += 1
            with pytest.raises(ScheduleError, match=f'pipeline order {name}: {micro_batches} micro-batches'):
                named_order(name, ranks, micro_batches, chunks)
    assert refused or name in ('looped-bfs', 'zb-v')


def torchs_communication(order, late=False):
    table = {rank: [schedules._Action.from_str(str(a)) for a in row] for rank, row in enumerate(order.actions)}
    table = schedules._add_send_recv(table, order.placement.__getitem__, order.stages)
    if late:
        table = schedules._defer_recv_ops(table, order.placement.__getitem__)
    return rows(table[rank] for rank in range(order.ranks))


@pytest.mark.parametrize('name', [*SINGLE, *MULTI, 'zb-h1', 'zb-h2', 'mindspore-2.10/seqvpp'])
def test_sends_and_receives_are_torchs(name):
    for ranks, micro_batches in product((1, 2, 3, 4), (4, 8, 9)):
        try:
            order = named_order(name, ranks, micro_batches)
        except ScheduleError:
            continue
        assert with_communication(order).actions == torchs_communication(order)


@pytest.mark.parametrize('name', MULTI)
def test_the_whole_lowering_of_torch_is_met_where_shards_stand_in_the_order(name):
    for ranks, micro_batches in product((2, 3, 4), (8, 9)):
        try:
            placement = named_order(name, ranks, micro_batches).placement
        except ScheduleError:
            continue
        lowered = rows(visualizer.get_schedule_ops(MULTI[name][0], ranks, micro_batches, 2, with_comms=True))
        assert any(action.kind == 'UNSHARD' for action in lowered[0])
        order = Order(only(lowered, COMMUNICATION), placement, micro_batches)
        ours = with_communication(order).actions
        # From 2.15 on a wait for a reduction, which is not read, takes a turn, and receives come one later.
        receives = {'RECV_F', 'RECV_B'}
        parts = (receives, {*KINDS} - receives) if hasattr(schedules, 'WAIT_REDUCE_GRAD') else ((),)
        for left_out in parts:
            assert only(ours, left_out) == only(lowered, left_out)


def test_late_receives_are_torchs_wherever_these_end_though_sends_block():
    same = repaired = 0
    for name, ranks, micro_batches in product([*SINGLE, *MULTI, 'zb-h1', 'zb-h2'], (1, 2, 3, 4), (4, 8, 9)):
        try:
            order = named_order(name, ranks, micro_batches)
        except ScheduleError:
            continue
        deferred = Order(torchs_communication(order, late=True), order.placement, micro_batches)
        if faults(deferred):
            repaired += 1
            assert 'waits for ever' in faults(deferred)[0].what
        else:
            same += 1
            assert with_communication(order, 'late') == deferred
    assert same >= 30
    assert repaired >= 10


@pytest.mark.parametrize('receive', ['early', 'late'])
@pytest.mark.parametrize('name', some([name for name in (*SINGLE, *MULTI) if name != 'dualpipe-v'], 2))
def test_torchs_own_dry_run_ends(name, receive):
    order = with_communication(named_order(name, 4, 8), receive)
    table = {rank: [schedules._Action.from_str(str(a)) for a in row] for rank, row in enumerate(order.actions)}
    assert schedules._simulate_comms_compute(table, order.placement.__getitem__, order.stages)


def runtime(order):
    """torch's runtime with as many stages as the order has on a rank; no process, no model."""
    stage = mock.create_autospec(stages.PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, order.ranks, order.stages, None
    return schedules._PipelineScheduleRuntime([stage] * order.placement.count(0), order.micro_batches)


@pytest.mark.parametrize('name', [*SINGLE, *MULTI, 'zb-h2'])
def test_torch_reads_what_is_written(name, tmp_path):
    order = named_order(name, 4, 8)
    write_csv(order, tmp_path / 'order.csv')
    reader = runtime(order)
    reader._load_csv(str(tmp_path / 'order.csv'), 'compute_only')
    assert rows(reader.pipeline_order[rank] for rank in range(4)) == order.actions

    write_csv(with_communication(order), tmp_path / 'order.csv', waits=hasattr(schedules, 'WAIT_SEND_F'))
    reader = runtime(order)
    reader._load_csv(str(tmp_path / 'order.csv'), 'compute_comms')
    table = reader.pipeline_order_with_comms
    assert rows(table[rank] for rank in range(4)) == with_communication(order).actions


@pytest.mark.parametrize('name', MULTI)
def test_what_torch_writes_is_read(name, tmp_path):
    order = named_order(name, 4, 8)
    writer = runtime(order)
    writer.pipeline_order = dict(enumerate(visualizer.get_schedule_ops(MULTI[name][0], 4, 8, 2)))
    writer._prepare_schedule_with_comms(writer.pipeline_order)
    writer._dump_csv(str(tmp_path / 'order.csv'), 'compute_only')
    assert read_csv(tmp_path / 'order.csv') == order
    writer._dump_csv(str(tmp_path / 'order.csv'), 'compute_comms')
    read = read_csv(tmp_path / 'order.csv')
    assert only(read.actions, COMMUNICATION | SHARDING) == order.actions
    assert read.communicates


WRITTEN = Path(__file__).parent / 'recorded' / 'torch_2_15'
"""What torch 2.15 writes of its schedules on four ranks with eight micro-batches, where it communicates."""


@pytest.mark.parametrize('path', sorted(WRITTEN.glob('*.csv')), ids=lambda path: path.stem)
def test_waits_of_a_newer_torch_are_read_and_written_as_it_does(path, tmp_path):
    read = read_csv(path)
    assert only(read.actions, COMMUNICATION | SHARDING) == named_order(path.stem, 4, 8).actions
    write_csv(read, tmp_path / 'order.csv', waits=True)
    ours, theirs = (
        [line.split(',') for line in one.read_text(encoding='utf-8').splitlines()]
        for one in (tmp_path / 'order.csv', path)
    )
    # torch has put some receives between a reduction and its wait.
    sums = re.compile(r'\d+WAIT_REDUCE_GRAD')
    for mine, yours in zip(ours, theirs, strict=True):
        assert sorted(mine) == sorted(yours)
        assert [one for one in mine if not sums.fullmatch(one)] == [one for one in yours if not sums.fullmatch(one)]


def test_a_table_that_shards_is_said_not_to_be_followed_in_that():
    """When weights are gathered and gradients summed is said by keys of the plan."""
    workload = Workload(model=Transformer(layers=8, hidden=8, heads=2, vocab=12, sequence=4), batch=16)
    plan = Plan(pipeline=4, data=2, micro_batches=8, order='zb-v', chunks=2, zero=3)
    named = lower(workload, plan, 8)
    read = lower(workload, replace(plan, rows=rows_of(read_csv(WRITTEN / 'zb-v.csv'))), 8)
    (note,) = set(read.notes) - set(named.notes)
    assert note.startswith('REDUCE_GRAD, RESHARD, UNSHARD of the order are not followed: plan.zero, plan.gather')
