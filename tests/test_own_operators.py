"""Operators of the user's own in a module: --op says their kind, and they are priced, split and trained as such."""

import importlib

import module_cases
import pytest
import torch

from executor.draws import keep
from executor.inprocess import InProcess
from simpar import Plan, cli, from_module, load_case
from simpar.errors import ProgramError

SCHEDULE = """\
simpar: 1
cluster: {profile: ascend910a-8, devices: 4}
workload: {batch: 12, loss: mse}
plan: {data: 2, tensor: 2}
"""
OWN = """\
import torch
from torch import nn


@torch.library.custom_op('lab::gate', mutates_args=())
def gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y.sigmoid()


@torch.library.custom_op('lab::ranked', mutates_args=())
def ranked(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


gate.register_fake(lambda x, y: torch.empty_like(x))
ranked.register_fake(torch.empty_like)


def backward(ctx, dy):
    x, y = ctx.saved_tensors
    share = y.sigmoid()
    return dy * share, dy * x * share * (1 - share)


gate.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class Gated(nn.Module):
    def __init__(self, last=False):
        super().__init__()
        self.up, self.beside, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.last = last

    def forward(self, x):
        y = self.down(torch.ops.lab.gate(self.up(x), self.beside(x)))
        return torch.ops.lab.ranked(y) if self.last else y


def model():
    return Gated(), torch.randn(4, 8)
"""
GATE = '--op', 'lab::gate=pointwise'


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The package with its operators, and a schedule, in the current folder."""
    (tmp_path / 'own_operators.py').write_text(OWN)
    (tmp_path / 'schedule.yaml').write_text(SCHEDULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv('SIMPAR_OWN_OPS', '')
    monkeypatch.setenv('SIMPAR_GIVEN', '')
    return importlib.import_module('own_operators')


def found_in(own, *ops, last=False):
    """Its module as a case, and as a model."""
    module, inputs = own.Gated(last=last).double(), torch.randn(4, 8, dtype=torch.float64)
    case = module_cases.ModuleCase(module, inputs, 'mse')
    with module_cases.Unnarrowed(torch.float64):
        return case, from_module(module, inputs, ops=ops)


@pytest.mark.parametrize('kind', ['pointwise', 'rows', 'samples'])
def test_a_kind_says_how_far_an_own_operator_is_split_and_its_gradients_are_those_of_autograd(own, kind):
    case, found = found_in(own, f'lab::gate={kind}')
    plan = Plan(data=2, tensor=2, pipeline=2, micro_batches=2)
    assert module_cases.deviation(case, found, plan, 8) < 1e-10


def test_flops_of_an_element_count_in_the_price(own):
    steps = [
        load_case('schedule.yaml', module=found_in(own, f'lab::gate=pointwise{flops}')[1].graph).predict().step
        for flops in ('', ':1', ':999999')
    ]
    assert steps[0] == steps[1] < steps[2]


def test_the_command_line_checks_a_module_with_an_own_operator(own, refused):
    words = ('check', 'schedule.yaml', '--module', 'own_operators:model', '--numerics')
    assert cli.main([*words, *GATE]) == 0
    assert 'say its kind: --op lab::gate=pointwise' in refused(*words)
    assert 'write --module PKG:FUNCTION too' in refused('run', 'schedule.yaml', *GATE)


def test_an_own_operator_without_a_derivative_is_told(own):
    case, found = found_in(own, 'lab::gate=pointwise', 'lab::ranked=rows', last=True)
    with pytest.raises(ProgramError, match='has no derivative'):
        module_cases.deviation(case, found, Plan(), 1)


def test_a_graph_calls_no_operator_that_nobody_named(own):
    """A schedule file holds a graph as text: what it names runs only where --op says so."""
    _, found = found_in(own, 'lab::gate=pointwise')
    case = load_case('schedule.yaml', ['plan={}', 'cluster.devices=1'], module=found.graph)
    keep(found.weights)
    with pytest.raises(ProgramError, match='lab::gate is no operator of aten'):
        InProcess(case.program, 0).run(1)
