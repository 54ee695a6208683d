"""Tiles of a product and the collective next to it: which ops there are, how they lie, what they gain and lose."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tile_cases import by_work, tiles_in

from simpar import Plan, Transformer, Workload, load_schedule, simulate
from simpar.cost.compute import DeviceCompute, StackCompute
from simpar.cost.price import Pricer
from simpar.hardware.profile import TimeFigure
from simpar.hardware.stack import Launches, TileCall, TileStreams
from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.model import Dense, Network
from simpar.profiles import cluster, load_profile, load_stack

GPT = Workload(model=Transformer(layers=2, hidden=32, heads=4, vocab=64, sequence=8), batch=4, precision='fp16')
PAIR = Workload(
    model=Network(layers=(Dense(inputs=8, outputs=16, bias=False), Dense(inputs=16, outputs=8, bias=False))),
    batch=16,
    loss='mse',
)
"""A column-cut product and a row-cut one, whose sum is the only one: x needs no gradient."""
SEQUENCE = Plan(tensor=4, sequence_parallel=True)


def ops_of(program, role=0):
    of = program.roles[role]
    return [program.op(of, slot) for slot in range(len(of))]


def spans(program, costs):
    """Op → (start, end) on the first rank, in the last step."""
    return {span.op.name: (span.start, span.end) for span in simulate(program, costs, steps=1).spans(0)}


# which ops


def test_one_tile_is_no_tile():
    assert lower(GPT, Plan(tensor=4, tiles=1), 4).hash == lower(GPT, Plan(tensor=4), 4).hash


@pytest.mark.parametrize('tiles', [2, 4])
@pytest.mark.parametrize(
    'plan', [Plan(tensor=4), SEQUENCE, replace(SEQUENCE, copies=2), Plan(tensor=4, recompute='full')], ids=str
)
def test_tiles_change_neither_work_nor_bytes(plan, tiles):
    """Operations and bytes of messages are those of the whole; weights are read once for each tile."""

    def totals(plan):
        ops = ops_of(lower(GPT, plan, 4))
        sent = Counter()
        for op in ops:
            sent[op.operator, op.phase] += op.bytes * (op.kind == 'collective')
        return sum(op.flops for op in ops if op.kind == 'compute'), sent - Counter()

    assert totals(replace(plan, tiles=tiles)) == totals(plan)


# what does not divide


def test_what_does_not_divide_stays_whole_with_one_note_for_all_that_is_alike():
    odd = replace(GPT, batch=1, model=replace(GPT.model, sequence=9, vocab=63))
    program = lower(odd, Plan(tensor=4, tiles=2), 4)
    assert tiles_in(program) == 0
    mine = [note for note in program.notes if 'tiles' in note]
    assert [note.partition(' is not')[0] for note in mine[:-1]] == [
        'layer*.proj.F', 'layer*.fc2.F', 'layer*.fc1.I', 'layer*.qkv.I'
    ]  # fmt: skip
    assert mine[0].endswith('neither its batch nor its sequence on a rank divides by tiles 2')
    assert mine[-1].startswith('tiles 2: nothing is split')


def test_without_communication_nothing_is_cut_and_a_note_says_so():
    program = lower(GPT, Plan(data=4, tiles=2), 4)
    assert program.op_classes == lower(GPT, Plan(data=4), 4).op_classes
    assert [note for note in program.notes if 'tiles' in note] == [
        'tiles 2: nothing is split, as no product that divides stands next to its sum or gather'
    ]


# seconds and bytes


@pytest.mark.parametrize('tiles', [1, 2, 4])
@pytest.mark.parametrize('rate', [4.0, 16.0, 64.0])
def test_a_product_and_its_sum_take_as_long_as_a_pipeline_of_two(tiles, rate):
    """p / k + (k − 1) · max(p, c) / k + c / k, for seconds p of the product and c of the sum."""
    program = lower(PAIR, Plan(tensor=2, tiles=tiles), 2)
    product, message = 2 * 16 * 8 * 8 * 2.0**-20, 4 * 16 * 8 * rate * 2.0**-20
    found = spans(program, by_work(program, rate))
    mine = [span for name, span in found.items() if name.startswith('dense1') and name.endswith('.F')]
    took = max(end for _, end in mine) - min(start for start, _ in mine)
    assert took == (product + message + (tiles - 1) * max(product, message)) / tiles


@pytest.mark.parametrize('tiles', [2, 4])
def test_every_message_pays_its_latency(tiles):
    program = lower(PAIR, Plan(tensor=2, tiles=tiles), 2)
    found = spans(program, by_work(program, rate=4.0, each=1.0))
    sums = [end - start for name, (start, end) in found.items() if 'all_reduce' in name]
    assert len(sums) == tiles
    assert sum(sums) == tiles + 4 * 16 * 8 * 4.0 * 2.0**-20


def test_views_cost_nothing_and_tiles_hold_no_more_than_the_whole():
    """At a join its tiles are handed over at once; what is gathered is split beside its source."""
    whole, tiled = (lower(GPT, Plan(tensor=4, tiles=tiles), 4) for tiles in (1, 2))
    costs = by_work(tiled)
    views = [index for index, op in enumerate(tiled.op_classes) if op.operator in ('join', 'split')]
    assert views
    assert np.flatnonzero(costs.compute[views]).size == 0
    peaks = [memory(simulate(program, by_work(program))).peak for program in (whole, tiled)]
    assert peaks[1] <= peaks[0]


@pytest.mark.parametrize('plan', [Plan(tensor=4), SEQUENCE, replace(SEQUENCE, copies=2)], ids=str)
def test_nothing_of_tiles_is_left_over(plan):
    line = [memory(sequential(lower(GPT, replace(plan, tiles=tiles), 4))).ranks[0] for tiles in (1, 2)]
    ends = [rank.by_kind().at(0.0) for rank in line]
    assert {kind: size for kind, size in ends[1].items() if kind != 'input'} == {
        kind: size for kind, size in ends[0].items() if kind != 'input'
    }


# what users write

FILE = """
simpar: 1
cluster: h100-sxm-8
workload:
  transformer: {layers: 2, hidden: 256, heads: 8, vocab: 512, sequence: 64}
  batch: 8
