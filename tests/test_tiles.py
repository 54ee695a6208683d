"""Tiles of a product and the collective next to it: which ops there are, how they lie, what they gain and lose."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tile_cases import by_work, tiles_in

from simpar.cli import main
from simpar.engine import simulate
from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.model import Dense, Network
from simpar.plans import Plan
from simpar.schedule import load_schedule
from simpar.workload import Transformer, Workload

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


def names(program, role=0):
    return [op.name for op in ops_of(program, role)]


def spans(program, costs):
    """Op → (start, end) on the first rank, in the last step."""
    return {span.op.name: (span.start, span.end) for span in simulate(program, costs, steps=1).spans(0)}


# which ops


def test_one_tile_is_no_tile():
    assert lower(GPT, Plan(tensor=4, tiles=1), 4).hash == lower(GPT, Plan(tensor=4), 4).hash


def test_a_gather_is_issued_behind_each_product_as_far_as_there_are_more_tiles():
    """One work queue holds up a product behind all gathers that were issued before it."""
    mine = names(lower(GPT, replace(SEQUENCE, tiles=4), 4))
    tiles = [name for name in mine if name.startswith(('layer0.norm1.whole.tile', 'layer0.qkv.tile')) and '.F' in name]
    kinds = ''.join('g' if 'all_gather' in name else 'p' for name in tiles)
    assert kinds == 'ggpgpgpp'


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


def test_of_an_all_reduce_the_tiles_are_products_and_sums_in_turn():
    program = lower(PAIR, Plan(tensor=2, tiles=2), 2)
    assert names(program)[:7] == [
        'dense0.F',
        'dense1.tile0.F',
        'dense1.tile0.all_reduce.F',
        'dense1.tile1.F',
        'dense1.tile1.all_reduce.F',
        'dense1.join.F',
        'loss.F',
    ]
    first, message = ops_of(program)[1], ops_of(program)[2]
    assert first.dims == {'m': 8, 'n': 8, 'k': 8}
    assert first.bytes == 4 * (8 * 8 + 8 * 8 + 8 * 8)
    assert message.bytes == 4 * 8 * 8


def test_of_a_gather_the_tiles_are_gathers_and_then_products():
    """With sequence parallelism: forward of column-cut products, backward of row-cut ones, whose gathered gradients are
    joined for the weight's."""
    program = lower(GPT, replace(SEQUENCE, tiles=2), 4)
    mine = names(program)
    assert [name for name in mine if name.startswith(('layer0.norm1', 'layer0.qkv')) and name.endswith('.F')] == [
        'layer0.norm1.F',
        'layer0.norm1.split.F',
        'layer0.norm1.whole.tile0.all_gather.F',
        'layer0.norm1.whole.tile1.all_gather.F',
        'layer0.qkv.tile0.F',
        'layer0.qkv.tile1.F',
        'layer0.qkv.join.F',
    ]
    products = [place for place, name in enumerate(mine) if name.startswith('layer1.fc2.tile') and name.endswith('.I')]
    assert len(products) == 2
    weight = next(op for op in program.op_classes if op.name == 'layer1.fc2.W')
    join = next(op for op in program.op_classes if op.operator == 'join' and op.writes[0] == weight.reads[0])
    assert products[-1] < mine.index(join.name) < mine.index('layer1.fc2.W')


@pytest.mark.parametrize('plan', [Plan(tensor=4), SEQUENCE], ids=['all-reduce', 'sequence parallel'])
def test_every_product_next_to_a_collective_is_cut_and_no_gradient_of_a_weight(plan):
    counts = Counter((op.operator, op.phase) for op in ops_of(lower(GPT, replace(plan, tiles=2), 4)))
    whole = Counter((op.operator, op.phase) for op in ops_of(lower(GPT, plan, 4)))
    layers, both = 2, plan.sequence_parallel
    forward, backward = (4 * layers + 1, 4 * layers + 1) if both else (2 * layers, 2 * layers + 1)
    assert counts['matmul', 'F'] - whole['matmul', 'F'] == forward
    assert counts['matmul', 'I'] - whole['matmul', 'I'] == backward
    assert counts['matmul', 'W'] == whole['matmul', 'W']


