"""Training scripts of MindSpore as schedules: what shipped examples say, and what is refused by its line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from simpar.case import load_case
from simpar.cli import main
from simpar.errors import ScheduleError
from simpar.importing.read import imported

SCRIPTS = Path(__file__).parent / 'mindspore_scripts'
EXAMPLES = Path(__file__).parent.parent / 'examples'


def read(name: str, **given: str) -> dict[str, Any]:
    return dict(imported(SCRIPTS / name / 'train.py', given=given).values)


def kinds(network: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Each layer without its name."""
    return [
        (kind, {key: value for key, value in spec.items() if key != 'name'})
        for one in network
        for kind, spec in one.items()
    ]


@pytest.mark.parametrize('name', ['multi_copy', 'optimizer_parallel', 'sharding_propagation', 'double_recursive'])
def test_a_tutorial_says_what_its_shipped_example_says(name: str) -> None:
    """The network, its marks, loss and optimizer; the examples were written by hand from the same tutorials."""
    values, example = read(name), yaml.safe_load((EXAMPLES / f'{name}.yaml').read_text(encoding='utf-8'))
    mine, theirs = kinds(values['workload.network']), kinds(example['workload']['network'])
    assert [kind for kind, _ in mine] == [kind for kind, _ in theirs]
    for (_, found), (_, written) in zip(mine, theirs, strict=True):
        # A later layer stays on the stage of the one before it.
        stages = {'pipeline_stage'} if 'pipeline_stage' not in written else set()
        assert {key: value for key, value in found.items() if key not in stages} == written
    assert values['workload.loss'] == example['workload']['loss']
    ((optimizer, _),) = example['workload']['optimizer'].items()
    assert f'workload.optimizer.{optimizer}' in values
    for key in ('copies', 'pipeline', 'micro_batches', 'search', 'hsdp', 'fusion'):
        assert values.get(f'plan.{key}') == example['plan'].get(key), key


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('multi_copy', {'plan.data': 8, 'workload.batch': 256}),
        ('multi_copy_context', {'plan.data': 8, 'plan.copies': 2, 'workload.batch': 256}),
        ('optimizer_parallel', {'plan.data': 8, 'workload.batch': 256}),
        # 2 samples on each of 8 devices, by the arrays that the generator yields.
        ('sharding_propagation', {'workload.batch': 16, 'plan.compat': '2.10'}),
        # 32 on each of the 4 devices of the first stage.
        ('double_recursive', {'workload.batch': 128, 'plan.dataset': 'data-parallel'}),
        ('strategies', {'workload.batch': 16, 'plan.dataset': 'full-batch'}),
    ],
)
def test_batch_and_degrees_follow_from_the_launcher_s_line(name: str, expected: dict[str, Any]) -> None:
    values = read(name)
    assert {key: values.get(key) for key in expected} == expected
    assert values['cluster.devices'] == 8


def test_the_older_search_is_asked_for() -> None:
    assert read('sharding_propagation', version='2.0')['plan.compat'] == '2.0'


def test_strategies_of_a_dense_are_written_as_its_weight_lies_here() -> None:
    """``up.matmul.shard(((2, 1), (4, 1)))``: MindSpore's weight is [out, in], so 4 ranks share the outputs."""
    network = read('strategies')['workload.network']
    up = next(spec for one in network for kind, spec in one.items() if kind == 'dense')
    assert (up['in'], up['out'], up['bias']) == (64, 256, False)
    assert up['strategy'] == [[2, 1], [1, 4]]
    assert next(spec for one in network for kind, spec in one.items() if kind == 'gelu')['strategy'] == [[2, 4]]
    adds = [spec['of'] for one in network for kind, spec in one.items() if kind == 'add']
    assert len(adds) == 3
    assert adds[0][0] == 'x'


@pytest.mark.parametrize('name', sorted(path.name for path in SCRIPTS.iterdir()))
def test_what_import_writes_is_run_and_trains(name: str, tmp_path: Path) -> None:
    """Its numerics equal those of the unsharded model; one asks by the verb, whose process takes seconds to begin."""
    from executor.commands import COMMANDS
    from executor.options import parser

    output = tmp_path / 'mine.yaml'
    assert main(['import', str(SCRIPTS / name / 'train.py'), '--output', str(output), '--json']) == 0
    assert load_case(output).program.world == 8
    assert main(['run', str(output), '--quiet']) == 0
    options = parser().parse_args(['numerics', str(output)])
    by_verb = name == 'multi_copy'
    assert (main(['check', str(output), '--numerics']) if by_verb else COMMANDS['numerics'](options)) == 0


HEAD = """
import mindspore as ms
from mindspore import nn, ops
import mindspore.dataset as ds
"""
NET = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.one = nn.Dense(16, 16)
        self.two = nn.Dense(16, 4)
    def construct(self, x):
        return self.two(self.one(x))
