"""The multi-copy tutorial's network trains on 8 ranks as it does in one process."""

import pytest
from every import some

from simpar.lower import lower
from simpar.model import Dense, Flatten, Network, Relu
from simpar.plans import Plan
from simpar.workload import Sgd, Workload

torch = pytest.importorskip('torch', reason='needs the extra torch')

from executor.inprocess import InProcess
from executor.reference import Reference

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures('generated_images')]
STEPS = 50
TUTORIAL = Workload(
    model=Network(
        layers=(
            Flatten(),
            Dense(inputs=28 * 28, outputs=512),
            Relu(),
            Dense(inputs=512, outputs=512),
            Relu(),
            Dense(inputs=512, outputs=10),
        ),
        init_std=0.01,
    ),
    batch=32,
    optimizer=Sgd(learning_rate=1e-2),
    data='mnist',
)


@pytest.mark.parametrize('copies', some([1, 2, 4], 2))
def test_the_loss_curve_is_the_single_process_curve(copies):
    plan = Plan(data=2, tensor=4, copies=copies, copies_loss='sum')
    losses = InProcess(lower(TUTORIAL, plan, 8), dtype=None).run(STEPS).losses
    assert losses == pytest.approx(Reference(TUTORIAL, plan).run(STEPS).losses, abs=1e-3)
    # Ten classes told apart by nothing yet: ln 10 = 2.3026 a copy; the tutorial's log starts at about 4.6 for two.
    assert losses[0] == pytest.approx(2.3 * copies, rel=0.05)
    assert sum(losses[-10:]) < sum(losses[:10]) * 0.99