def test_a_weight_gradient_fills_under_the_last_tile():
    """It stands between the last tile's sum and what waits for it."""
    mine = names(lower(GPT, Plan(tensor=4, tiles=2), 4))
    at = [mine.index(f'layer1.{part}') for part in ('qkv.tile0.I', 'qkv.tile1.I', 'qkv.W')]
    last = next(place for place in range(at[1], len(mine)) if mine[place].endswith('tile1.all_reduce.I'))
    join = next(place for place in range(at[1], len(mine)) if '.join.' in mine[place])
    assert at[0] < at[1] < last < at[2] < join


def test_what_runs_again_is_in_tiles_too():
    program = lower(GPT, Plan(tensor=4, tiles=2, recompute='full'), 4)
    again = [op for op in program.op_classes if op.name.startswith('layer0.fc2') and 'recompute' in op.attributes]
    assert sorted(op.name for op in again) == [
        'layer0.fc2.join.F.recompute',
        'layer0.fc2.tile0.F.recompute',
        'layer0.fc2.tile0.all_reduce.F.recompute',
        'layer0.fc2.tile1.F.recompute',
        'layer0.fc2.tile1.all_reduce.F.recompute',
    ]


def test_products_cut_by_strategies_have_tiles_too():
    layer = Dense(inputs=8, outputs=8, bias=False, strategy=((2, 4), (4, 1)), name='matmul')
    workload = Workload(model=Network(layers=(layer,)), batch=8, loss='mse')
    program = lower(workload, Plan(tiles=2), 8)
    tiles = [op for op in program.op_classes if op.name.startswith('matmul.tile') and op.phase == 'F']
    assert [op.operator for op in tiles] == ['matmul', 'all_reduce'] * 2
    assert {tuple(program.partitions[op.partition].members(0)) for op in tiles if op.partition} == {(0, 1, 2, 3)}


# what does not divide


def test_rows_are_cut_along_the_batch_or_else_along_the_sequence():
    def shape(batch, copies=1):
        program = lower(replace(GPT, batch=batch), Plan(tensor=4, tiles=2, copies=copies), 4)
        return program.tensor['layer0.fc2.partial.tile0'].shape

    assert shape(4) == (2, 8, 32)
    assert shape(4, copies=2) == (2, 8, 32)
    assert shape(2, copies=2) == (2, 4, 32)
    assert shape(1) == (1, 4, 32)


def test_along_a_sequence_that_the_collective_cuts_tiles_lie_in_blocks():
    """A tile has rows of every rank's slice, so that a reduce-scatter gives each rank its own."""
    program = lower(replace(GPT, batch=1), replace(SEQUENCE, tiles=2), 4)
    tile = next(op for op in program.op_classes if op.name == 'layer0.fc2.tile1.F')
    assert tile.attributes['tile_blocks'] == 4
    assert program.local_shape(program.tensor['layer0.fc2.tile0']) == (1, 1, 32)
    joins = {op.name: op.attributes['blocks'] for op in program.op_classes if op.operator == 'join'}
    assert joins['layer0.fc2.join.F'] == 1
    assert joins['layer0.qkv.join.F'] == 4


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


def test_a_schedule_file_has_tiles_and_passes(tmp_path):
    path = tmp_path / 'schedule.yaml'
    path.write_text(FILE)
    plan = load_schedule(path).plan
    assert plan.tiles == 2
    assert plan.overlap == ('matmul_grad_comm_overlap', 'recompute_comm_overlap')
    assert load_schedule(path, ['plan.overlap=default']).plan.overlap == 'default'


def test_check_lists_strategies_of_whole_products_and_that_there_are_tiles(capsys):
    example = str(Path(__file__).parent.parent / 'examples' / 'sharding_propagation.yaml')

    def told(*settings):
        assert main(['check', example, *settings]) == 0
        return capsys.readouterr().out

    whole, tiled = told(), told('--set', 'plan.tiles=2')
    listed = [text[text.index('strategies:') : text.index('collectives of a step')] for text in (whole, tiled)]
    assert listed[0] == listed[1]
    assert 'simulated and executable: strategies of operators, tiles 2' in tiled
