"""The quick-start tutorial trains: its data, 5 epochs of 4 steps on 8 ranks in process, as torch alone does."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simpar.case import load_case

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor import draws
from executor.inprocess import InProcess
from executor.numerics import check
from executor.ranks import real

pytestmark = pytest.mark.torch
EXAMPLES = Path(__file__).parent.parent / 'examples'
STEPS = 5 * 4


def tutorial_data():
    """Its generator: every rank draws the same two samples, and every step has them."""
    random = np.random.RandomState(1)
    x, label = random.rand(2, 32), random.rand(2, 16)
    return {'x': torch.tensor(np.tile(x, (8, 1))), 'target': torch.tensor(np.tile(label, (8, 1)))}


def trained_by_torch(data):
    """The losses of the whole model with torch's own momentum, from the same weights."""
    shapes = {'matmul.weight': (16, 32), 'matmul2.weight': (16, 16)}
    weights = [
        draws.draw('normal:0.01', shape, torch.float64, 0, name).requires_grad_() for name, shape in shapes.items()
    ]
    optimizer = torch.optim.SGD(weights, lr=0.2, momentum=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(torch.relu(data['x'] @ weights[0].T) @ weights[1].T, data['target'])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_quick_start_tutorial_trains_on_eight_ranks(monkeypatch):
    data = tutorial_data()
    monkeypatch.setattr(real, 'batch_of', lambda name, *_: data[name])
    losses = InProcess(load_case(EXAMPLES / 'sharding_propagation.yaml').program, 0, torch.float64).run(STEPS).losses
    assert losses == pytest.approx(trained_by_torch(data), rel=1e-12)
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < 0.85 * losses[0]


@pytest.mark.parametrize('name', ['sharding_propagation', 'double_recursive'])
@pytest.mark.parametrize('search', ['', 'exact'])
def test_searched_examples_compute_what_autograd_computes(name, search):
    case = load_case(EXAMPLES / f'{name}.yaml', [f'plan.search={search}'] if search else [])
    report = check(case.program, case.workload, case.plan, steps=2)
    parameters = sum(tensor.kind == 'parameter' for tensor in case.program.tensors)
    assert len(report.deviations) == 2 * (1 + 2 * parameters)
