"""Growing: programs of many equal layers, made of few of them, are those that lowering every layer makes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grow_cases import compared

from simpar.case import choices, cluster_of
from simpar.lower import lower
from simpar.lower.grow import few_layers
from simpar.lower.period import Layers, NotPeriodic, Rows, grown
from simpar.memory import memory
from simpar.model.library.experts import Experts
from simpar.plan import Plan
from simpar.predict import predict
from simpar.program.rows import LazyRows
from simpar.sweep import load_sweep
from simpar.workload import Transformer, Workload

EXAMPLES = Path(__file__).parent.parent / 'examples'
SEEDS = 40
MODEL = Transformer(layers=16, hidden=24, heads=4, vocab=24, sequence=12)
WORKLOAD = Workload(model=MODEL, batch=24)


def test_random_plans_grow_to_the_program_of_all_layers():
    found = [compared(seed) for seed in range(SEEDS)]
    assert 'unequal' not in found
    # Most of those that may grow do: else equality would mean little.
    assert found.count('equal') > SEEDS // 4


def test_rows_of_the_sweep_grow():
    rows = load_sweep(EXAMPLES / 'transformer_h100_7b.yaml').rows[::7]
    for row in rows:
        hardware = cluster_of(row.schedule)
        found, plan = choices(row.schedule, hardware)
        program = lower(found.workload, plan, hardware.world)
        assert isinstance(program.op_classes, LazyRows)
        assert program.hash == lower(found.workload, plan, hardware.world, grow=False).hash


@pytest.mark.parametrize(
    'changes',
    [
        {'pipeline': 2, 'micro_batches': 2},
        {'fusion': (3,)},
        {'fusion': 'ids', 'fusion_ids': (1,) * 19},
        {'recompute': ('layer1*.gelu',)},
        {'recompute': ('layer?.gelu',)},
        {'unsharded': ('layer[0-5].fc1.weight',), 'zero': 3},
        {'strategies': {'layer3.fc1': ((1, 1, 1), (1, 1))}},
        {'prefetch': 5, 'zero': 3},
    ],
)
def test_plans_that_tell_layers_apart_do_not_grow(changes):
    assert few_layers(WORKLOAD, replace(Plan(data=2), **changes)) is None


EXPERTS = {'count': 4, 'top_k': 2, 'ffn': 16}


@pytest.mark.parametrize(
    'changes',
    [
        {'experts': Experts(**EXPERTS, first_dense=3)},
        {'experts': Experts(**EXPERTS, first_dense=15)},
        {'experts': Experts(**EXPERTS, every=4)},
        {'experts': Experts(**EXPERTS, every=5)},
        {'window': (4, 4, 4, 4, 4, 0)},
        {'window': (4, 0)},
    ],
)
def test_models_whose_later_layers_are_of_another_kind_do_not_grow(changes):
    """The few layers that would be lowered show nothing of those kinds: the program would have lost them."""
    work = replace(WORKLOAD, model=replace(MODEL, **changes))
    assert few_layers(work, Plan(data=2)) is None
    assert lower(work, Plan(data=2), 2).hash == lower(work, Plan(data=2), 2, grow=False).hash


def test_a_mixture_behind_its_first_dense_layer_grows_to_the_program_of_all_layers():
    work = replace(WORKLOAD, model=replace(MODEL, experts=Experts(**EXPERTS, first_dense=1)))
    assert few_layers(work, Plan(data=2)) is not None
    assert lower(work, Plan(data=2), 2).hash == lower(work, Plan(data=2), 2, grow=False).hash


def test_patterns_that_cannot_tell_layers_apart_grow():
    for pattern in ('layer*.norm1', '*.fc1.bias', '*gelu', 'layer*.norm?'):
        assert few_layers(WORKLOAD, Plan(data=2, recompute=(pattern,))) is not None


def test_a_message_that_fills_up_is_not_one_of_all_layers():
    """Of the few layers that are lowered all gradients are one message, of all layers they are several."""
    parameters = 12 * MODEL.hidden**2 * 4
    plan = Plan(data=2, fusion=6.0 * parameters)
    program = lower(WORKLOAD, plan, 2)
    assert not isinstance(program.op_classes, LazyRows)
    assert sum(op.name.startswith('bucket') for op in program.op_classes) > 1


def test_weights_that_one_op_reads_are_gathered_in_the_order_of_their_buckets():
    """A product's weight and bias are in two buckets: 9 and 10, which letters would put the other way round."""
    plan = Plan(data=2, zero=3, fusion=1.0, unsharded=('position.weight',))
    program = lower(WORKLOAD, plan, 2, grow=False)
    names = [op.name for op in program.op_classes if op.operator == 'all_gather' and op.phase == 'F']
    numbers = [int(name.removeprefix('bucket').partition('.')[0]) for name in names]
    assert len(numbers) > 100
    assert numbers == sorted(numbers)