"""
TAIL = """
net = Net()
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
model.train(1, ds.MnistDataset('x').batch(8))
"""


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / 'train.py'
    path.write_text(text, encoding='utf-8')
    return path


@pytest.mark.parametrize(
    ('before', 'after', 'where', 'words'),
    [
        ('self.one = nn.Dense(16, 16)', 'self.one = nn.Conv3d(16, 16, 3)', 9, 'nn.Conv3d is no layer that is read'),
        ('self.two(self.one(x))', 'self.two(self.one(x)[0])', 12, 'what this reads is not known'),
        ('self.two(self.one(x))', 'self.two(self.one(self.one(x)))', 12, 'one is used twice'),
        ('self.two(self.one(x))', 'self.two(self.one(x).reshape(2, -1))', 12, '.reshape() of a tensor is not known'),
        ('self.two(self.one(x))', 'ops.erfinv(self.one(x))', 12, 'erfinv is no layer that is read'),
        ('return self.two(', 'if x.sum() > 0:\n            x = x\n        return self.two(', 12, 'which branch'),
        ('return self.two(', 'while True:\n            x = x\n        return self.two(', 12, 'while in a network'),
        ('nn.MSELoss()', 'None', 1, 'no loss of nn was found'),
        ('.batch(8)', '', 1, 'no batch of a dataset was found'),
        ('nn.Momentum(net.trainable_params(), 0.1, 0.9)', 'None', 1, 'no optimizer of nn was found'),
        (
            'net = Net()',
            "net = Net()\nms.set_auto_parallel_context(parallel_mode='dynamic_programming')",
            15,
            'is not known',
        ),
        (
            'net = Net()',
            'net = Net()\nms.set_auto_parallel_context(new_option=3)',
            15,
            'new_option is not known (got 3)',
        ),
        ('net = Net()', 'net = Net()\nms.set_auto_parallel_context(dataset_strategy=((2, 1),))', 15, 'by slices'),
        ('self.one = nn.Dense(16, 16)', 'self.one = nn.Dense(WIDTH, 16)', 9, 'is no number that the script says'),
        ('return self.two(self.one(x))', 'return x, self.one(x)', 6, 'what the network returns'),
    ],
)
def test_what_is_not_understood_is_refused_by_its_line(
    tmp_path: Path, before: str, after: str, where: int, words: str
) -> None:
    text = HEAD + NET + TAIL
    assert before in text
    path = script(tmp_path, text.replace(before, after))
    with pytest.raises(ScheduleError) as refused:
        imported(path, given={'worker_num': '8'})
    told = [(problem.place, problem.what) for problem in refused.value.problems]
    assert any(place == f'{path}:{where}' and words in what for place, what in told), told


def test_devices_are_asked_for_where_nobody_says_them(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match='--set worker_num=8'):
        imported(script(tmp_path, HEAD + NET + TAIL), given={})


def test_nothing_of_a_script_runs(tmp_path: Path) -> None:
    """Calls at its top are read and not made."""
    mark = tmp_path / 'mark'
    text = f'import os\n{HEAD}\nos.system("touch {mark}")\nopen("{mark}", "w")\n{NET}{TAIL}'
    assert imported(script(tmp_path, text), given={'worker_num': '8'}).values['workload.batch'] == 64
    assert not mark.exists()


def test_half_precision_is_read(tmp_path: Path) -> None:
    half = script(tmp_path, HEAD + NET + TAIL.replace('0.9))', "0.9), amp_level='O2')"))
    assert imported(half, given={'worker_num': '8'}).values['workload.precision'] == 'fp16'
    text = (HEAD + NET + TAIL).replace('net = Net()', 'net = Net()\nnet.to_float(ms.bfloat16)')
    assert imported(script(tmp_path, text), given={'worker_num': '8'}).values['workload.precision'] == 'bf16'


FUNCTION = """
import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import initializer
from mindspore.parallel.auto_parallel import AutoParallel

class Wide(nn.Cell):
    def __init__(self, weight=None):
        super().__init__()
        self.w = ms.Parameter(initializer('normal', [16, 32], ms.float32))
        if weight is not None:
            self.w = weight
        self.b = ms.Parameter(initializer('normal', [32], ms.float32))
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.add, self.show = ops.Add(), ops.Print()

    def construct(self, x):
        y = self.add(self.matmul(x, self.w), self.b)
        self.show('y', y)
        return y

def batches(size):
    return ms.dataset.MnistDataset('d').batch(size)

def test_it():
    data, net, loss = batches(32), Wide(), nn.MSELoss()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)

    def forward(x, y):
        return loss(net(x), y)

    grad = ms.value_and_grad(forward, None, net.trainable_params())
    step = AutoParallel(grad, parallel_mode='semi_auto')
    step.dataset_strategy(config='full_batch')
    for x, y in data:
        step(x, y)
"""


def test_a_training_inside_of_a_function_is_read_with_its_biases(tmp_path: Path) -> None:
    path = tmp_path / 'train.py'
    path.write_text(FUNCTION)
    values = imported(path, given={'worker_num': '8'}).values
    assert values['workload.network'] == [
        {'dense': {'in': 16, 'out': 32, 'bias': True, 'strategy': [[2, 4], [4, 1]], 'name': 'matmul'}}
    ]
    assert (values['workload.batch'], values['plan.dataset']) == (32, 'full-batch')
    path.write_text(FUNCTION.replace('.shard(((2, 4), (4, 1)))', '.shard((1, "mp"))'))
    with pytest.raises(ScheduleError, match=r'train.py:14: this strategy is no tuple of numbers'):
        imported(path, given={'worker_num': '8'})
