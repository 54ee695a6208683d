"""Modules that call what is not torch's own: a refusal with file, line and remedy, never an internal error."""

import pytest
import torch
from torch import nn

from simpar import cli, from_module
from simpar.errors import ScheduleError


@torch.library.custom_op('refused::twice', mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)


class Amid(Base):
    def forward(self, x):
        return self.second(twice(self.first(x)))  # here


class OfAWeight(Base):
    def forward(self, x):
        return self.first(x) + twice(self.second.bias)  # here


class Branches(Base):
    def forward(self, x):
        x = self.first(x)
        return torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (x,))  # here


class ResultThatIsNoTensor(Base):
    def forward(self, x):
        return 3, self.first(x)


def line_of(kind):
    """The line of this file in which a class says ``here``."""
    with open(__file__) as file:
        lines = file.read().splitlines()
    begin = lines.index(f'class {kind.__name__}(Base):')
    return next(number for number, text in enumerate(lines[begin:], begin + 1) if text.endswith('# here'))


@pytest.mark.parametrize(('kind', 'what'), [
    (Amid, 'refused::twice is no operator of aten'),
    (OfAWeight, 'reads weights through refused::twice, which has no row in the table'),
    (Branches, 'torch::cond is no operator of aten'),
])  # fmt: skip
def test_a_call_of_another_library_is_told_at_its_line(kind, what):
    with pytest.raises(ScheduleError) as error:
        from_module(kind(), torch.randn(4, 8))
    (problem,) = error.value.problems
    assert problem.place == f'{__file__}:{line_of(kind)}'
    assert what in problem.what
    assert problem.instead


def test_a_result_that_is_no_tensor_is_told():
    with pytest.raises(ScheduleError, match='returns a result that is no tensor'):
        from_module(ResultThatIsNoTensor(), torch.randn(4, 8))


def mixture(family):
    transformers = pytest.importorskip('transformers')
    sizes = {
        'num_hidden_layers': 2, 'hidden_size': 64, 'num_attention_heads': 4, 'num_key_value_heads': 2,
        'intermediate_size': 64, 'num_experts_per_tok': 2, 'vocab_size': 128, 'use_cache': False,
    }  # fmt: skip
    more = {
        'GptOss': {'head_dim': 16, 'num_local_experts': 4, 'layer_types': ['sliding_attention', 'full_attention']},
        'Olmoe': {'num_experts': 4, 'eos_token_id': 1},
        'Mixtral': {'num_local_experts': 4},
    }[family]
    config = getattr(transformers, f'{family}Config')(**sizes, **more)
    return getattr(transformers, f'{family}ForCausalLM')(config)


@pytest.mark.parametrize('family', ['GptOss', 'Olmoe', 'Mixtral'])
def test_mixtures_of_transformers_are_refused_at_their_lines(family):
    with pytest.raises(ScheduleError) as error:
        from_module(mixture(family), torch.randint(128, (2, 16)))
    for problem in error.value.problems:
        assert '/transformers/' in problem.place
        assert problem.place.rpartition(':')[2].isdecimal()
        assert problem.instead
    assert any('is no operator of aten' in problem.what for problem in error.value.problems)


class Gated(Base):
    def forward(self, x):
        return self.second(twice(self.first(x)))


twice.register_autograd(lambda context, dy: dy * 2)


def gated():
    return Gated(), torch.randn(4, 8)


@pytest.mark.parametrize(('words', 'told'), [
    (['refused::twice'], 'no operator of your own with its kind'),
    (['refused::twice=rowwise'], 'kinds are pointwise, rows, samples'),
    (['aten::sort=rows'], 'no operator of your own'),
    (['refused::twice=rows', 'lab::gate=rows'], 'the module does not call lab::gate'),
])  # fmt: skip
def test_the_kind_of_an_own_operator_is_checked(words, told):
    with pytest.raises(ScheduleError, match=told):
        from_module(*gated(), ops=words)


OWN = """\
import dataclasses
import inspect

import torch


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: float = 0.0


assert str(inspect.signature(Output)) == '(logits: torch.Tensor, loss: float = 0.0) -> None'


def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8)), torch.randn(4, 8)
"""
SCHEDULE = """\
simpar: 1
cluster: h100-sxm-8
workload: {batch: 16, loss: mse}
plan: {data: 8}
"""


def test_classes_of_the_users_modules_are_as_python_makes_them(tmp_path, monkeypatch):
    """Readers of docstrings, as those of transformers, ask classes for their signatures."""
    (tmp_path / 'own_classes.py').write_text(OWN)
    (tmp_path / 'schedule.yaml').write_text(SCHEDULE)
    monkeypatch.chdir(tmp_path)
    assert cli.main(['run', 'schedule.yaml', '--module', 'own_classes:model']) == 0
