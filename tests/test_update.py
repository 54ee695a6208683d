"""Updates and what they wait for: bytes and states of every rule, the norm over all ranks, and where it stands."""

from dataclasses import replace

import numpy as np
import pytest
from plain_costs import plain_costs
from tables import load_table

from simpar import Plan, load_schedule, simulate
from simpar.critical_path import critical_path
from simpar.lower import lower
from simpar.memory import memory, sequential
from simpar.model import Dense, Network
from simpar.workload import Adam, AdamW, Momentum, Sgd, Transformer, Workload

NORM = 'gradients.all_reduce.U'
MLP = Workload(
    model=Network(layers=(Dense(inputs=8, outputs=16), Dense(inputs=16, outputs=8, bias=False))), batch=16, loss='mae'
)
GPT = Workload(
    model=Transformer(layers=4, hidden=16, heads=4, vocab=32, sequence=8, tied=True),
    batch=16,
    precision='fp16',
    optimizer=AdamW(master_weights=True),
    clip_norm=1.0,
)
PIPELINE = Plan(pipeline=2, data=2, tensor=2, micro_batches=2)


def names(program, role):
    """The ops of a role in issue order."""
    return [program.op(role, slot).name for slot in range(len(role))]


@pytest.mark.parametrize(
    ('optimizer', 'precision', 'moved', 'states'),
    [
        (Sgd(), 'fp32', 3 * 4, 0),
        (Sgd(master_weights=True), 'fp16', 2 + 2 * 4 + 2, 4),
        (Momentum(), 'fp32', 5 * 4, 4),
        (Momentum(weight_decay=0.1, nesterov=True), 'fp16', 3 * 2 + 2 * 4, 4),
        (Momentum(master_weights=True), 'bf16', 2 + 4 * 4 + 2, 8),
        (Adam(), 'fp32', 7 * 4, 8),
        (AdamW(), 'fp32', 7 * 4, 8),
        (AdamW(master_weights=True), 'fp16', 2 + 6 * 4 + 2, 12),
        # MindSpeed's docs of reuse-fp32-param: two bytes less of each weight; of o2-optimizer: four.
        (AdamW(master_weights='shared'), 'bf16', 2 + 4 * 4 + 2 * 2 + 2 * 2, 12 - 2),
        (AdamW(master_weights=True, moments='bf16'), 'bf16', 2 + 4 * 2 + 2 * 4 + 2, 12 - 4),
    ],
)
def test_bytes_of_an_element(optimizer, precision, moved, states):
    """Gradient, weight and states read, weight and states written; where there is a master, it is read, not the
    weight."""
    program = lower(replace(MLP, optimizer=optimizer, precision=precision), Plan(), 1)
    update = next(op for op in program.op_classes if op.name == 'dense0.update.U')
    assert update.bytes == moved * (8 * 16 + 16)
    held = memory(sequential(program)).ranks[0].by_kind()
    most = dict(zip(held.names, held.bytes.max(axis=0).tolist(), strict=True))
    assert most['state'] == states * (8 * 16 + 16 + 16 * 8)


# Norm and finite check


def test_every_element_counts_once():
    """Over all ranks, elements divided by the ranks that hold them are the parameters; both ends hold the tied one."""
    program = lower(GPT, PIPELINE, 8)
    total = 0.0
    for rank in range(8):
        role = program.role(rank)
        look = program.op(role, names(program, role).index(NORM) - 1)
        for name, ranks in zip(look.reads, look.attributes['ranks'].split(), strict=True):
            total += np.prod(program.local_shape(program.tensor[name])) / int(ranks)
    assert total == sum(np.prod(tensor.shape) for tensor in program.tensors if tensor.kind == 'parameter')


def test_a_rank_without_parameters_takes_part():
    plan = Plan(pipeline=3, micro_batches=2, stages=(2, 0, 2))
    program = lower(GPT, plan, 3)
    assert names(program, program.roles[1])[-2:] == ['gradients.square_sum.none.U', NORM]
    assert {names(program, role).count(NORM) for role in program.roles} == {1}


def test_reading_all_gradients_costs_their_bytes():
    program = lower(replace(MLP, precision='fp16', gradients='fp32', clip_norm=1.0), Plan(data=2), 2)
    look = next(op for op in program.op_classes if op.operator == 'square_sum')
    assert look.bytes == 4 * (8 * 16 + 16 + 16 * 8)


def test_the_norm_stands_on_the_critical_path():
    """Nothing hides its message: the step is longer by exactly what it takes."""
    program = lower(GPT, PIPELINE, 8)

    def costs(seconds):
        return plain_costs(program, lambda op: 1, lambda op: seconds if op.name == NORM else 0.25)

    short, long = (simulate(program, costs(seconds)) for seconds in (1.0, 9.0))
    steps = [critical_path(trace, costs(seconds)) for trace, seconds in ((short, 1.0), (long, 9.0))]
    assert [part.seconds for part in steps[1].segments if part.op and part.op.name == NORM] == [9.0]
    assert (steps[1].end - steps[1].begin) - (steps[0].end - steps[0].begin) == 8.0


# The user's file

FILE = load_table(__file__, 'FILE')


def test_a_file_says_it_all(put):
    path = put('schedule.yaml', FILE)
    workload = load_schedule(path).workload
    assert (workload.loss, workload.clip_norm, workload.loss_scale) == ('mae', 0.5, 1024.0)
    assert workload.optimizer == Momentum(momentum=0.8, nesterov=True, weight_decay=1e-4)
    decayed = load_schedule(path, ('workload.optimizer={adamw: {weight_decay: 0.1, master_weights: true}}',))
    assert decayed.workload.optimizer == AdamW(weight_decay=0.1, master_weights=True)
