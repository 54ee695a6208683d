"""Blocks as Llama's: what plain torch modules train, in Megatron's layout, searched, and made wrong."""

from dataclasses import replace

import pytest
import torch
from trains import ONCE, trains

from executor.draws import batch_of
from executor.reference import Reference
from simpar import Plan, cluster, load_profile
from simpar.model.library.blocks import block_network
from simpar.resolve import find_strategies
from simpar.resolve.choices import degree_strategies
from simpar.workload import Sgd, Workload

functional = torch.nn.functional
SEQUENCE, HIDDEN, HEADS, FFN, SAMPLES = 4, 16, 4, 24, 4
ROWS = SEQUENCE * SAMPLES


class Block(torch.nn.Module):
    """A block of torch's modules: no rotary embedding, and attention over the whole sequence."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.RMSNorm(HIDDEN, eps=1e-5) for _ in range(2))
        self.q, self.k, self.v, self.o = (torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.gate, self.up = (torch.nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(FFN, HIDDEN, bias=False)
        self.double()

    def forward(self, x):
        def heads(y):
            return y.reshape(SAMPLES, SEQUENCE, HEADS, -1).transpose(1, 2)

        y = self.norm1(x)
        y = functional.scaled_dot_product_attention(heads(self.q(y)), heads(self.k(y)), heads(self.v(y)))
        x = x + self.o(y.transpose(1, 2).reshape(ROWS, HIDDEN))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def block(layers=1):
    model = block_network(SEQUENCE, HIDDEN, HEADS, FFN, layers, init_std=0.3, llama=True)
    return Workload(model=model, batch=ROWS, loss='mse', optimizer=Sgd(learning_rate=0.1))


def with_degrees(workload, data, tensor):
    found = degree_strategies(workload.model.graph(workload.batch), data, tensor)
    layers = (replace(one, strategy=found[one.name]) if one.name in found else one for one in workload.model.layers)
    model = replace(workload.model, layers=tuple(layers))
    return replace(workload, model=model, loss_strategy=((data, 1),) * 2)


def test_the_reference_of_a_block_trains_as_torchs_own_modules():
    reference, steps, theirs = Reference(block(), Plan(), seed=5), 3, Block()
    names = {'.gain': '.weight', 'layer0_': ''}

    def named(parameters):
        found = {name: parameter.detach() for name, parameter in parameters.items()}
        for ours, other in names.items():
            found = {name.replace(ours, other): parameter for name, parameter in found.items()}
        return found

    theirs.load_state_dict(named(reference.parameters))
    optimizer, losses = torch.optim.SGD(theirs.parameters(), lr=0.1), []
    for step in range(steps):
        x, target = (batch_of(name, 'normal:1', (ROWS, HIDDEN), torch.float64, 5, step) for name in ('x', 'target'))
        loss = functional.mse_loss(theirs(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    found = reference.run(steps)
    assert found.losses == pytest.approx(losses, rel=1e-12)
    for name, parameter in named(found.parameters).items():
        torch.testing.assert_close(parameter, theirs.state_dict()[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(('data', 'tensor'), [(1, 4), (2, 2), (2, 4), (4, 4), (4, 1)])
def test_in_megatrons_layout_it_has_two_sums_and_gate_and_up_meet_where_they_lie(data, tensor):
    """Behind o and down, and twice in the backward; the halves of the gate are cut alike."""
    workload, plan = with_degrees(block(), data, tensor), Plan(dataset='full-batch')
    program = trains(workload, plan, data * tensor, steps=ONCE)
    for phase in 'FI':
        found = [op for op in program.op_classes if op.kind == 'collective' and op.phase == phase]
        assert [op.operator for op in found] == ['all_reduce'] * (2 * (tensor > 1))
        assert {op.bytes for op in found} <= {ROWS // data * HIDDEN * 4.0}


@pytest.mark.parametrize('search', ['double-recursive', 'sharding-propagation', 'exact'])
def test_a_searched_block_trains_as_the_unsharded_one(search):
    workload = block(2)
    if search == 'sharding-propagation':
        layers = (
            replace(one, strategy=((2, 1), (1, 4))) if one.name == 'layer0_gate' else one
            for one in workload.model.layers
        )
        workload = replace(workload, model=replace(workload.model, layers=tuple(layers)))
    eight = cluster(load_profile('h100-sxm-8'), devices=8)
    found = find_strategies(workload, Plan(search=search, dataset='full-batch'), eight)
    assert {'layer0_norm1', 'layer1_gated', 'layer0_silu'} <= set(found.origins)
    trains(found.workload, found.plan, 8, steps=ONCE)