# periods


def rows_of(*told):
    """Rows of (key, layer); -1 is no layer."""
    return Rows(*np.array(told, dtype=np.int64).T)


def grown_by(rows, count, edge=1, more=2):
    return list(zip(*(column.tolist() for column in grown(rows, Layers(count, edge, more))), strict=True))


def test_layers_that_rise_and_fall():
    rise = [(key, layer) for layer in range(4) for key in (0, 1)]
    fall = [(key, layer) for layer in reversed(range(4)) for key in (3, 4)]
    expected = [(2, -1), *((key, layer) for layer in range(6) for key in (0, 1))]
    expected += [(key, layer) for layer in reversed(range(6)) for key in (3, 4)]
    assert grown_by(rows_of((2, -1), *rise, *fall), 4) == expected


def test_what_is_issued_a_layer_ahead_stays_ahead():
    """Key 1 stands before key 0 of the layer before its own."""

    def issued(layers):
        ahead = [row for layer in range(layers - 1) for row in ((1, layer + 1), (0, layer))]
        return [(1, 0), *ahead, (0, layers - 1)]

    assert grown_by(rows_of(*issued(5)), 5, more=4) == issued(9)


def test_the_last_layers_count_from_the_end():
    rows = [(0, 0), (1, 0), *((0, layer) for layer in (1, 2, 3)), (2, 3)]
    assert grown_by(rows_of(*rows), 4) == [(0, 0), (1, 0), *((0, layer) for layer in (1, 2, 3, 4, 5)), (2, 5)]


@pytest.mark.parametrize(
    'rows',
    [
        # A row of its own between layers.
        [(0, 0), (0, 1), (1, -1), (0, 2), (0, 3)],
        # A key of one layer in the middle.
        [(0, 0), (0, 1), (1, 1), (0, 2), (0, 3)],
        # Two keys that pass each other.
        [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3)],
        # One key twice.
        [(0, 0), (0, 1), (0, 1), (0, 2), (0, 3)],
    ],
)
def test_uneven_rows_are_refused(rows):
    with pytest.raises(NotPeriodic):
        grown(rows_of(*rows), Layers(4, 1, 2))


# what follows from a grown program


def test_grown_programs_predict_what_full_ones_do():
    schedule = load_sweep(EXAMPLES / 'transformer_h100_7b.yaml').rows[-1].schedule
    hardware = cluster_of(schedule)
    found, plan = choices(schedule, hardware)
    lazy, full = (lower(found.workload, plan, hardware.world, grow=grow) for grow in (True, False))
    one, other = (predict(program, None, hardware) for program in (lazy, full))
    assert one.step == other.step
    assert one.metrics.steady == other.metrics.steady
    assert [rank.peak for rank in memory(one.trace).ranks] == [rank.peak for rank in memory(other.trace).ranks]
    assert one.grades == other.grades


def test_rows_that_are_alike_differ_in_names_alone():
    program = lower(WORKLOAD, Plan(data=2, zero=3), 2)
    assert isinstance(program.op_classes, LazyRows)
    assert isinstance(program.tensors, LazyRows)
    for op, like in zip(program.op_classes, program.op_classes.like.tolist(), strict=True):
        other = program.op_classes[like]
        assert op.cost_key == other.cost_key
        assert [len(names) for names in (op.reads, op.writes, op.accumulates, op.frees)] == [
            len(names) for names in (other.reads, other.writes, other.accumulates, other.frees)
        ]
    for tensor, like in zip(program.tensors, program.tensors.like.tolist(), strict=True):
        assert replace(program.tensors[like], name=tensor.name, like=tensor.like, members=tensor.members) == tensor
    assert len(set(program.op_classes.like.tolist())) < len(program.op_classes) // 2


def test_numbers_of_tensors_are_those_of_names():
    program = lower(WORKLOAD, Plan(data=2, zero=2), 2)
    again = program.replace(op_classes=tuple(program.op_classes), tensors=tuple(program.tensors))
    assert np.array_equal(program.named.start, again.named.start)
    assert np.array_equal(program.named.item, again.named.item)
    assert program.is_sliced.tolist() == [again.sliced(op) for op in again.op_classes]
    assert program.sizes.tolist() == [again.local_bytes(tensor) for tensor in again.tensors]


def test_a_recording_stays_as_it_is():
    """Plans that share a recording change the tape, each its own."""
    plans = [Plan(data=2, recompute=how, zero=zero) for how in ('none', 'full') for zero in (0, 3)]
    first = [lower(WORKLOAD, plan, 2).hash for plan in plans]
    assert [lower(WORKLOAD, plan, 2).hash for plan in plans] == first
    assert len(set(first)) == len(plans)
