"""The tutorials on optimizer parallelism and on hybrid parallelism train as they say, on 8 ranks in process."""

from itertools import pairwise
from pathlib import Path

import pytest
from every import some

from executor.inprocess import InProcess
from executor.reference import Reference
from simpar import Plan, load_case
from simpar.lower import lower
from simpar.model import Dense, Flatten, Network, Relu
from simpar.workload import Sgd, Workload

pytestmark = pytest.mark.usefixtures('generated_images')


EXAMPLES = Path(__file__).parent.parent / 'examples'
LOG = [2.3024087, 2.2921634, 2.278274, 2.2537143, 2.1638, 1.984318, 1.6061916, 1.20966, 0.98156196, 0.77229893]
"""Losses of steps 0, 10, ... 90 in MindSpore's tutorial (tutorials/source_en/parallel/optimizer_parallel.md)."""


def losses(name, steps, *overrides):
    """Of an example in its own precision, and of the unsharded model."""
    case = load_case(EXAMPLES / name, overrides)
    workload = case.schedule.workload
    alone = Reference(workload, case.plan).run(steps).losses
    return InProcess(case.program, dtype=None).run(steps).losses, alone


def test_the_optimizer_parallel_tutorial_trains_as_its_log():
    """Generated images are learnt sooner than digits: the same flat begin at ln 10, the same fall, below its end."""
    found, alone = losses('optimizer_parallel.yaml', 91)
    assert found == pytest.approx(alone, abs=1e-3)
    every_tenth = found[::10]
    assert every_tenth[0] == pytest.approx(LOG[0], abs=0.01)
    falls = [before - after for before, after in pairwise(every_tenth)]
    their_falls = [before - after for before, after in pairwise(LOG)]
    assert min(falls) > -0.05
    # Slow at first, fastest in the middle.
    for curve in (falls, their_falls):
        assert curve[0] < 0.1
        assert 2 <= curve.index(max(curve)) <= 6
    assert every_tenth[-1] < LOG[-1]


def test_the_hybrid_tutorial_trains():
    found, alone = losses('hybrid.yaml', 100)
    assert found == pytest.approx(alone, abs=1e-3)
    assert sum(found[-20:]) < 0.75 * sum(found[:20])


@pytest.mark.parametrize(
    ('level', 'order'), [('off', 'gpipe'), ('level1', '1f1b'), ('level2', 'zb-h1'), ('level3', '1f1b')]
)
def test_the_hybrid_tutorial_trains_alike_at_every_level_and_in_every_order(level, order):
    found, alone = losses('hybrid.yaml', 3, f'plan.hsdp={level}', f'plan.order={order}')
    assert found == pytest.approx(alone, abs=1e-4)


def test_the_relus_of_the_hybrid_tutorial_are_recomputed_and_their_results_are_not_kept():
    case = load_case(EXAMPLES / 'hybrid.yaml')
    again = [op.name for op in case.program.op_classes if op.name.endswith('.F.recompute')]
    assert again == ['relu1.F.recompute', 'relu2.F.recompute']
    collectives = {op.operator for op in case.program.op_classes if op.kind == 'collective'}
    assert collectives == {'all_gather', 'reduce_scatter', 'all_reduce'}
    assert {op.stage for op in case.program.op_classes} == {0, 1}


# The multi-copy tutorial's network trains on 8 ranks as it does in one process


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


@pytest.mark.parametrize('copies', some([2, 1, 4]))
def test_the_loss_curve_is_the_single_process_curve(copies):
    plan = Plan(data=2, tensor=4, copies=copies, copies_loss='sum')
    losses = InProcess(lower(TUTORIAL, plan, 8), dtype=None).run(STEPS).losses
    assert losses == pytest.approx(Reference(TUTORIAL, plan).run(STEPS).losses, abs=1e-3)
    # Ten classes told apart by nothing yet: ln 10 = 2.3026 a copy; the tutorial's log starts at about 4.6 for two.
    assert losses[0] == pytest.approx(2.3 * copies, rel=0.05)
    assert sum(losses[-10:]) < sum(losses[:10]) * 0.99
