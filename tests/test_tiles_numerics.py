"""Plans in tiles, with any overlap passes, train as torch does unsharded: to 1e-10 in fp64 in process, and on gloo."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from every import draws
from hypothesis import given
from hypothesis import strategies as st
from pipeline_cases import left_over
from sabotage import change_ops
from tile_cases import PASSES, tiled_case
from trains import trains

from executor.kernels.linear import chunk_of, join_chunks
from executor.numerics import check
from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.model import Add, Dense, Network, RmsNorm
from simpar.plans import Plan
from simpar.workload import Sgd, Transformer, Workload

CASES = 72
STAYS = {'loss', 'gradients.squares', 'gradients.overflow'}
case = cache(tiled_case)
GPT = Workload(
    model=Transformer(layers=2, hidden=16, heads=4, vocab=24, sequence=8, init_std=0.2),
    batch=4,
    optimizer=Sgd(learning_rate=0.05),
)


def test_the_plans_cover_every_choice():
    plans = [(case(seed)[1], case(seed)[0]) for seed in range(CASES)]
    assert {plan.tiles for plan, _ in plans} == {2, 3, 4}
    assert {name for plan, _ in plans for name in plan.overlap if len(plan.overlap) < 5} == set(PASSES)
    assert {(plan.copies > 1, plan.pipeline > 1) for plan, _ in plans} == {(a, b) for a in (0, 1) for b in (0, 1)}
    assert {plan.reduce for plan, _ in plans} == {'early', 'late'}
    assert {plan.sequence_parallel for plan, w in plans if isinstance(w.model, Transformer)} == {False, True}
    assert {bool(plan.zero or plan.hsdp != 'off') for plan, _ in plans} == {False, True}
    assert {plan.recompute == 'none' for plan, _ in plans} == {False, True}
    ops = [op for seed in range(CASES) for op in case(seed)[3].op_classes]
    blocks = {op.attributes['blocks'] for op in ops if 'blocks' in op.attributes}
    assert {1, 2, 3, 4} <= blocks


@draws(60)
@given(dim=st.integers(0, 1), tiles=st.integers(1, 4), blocks=st.integers(1, 4), rows=st.integers(1, 3))
def test_tiles_put_together_are_the_whole(dim, tiles, blocks, rows):
    shape = [5, 5, 3]
    shape[dim] = tiles * blocks * rows
    full = torch.arange(shape[0] * shape[1] * shape[2]).reshape(shape)
    parts = [chunk_of(full, dim, tile, tiles, blocks) for tile in range(tiles)]
    assert {part.shape[dim] for part in parts} == {blocks * rows}
    assert torch.equal(join_chunks(parts, dim, blocks), full)


def test_tiles_of_what_two_collectives_gather_are_split_once():
    """Two layers read one value in two layouts, each by a gather of its own."""
    layers = (
        RmsNorm(strategy=((4, 1), (1,)), name='norm'),
        Dense(inputs=8, outputs=8, strategy=((1, 1), (1, 4)), of='norm', name='gate'),
        Dense(inputs=8, outputs=8, strategy=((2, 1), (1, 2)), of='norm', name='up'),
        Add(of=('gate', 'up')),
    )
    workload = Workload(model=Network(layers=layers, input=(8,), init_std=0.3), batch=16, loss='mse')
    program = lower(workload, Plan(tiles=2), 4)
    gathers = [op for op in program.op_classes if op.operator == 'all_gather']
    read = [op.reads[0] for op in gathers if op.reads[0].startswith('norm')]
    assert sorted(read) == ['norm.tile0', 'norm.tile0', 'norm.tile1', 'norm.tile1']
    assert sum(op.name == 'norm.split.F' for op in program.op_classes) == 1
    check(program, workload, Plan(tiles=2))
    assert left_over(program) <= STAYS


# What is wrong is found wrong.


@pytest.mark.parametrize(
    ('batch', 'name', 'attributes'),
    [
        (4, 'layer0.proj.tile1.F', {'tile': 0}),
        (4, 'layer1.fc1.tile0.I', {'tile': 1}),
        (1, 'layer0.proj.tile0.F', {'tile_blocks': 1}),
    ],
    ids=['the same rows twice', 'in the backward', 'rows of other ranks'],
)
def test_other_rows_are_found(batch, name, attributes):
    plan = Plan(tensor=2, tiles=2, sequence_parallel=batch == 1)
    workload = replace(GPT, batch=batch)
    program = trains(workload, plan, 2)
    with pytest.raises(NumericsWrong):
        check(change_ops(program, name, attributes=attributes), workload, plan)


# on gloo

WORLD, STEPS = 4, 2
