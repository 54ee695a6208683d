"""A torch module as a model: exported, trained with its own weights, refused where it cannot be."""

import re
import sys
from pathlib import Path

import module_cases
import pytest
import torch
from tables import load_table, load_tree
from torch import nn

from simpar import Plan, Workload, from_module, load_schedule
from simpar.errors import Infeasible, ScheduleError
from simpar.lower import lower
from simpar.torch_module.rules import TABLE

SCHEDULE = load_table(__file__, 'SCHEDULE')
MINE = """\
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Dropout(0.25)), torch.randn(4, 8)


def wrong():
    raise OSError('no such weights')


def nothing():
    return 3
"""


class _Sorts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return torch.sort(self.inner(x))[0] + torch.fft.fft(x).real


class _Loops(nn.Module):
    def forward(self, x):
        chosen = torch.where(x[:, 0] > 0)[0]
        return x.index_add(0, chosen, x[chosen]) if len(chosen) else x


class _Mixes(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


@pytest.fixture
def schedule(tmp_path, monkeypatch):
    (tmp_path / 'mine_for_tests.py').write_text(MINE)
    (tmp_path / 'schedule.yaml').write_text(SCHEDULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', [*sys.path])
    yield tmp_path / 'schedule.yaml'
    sys.modules.pop('mine_for_tests', None)


@pytest.mark.parametrize(
    ('name', 'plans'), load_tree(__file__, 'test_a_module_that_others_wrote_trains_as_its_own_autograd_says')
)
def test_a_module_that_others_wrote_trains_as_its_own_autograd_says(name, plans):
    """`make prove-modules` does all of them under all plans."""
    torch.manual_seed(1)
    case = module_cases.MODULES[name]()
    found = module_cases.exported(case)
    for plan in plans:
        assert module_cases.deviation(case, found, *module_cases.PLANS[plan]) < 1e-10, plan


def test_a_wrong_weight_is_seen_by_that_comparison():
    case = module_cases.ModuleCase(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double(), torch.randn(2, 4).double())
    found = module_cases.exported(case)
    assert module_cases.deviation(case, found, Plan(), 1) < 1e-14
    case.module[0].weight.data[0, 0] += 1e-3
    assert module_cases.deviation(case, found, Plan(), 1) > 1e-6


def test_the_command_predicts_a_module(schedule, json_of):
    assert json_of('run', schedule, '--module', 'mine_for_tests:mlp')['parameters'] == 8 * 16 + 16 + 16 * 8 + 8


def test_ranks_of_their_own_train_a_module_and_keep_its_weights_by_its_names(schedule):
    """One run of the command: the export, two processes, and what they leave."""
    from executor.commands import run_job
    from executor.options import parser

    words = ['run', str(schedule), '--module', 'mine_for_tests:mlp', '--steps', '1', '--dtype', 'fp64']
    words += ['--save-state', 'state.pt', '--set', 'plan={data: 2}', '--set', 'cluster.devices=2']
    assert run_job(parser().parse_args(words)) == 0
    kept = torch.load('state.pt', weights_only=True)
    assert set(kept['parameters']) == {'0.weight', '0.bias', '2.weight', '2.bias'}


def test_a_resolved_schedule_holds_the_graph_and_runs_without_the_module(schedule, printed):
    Path('resolved.yaml').write_text(printed('resolve', schedule, '--module', 'mine_for_tests:mlp'))
    again = load_schedule('resolved.yaml')
    assert [node.name for node in again.workload.model.nodes] == ['0/linear', '1/gelu', '2/linear_1', '3/getitem']


def test_train_returns_tensors_by_the_modules_names(schedule):
    from executor.train import train

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)).double()
    found = from_module(module, torch.randn(4, 8).double())
    result = train(schedule, module=found, dtype='fp64', processes=False)
    module.load_state_dict(result.parameters)
    assert {f'd:{name}' for name, _ in module.named_parameters()} == set(result.gradients)


@pytest.mark.parametrize(
    ('reference', 'said'), load_table(__file__, 'test_a_flag_that_names_no_module_is_told_in_a_line')
)
def test_a_flag_that_names_no_module_is_told_in_a_line(reference, said, schedule, refused):
    shown = refused('run', schedule, '--module', reference)
    assert len(shown.splitlines()) == 1
    assert re.match(said, shown)


def test_a_graph_that_is_no_graph_is_told_at_its_line(put):
    path = put('schedule.yaml', SCHEDULE.replace('loss: mse', 'loss: mse, module: {graph: "[1, 2]"}'))
    with pytest.raises(ScheduleError, match=r'schedule\.yaml:3: workload\.module\.graph: .*pass --module'):
        load_schedule(path)


def test_kernels_call_what_the_table_has_and_nothing_else():
    from executor.kernels.torch_call import _called
    from simpar.errors import ProgramError

    with pytest.raises(ProgramError, match=r'aten\.set_ is no operator'):
        _called('set_.source_Tensor', '')
    assert len(TABLE) >= 60
    assert all(hasattr(torch.ops.aten, name) for name in TABLE)


def test_a_module_on_the_meta_device_is_predicted_and_not_trained(schedule):
    from simpar.case import load_case

    with torch.device('meta'):
        module = nn.Sequential(nn.Linear(8, 2**14), nn.ReLU(), nn.Linear(2**14, 8))
        found = from_module(module, torch.empty(4, 8))
    case = load_case(schedule, module=found.graph)
    assert case.predict().step > 0
    assert case.parameters == 2 * 8 * 2**14 + 2**14 + 8


class Shared(nn.Module):
    """Two weights, one behind the other, so often."""

    def __init__(self, times):
        super().__init__()
        self.a, self.b, self.times = nn.Linear(8, 8), nn.Linear(8, 8), times

    def forward(self, x):
        for _ in range(self.times):
            x = self.b(self.a(x).relu())
        return x


def test_all_weights_that_two_stages_share_are_summed_over_both():
    case = module_cases.ModuleCase(Shared(4).double(), torch.randn(4, 8).double())
    found = module_cases.exported(case)
    assert module_cases.deviation(case, found, Plan(pipeline=2, micro_batches=2), 2) <= 1e-10
    with pytest.raises(Infeasible, match=r'plan\.pipeline: not yet: b\.weight is read on 4 pipeline ranks'):
        lower(Workload(model=found.model, batch=16, loss='mse'), Plan(pipeline=4, micro_batches=4), 4)


@pytest.mark.parametrize(
    ('module', 'shape', 'said'),
    [
        (_Sorts(), (2, 4), r'(?s)test_modules\.py:\d+: the module \(_Sorts\): .*aten\.sort.*no row in the table.*fft'),
        (_Loops(), (2, 4), r'test_modules\.py:\d+: what is computed depends on values.*mixtures of experts'),
        (_Mixes(), (2, 4), r'test_modules\.py:\d+: the module \(_Mixes\): mean .*samples'),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
            (2, 3, 8, 8),
            r'1 \(BatchNorm2d\): .*statistics.*\.eval',
        ),
        (nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0), (6, 2, 8), r'batch_first=True'),
        (nn.Linear(4, 4), (2, 5), r'Linear: torch\.export cannot follow it: .*\[3, 5\]'),
    ],
)
def test_what_is_not_supported_is_told_with_its_place_and_a_remedy(module, shape, said, capfd):
    with pytest.raises(ScheduleError, match=said):
        from_module(module, torch.randn(shape))
    assert capfd.readouterr() == ('', '')
