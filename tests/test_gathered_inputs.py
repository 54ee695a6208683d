"""As the compiler does: a batch in slices is gathered once a step where copies or micro-batches are cut of it."""

from dataclasses import replace

import pytest

from simpar.listing import Listing
from simpar.lower import lower
from simpar.memory import memory
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.workload import Workload

RANKS, BATCH, FEATURES = 4, 32, 16
COMPILER = Plan(redistribution='mindspore-2.10', copies=2)
CUT = ((4, 1), (1, 1))


def network(**stages):
    first = Dense(inputs=FEATURES, outputs=8, bias=False, strategy=CUT)
    second = Dense(inputs=8, outputs=4, bias=False, strategy=CUT, **stages)
    return Workload(model=Network(layers=(first, Relu(), second)), batch=BATCH, loss='mse')


def once(program):
    """Gathers of a role that are done once a step, and how often each result is cut."""
    (role,) = program.roles
    ops = [program.op(role, slot) for slot in range(len(role))]
    gathers = [op for op in ops if op.kind == 'collective' and not program.sliced(op) and op.phase == 'F']
    takes = [op.reads for op in ops if op.operator == 'take']
    return [(op.name, op.bytes, takes.count(op.writes)) for op in gathers]


def test_each_input_is_gathered_once_for_all_copies():
    program = lower(network(), COMPILER, RANKS)
    assert once(program) == [
        ('x.whole.all_gather.F', BATCH * FEATURES * 4.0, 2),
        ('target.whole.all_gather.F', BATCH * 4 * 4.0, 2),
    ]
    assert program.local_shape(program.tensor['x.step']) == (BATCH // RANKS, FEATURES)
    assert program.local_shape(program.tensor['x']) == (BATCH // 2, FEATURES)


@pytest.mark.parametrize(
    'changes',
    [{'redistribution': 'cheapest'}, {'dataset': 'full-batch'}, {'copies': 1}, {'copies': 1, 'micro_batches': 2}],
    ids=str,
)
def test_elsewhere_slices_are_read_as_they_are(changes):
    """Copies of a rank's own samples; whole batches; nothing to cut; micro-batches that are fed one after the other."""
    program = lower(network(), replace(COMPILER, **changes), RANKS)
    assert once(program) == []
    assert 'x.step' not in program.tensor


def test_a_stage_gathers_what_it_reads():
    plan = replace(COMPILER, copies=1, pipeline=2, micro_batches=4)
    program = lower(network(pipeline_stage=1), plan, 2 * RANKS)
    read = [{name for name in held if name.endswith('.step')} for held in program.tensors_of_role]
    assert read == [{'x.step'}, {'target.step'}]
    gather = next(op for op in program.op_classes if op.reads == ('target.step',))
    assert program.partitions[gather.partition].members(5) == (4, 5, 6, 7)


def test_a_batch_that_no_ranks_can_cut_is_read_whole():
    layers = tuple(replace(layer, strategy=()) for layer in network().model.layers)
    workload = Workload(model=Network(layers=layers), batch=6, loss='mse', loss_strategy=((1, 1), (1, 1)))
    assert 'x.step' not in lower(workload, COMPILER, 5).tensor


def test_what_is_gathered_ends_with_its_last_copy():
    from simpar.cost.price import price
    from simpar.engine import simulate

    program = lower(network(), COMPILER, RANKS)
    (role,) = program.roles
    ends = [slot for slot in range(len(role)) if 'x.whole' in program.op(role, slot).frees]
    takes = [slot for slot in range(len(role)) if program.op(role, slot).reads == ('x.whole',)]
    assert ends == [max(takes) + 1]
    hardware = cluster(load_profile('h100-sxm-8'), devices=RANKS)
    peak = memory(simulate(program, price(program, hardware))).peak
    assert peak >= BATCH * FEATURES * 4


def test_the_listing_has_the_gather_at_its_reader():
    listing = Listing(lower(network(), COMPILER, RANKS))
    purposes = [(one['operator'], one['purpose']) for one in listing.collectives('dense0')]
    assert purposes[0] == ('all_gather', 'redistribution')
    assert 'x.take' not in listing.operator