plan: {tensor: 8, tiles: 2, overlap: [matmul_grad_comm_overlap, recompute_comm_overlap]}
"""


def test_a_schedule_file_has_tiles_and_passes(put):
    path = put('schedule.yaml', FILE)
    plan = load_schedule(path).plan
    assert plan.tiles == 2
    assert plan.overlap == ('matmul_grad_comm_overlap', 'recompute_comm_overlap')
    assert load_schedule(path, ['plan.overlap=default']).plan.overlap == 'default'


def test_check_lists_strategies_of_whole_products_and_that_there_are_tiles(printed):
    example = str(Path(__file__).parent.parent / 'examples' / 'sharding_propagation.yaml')

    def told(*settings):
        return printed('check', example, *settings)

    whole, tiled = told(), told('--set', 'plan.tiles=2')
    listed = [text[text.index('strategies:') : text.index('collectives of a step')] for text in (whole, tiled)]
    assert listed[0] == listed[1]
    assert 'simulated and executable: strategies of operators, tiles 2' in tiled


# Tiles of a product that take turns on several streams fill a device together


A100 = load_profile('a100-sxm-8')
WORK = Workload(model=Transformer(layers=1, hidden=4096, heads=32, vocab=512, sequence=2048), batch=1, precision='bf16')
PLAN = Plan(tensor=8, sequence_parallel=True, tiles=8)


def on(streams):
    turns = TileStreams(count=streams, source='a test') if streams else None
    return replace(load_stack('eager'), tile_streams=turns, launches={})


def priced(streams):
    """Seconds of the products of a layer by name, on so many streams."""
    program = lower(WORK, PLAN, 8)
    costs = Pricer(program, cluster(A100, devices=8, stack=on(streams))).costs()
    products = {op.name: costs.compute[at] for at, op in enumerate(program.op_classes) if op.operator == 'matmul'}
    return program, products


def test_small_tiles_side_by_side_are_a_share_of_one_product_of_their_rows():
    program, products = priced(3)
    bare, tile = DeviceCompute(A100), next(op for op in program.op_classes if op.name == 'layer0.fc1.tile0.F')
    alone = StackCompute(bare, A100, on(None))
    wide = replace(tile, dims={**tile.dims, 'm': 3 * tile.dims['m']}, flops=3 * tile.flops, bytes=3 * tile.bytes)
    assert products[tile.name] == pytest.approx(alone.seconds(wide).seconds / 3, rel=1e-6)
    assert products[tile.name] < 0.9 * alone.seconds(tile).seconds
    assert '3 tiles side by side' in StackCompute(bare, A100, on(3)).seconds(tile).why


def test_no_tile_is_slower_for_it_and_whole_products_are_as_they_were():
    (_, alone), (_, one), (_, three) = (priced(streams) for streams in (None, 1, 3))
    assert alone == one
    assert all(three[name] <= alone[name] for name in alone)
    apart = [name for name in alone if '.tile' not in name]
    assert apart
    assert all(three[name] == alone[name] for name in apart)


def test_there_are_no_more_side_by_side_than_a_sum_has_tiles():
    program = lower(WORK, replace(PLAN, tiles=2), 8)
    tile = next(op for op in program.op_classes if op.name == 'layer0.fc2.tile0.F')
    assert StackCompute(DeviceCompute(A100), A100, on(3)).side_by_side(tile) == 2


def test_which_stacks_have_them():
    counts = {name: load_stack(name).tile_streams.count for name in ('megatron-te', 'torch-compile', 'mindspeed')}
    assert counts == {'megatron-te': 3, 'torch-compile': 2, 'mindspeed': 1}
    assert load_stack('megatron-2021').tile_streams is None


def hosts(tile_call, tiles):
    """Seconds of the host for a layer's fc1 forward with its gather, on a stack whose product takes it 23 launches."""
    product = {'matmul.F': Launches(kernels=1, calls=22, source='a test')}
    stack = replace(load_stack('eager'), tile_call=tile_call, launches=product)
    program = lower(WORK, replace(PLAN, tiles=tiles), 8)
    costs = Pricer(program, cluster(A100, devices=8, stack=stack)).costs()
    mine = [at for at, op in enumerate(program.op_classes) if op.name.startswith('layer0.fc1.') and op.phase == 'F']
    return sum(costs.host[at] for at in mine if program.op_classes[at].operator == 'matmul')


def test_one_call_issues_all_tiles_of_a_product():
    """Transformer Engine goes over tiles in C++; where each tile is a call of Python, each pays for it."""
    each = TimeFigure(value=3e-6, source='a test', grade='estimate')
    call = TileCall(each=each, product=1, message=5, source='a test')
    whole = hosts(call, 1)
    assert hosts(None, 8) == pytest.approx(8 * whole, rel=1e-6)
    assert hosts(call, 8) == pytest.approx(whole + 7 * 3e-6, rel=1e-6)


def test_which_stacks_issue_tiles_by_one_call():
    assert load_stack('megatron-te').tile_call == load_stack('megatron-core').tile_call
    assert load_stack('megatron-te').tile_call.message == 5
    assert [load_stack(name).tile_call for name in ('mindspeed', 'torch-compile', 'eager')] == [None] * 3
