"""Tiles of a product that take turns on several streams fill a device together."""

from dataclasses import replace

import pytest

from simpar.cost.compute import DeviceCompute, StackCompute
from simpar.cost.price import Pricer
from simpar.hardware.profile import TimeFigure
from simpar.hardware.stack import Launches, TileCall, TileStreams
from simpar.lower import lower
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile, load_stack
from simpar.workload import Transformer, Workload

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
