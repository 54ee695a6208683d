"""Memory against the in-process machine: the bytes of the tensors that really live after every op."""

import numpy as np
import pytest
from equipment.orders import InProcess
from every import some

from executor import inprocess
from simpar.lower import lower
from simpar.memory import memory
from simpar.model import Dense, Network, Relu
from simpar.plans import Plan
from simpar.trace import RankTimes, Trace
from simpar.workload import Adam, Sgd, Transformer, Workload

GPT = Transformer(layers=2, hidden=16, heads=4, vocab=32, sequence=8)
GROUPED = Transformer(layers=1, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=30, sequence=8, tied=True)
UNFUSED = Transformer(layers=2, hidden=16, heads=4, vocab=32, sequence=8, attention='unfused', dropout=0.3)
MLP = Network(layers=(Dense(inputs=8, outputs=16), Relu(), Dense(inputs=16, outputs=8, bias=False)))
CASES = [
    (GPT, Plan(data=1), Adam()),
    (GPT, Plan(data=2, tensor=2, copies=2), Adam()),
    (GPT, Plan(data=1, tensor=4, sequence_parallel=True, copies=2), Adam()),
    (GPT, Plan(data=2, tensor=4, sequence_parallel=True, copies=4, reduce='late'), Sgd()),
    (GPT, Plan(data=1, tensor=2, copies=3, reduce='late'), Adam()),
    (GROUPED, Plan(data=2, tensor=2, copies=2, streams='single'), Adam()),
    (GROUPED, Plan(data=1, tensor=4, sequence_parallel=True), Sgd()),
    (UNFUSED, Plan(data=2, tensor=2, copies=2), Adam(master_weights=True)),
    (UNFUSED, Plan(data=1, tensor=4, sequence_parallel=True, reduce='late'), Adam()),
    (GROUPED, Plan(data=1, context=2, tensor=2, sequence_parallel=True, copies=2), Adam()),
    (GROUPED, Plan(context=4, context_kind='ring', data=2), Sgd()),
    (GPT, Plan(context=2, context_kind='all_to_all', data=2, copies=2), Sgd()),
    (MLP, Plan(data=2, tensor=2, copies=2), Adam()),
    (MLP, Plan(data=4, copies=3), Sgd()),
]


class Watched(inprocess.Memory):
    """Counts what it holds after every op, by kind."""

    log = []

    def __init__(self, start):
        super().__init__(start)
        self.watched = (start.program, start.rank)

    def free(self, op, micro_batch, copy):
        super().free(op, micro_batch, copy)
        program, rank = self.watched
        held = dict.fromkeys(('parameter', 'state', 'gradient', 'activation'), 0)
        for (name, _, _), tensor in self._tensors.items():
            if program.tensor[name].kind in held:
                held[program.tensor[name].kind] += tensor.nbytes
        self.log.append((rank, op.name, micro_batch, copy, held))


def watched(monkeypatch, program, **order):
    """(slot, bytes by kind after it) of each rank in the order of the third step, one step after the other."""
    monkeypatch.setattr(inprocess, 'Memory', Watched)
    machine = InProcess(program, dtype=None, **order)
    for _ in range(3):
        Watched.log.clear()
        machine.run()
    role = program.roles[0]
    slot_of = {
        (program.op(role, slot).name, int(role.micro_batch[slot]), int(role.copy[slot])): slot
        for slot in range(len(role))
    }
    ranks = [[] for _ in range(program.world)]
    for rank, name, micro_batch, copy, held in Watched.log:
        ranks[rank].append((slot_of[name, micro_batch, copy], held))
    assert all(len(done) == len(role) for done in ranks)
    return ranks


def in_this_order(program, ranks):
    """A trace in which every rank does its ops in a given order, one in each second odd second of the step."""
    lanes = []
    for rank, done in enumerate(ranks):
        start = np.empty((1, len(done)))
        start[0, [slot for slot, _ in done]] = 2 * np.arange(len(done)) + 1
        lanes.append(RankTimes(rank, start, start, start + 1))
    return Trace(program, 'measured', tuple(lanes), np.arange(program.world, dtype=np.int32))


@pytest.mark.parametrize(
    ('shuffle', 'model', 'plan', 'optimizer'), some([(how, *case) for how in (None, 2) for case in CASES])
)
def test_it_holds_what_lives_after_every_op(monkeypatch, model, plan, optimizer, shuffle):
    """On every rank, in whatever order needs and streams allow; inputs aside, which the machine draws as they come."""
    batch = 2 * plan.data * plan.copies
    precision = 'bf16' if shuffle == 2 else 'fp32'
    workload = Workload(model=model, batch=batch, precision=precision, optimizer=optimizer)
    program = lower(workload, plan, plan.data * plan.context * plan.tensor)
    ranks = watched(monkeypatch, program, shuffle=shuffle)
    expected = memory(in_this_order(program, ranks))
    for rank, done in enumerate(ranks):
        line, last = expected.rank(rank).by_kind(), 2 * len(done)
        for place, (slot, held) in enumerate(done):
            after = line.at((2 * place + 2.5) % last)
            assert {kind: after[kind] for kind in held} == held, program.action(program.roles[0], slot)
