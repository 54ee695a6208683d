"""Fusion that is chosen by predicted cost: never slower than the sizes that are tried, and saved as a plain value."""

import sys

import pytest

from simpar.cost.price import price
from simpar.engine import simulate
from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.memory import memory
from simpar.model import Dense, Network
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.resolve import resolve
from simpar.resolve.resolve import SIZES
from simpar.workload import Transformer, Workload

H100 = cluster(load_profile('h100-sxm-8'))
ASCEND = cluster(load_profile('ascend910a-8'))
GPT = Workload(model=Transformer(layers=8, hidden=1024, heads=16, vocab=8192, sequence=512), batch=32, precision='bf16')
SMALL = Workload(
    model=Network(layers=tuple(Dense(inputs=64, outputs=64, name=f'd{i}') for i in range(6))), batch=64, loss='mse'
)


def step(workload, plan, hardware):
    """A step that another follows."""
    program = lower(workload, plan, hardware.world)
    return float(simulate(program, price(program, hardware), steps=4).step_times[-2])


@pytest.mark.parametrize('choices', [{}, {'zero': 1}, {'zero': 3, 'prefetch': 1}, {'hsdp': 'level1'}], ids=str)
@pytest.mark.parametrize(('workload', 'hardware'), [(GPT, H100), (SMALL, ASCEND)], ids=['gpt', 'small'])
def test_no_size_that_is_tried_is_faster(workload, hardware, choices):
    found = resolve(workload, Plan(fusion='predicted', **choices), hardware)
    assert found.fusion in SIZES
    best = min(step(workload, Plan(fusion=size, **choices), hardware) for size in SIZES)
    assert step(workload, found, hardware) == best


def test_messages_of_next_to_nothing_are_fused_into_one():
    """Latency is all that there is to save, and nothing to overlap with."""
    found = resolve(SMALL, Plan(fusion='predicted', reduce_gradients='end'), ASCEND)
    program = lower(SMALL, found, 8)
    assert sum(op.kind == 'collective' for op in program.op_classes) == 1


def test_what_fits_is_preferred_to_what_is_faster(monkeypatch):
    """With one message for all, all weights are gathered at once."""
    wanted = Plan(fusion='predicted', zero=3, recompute='full')
    sizes = {}
    for size in SIZES:
        program = lower(GPT, Plan(fusion=size, zero=3, recompute='full'), 8)
        sizes[size] = memory(simulate(program, price(program, H100))).peak
    least = min(sizes.values())
    assert least < max(sizes.values())
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules['simpar.resolve.resolve'], 'SIZES', ('all', *SIZES))
    from dataclasses import replace

    figure = H100.profile.device.memory.size
    device = replace(H100.profile.device, memory=replace(H100.profile.device.memory, size=replace(figure, value=least)))
    tight = replace(H100, profile=replace(H100.profile, device=device))
    found = resolve(GPT, wanted, tight)
    assert sizes[found.fusion] == least


def test_a_plan_that_is_not_resolved_is_not_lowered():
    with pytest.raises(Infeasible, match='predicted is still to be resolved'):
        lower(GPT, Plan(fusion='predicted'), 8)
