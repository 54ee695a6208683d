"""Training scripts of MindSpore as schedules: what shipped examples say, and what is refused by its line."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from mindspore_samples import SAMPLES, Sample
from tables import load_table, load_tree

from simpar.case import load_case
from simpar.cli import main
from simpar.errors import ScheduleError
from simpar.files import read_csv
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
    ('name', 'expected'), load_table(__file__, 'test_batch_and_degrees_follow_from_the_launcher_s_line')
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
    """Its numerics equal those of the unsharded model, as `check --numerics` asks of a process that starts anew."""
    from executor.commands import COMMANDS
    from executor.options import parser

    output = tmp_path / 'mine.yaml'
    assert main(['import', str(SCRIPTS / name / 'train.py'), '--output', str(output), '--json']) == 0
    assert load_case(output).program.world == 8
    assert main(['run', str(output), '--quiet']) == 0
    assert COMMANDS['numerics'](parser().parse_args(['numerics', str(output)])) == 0


HEAD = load_table(__file__, 'HEAD')
NET = load_table(__file__, 'NET')
TAIL = load_table(__file__, 'TAIL')


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / 'train.py'
    path.write_text(text, encoding='utf-8')
    return path


def assert_refused(path: Path, line: int, words: str, **given: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        imported(path, given=given)
    told = [(problem.place, problem.what) for problem in refused.value.problems]
    assert any(place == f'{path}:{line}' and words in what for place, what in told), told


@pytest.mark.parametrize(
    ('before', 'after', 'where', 'words'), load_table(__file__, 'test_what_is_not_understood_is_refused_by_its_line')
)
def test_what_is_not_understood_is_refused_by_its_line(
    tmp_path: Path, before: str, after: str, where: int, words: str
) -> None:
    text = HEAD + NET + TAIL
    assert before in text
    assert_refused(script(tmp_path, text.replace(before, after)), where, words, worker_num='8')


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


FUNCTION = load_table(__file__, 'FUNCTION')


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


def test_layers_that_a_loop_puts_into_a_list_all_count(tmp_path: Path) -> None:
    """Also by a list of Python, by names, in a class that extends another, and in a file beside."""
    (tmp_path / 'blocks.py').write_text(
        f'{HEAD}\nclass Base(nn.Cell):\n    def __init__(self, width, *, depth=3):\n        super().__init__()\n'
        '        self.blocks, parts = nn.CellList(), []\n        more = parts\n        for i in range(depth):\n'
        '            if i == 2:\n                continue\n            more += [nn.Dense(width, width)]\n'
        '            self.blocks.append(nn.SequentialCell(parts[i:] + [nn.ReLU()]))\n        parts.append(3)\n'
        "        for i in range(2):\n            setattr(self, f'last{i}', nn.Dense(width, width))\n",
        encoding='utf-8',
    )
    net = (
        'from blocks import Base\nclass Net(Base):\n    def __init__(self, width):\n        super().__init__(width)\n'
        '    def construct(self, x):\n        for one in self.blocks:\n            x = one(x)\n'
        '        return self.last1(self.last0(x) * 0.5)\n'
    )
    marks = (
        'net = Net(16)\nfor i, block in enumerate(net.blocks):\n    block[0].pipeline_stage = i\n'
        'net.blocks[1].recompute()\n'
        'ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", pipeline_stages=2)\n'
        'net = nn.PipelineCell(nn.WithLossCell(net, nn.MSELoss()), 4, stage_config={"_backbone.last1": 1})'
    )
    path = script(tmp_path, HEAD + net + TAIL.replace('net = Net()', marks).replace('nn.MSELoss(), nn', 'optimizer=nn'))
    values = imported(path, given={'worker_num': '8'}).values
    found = kinds(values['workload.network'])
    assert [kind for kind, _ in found] == ['dense', 'relu', 'dense', 'relu', 'dense', 'scale', 'dense']
    assert [spec.get('pipeline_stage') for _, spec in found] == [0, None, 1, None, None, None, 1]
    assert [spec.get('recompute') for _, spec in found] == [None, None, True, True, None, None, None]
    assert (values['plan.pipeline'], values['plan.micro_batches'], values['workload.batch']) == (2, 4, 32)


@pytest.mark.parametrize(
    ('before', 'after', 'key', 'expected'), load_tree(__file__, 'test_what_is_said_otherwise_is_read')
)
def test_what_is_said_otherwise_is_read(tmp_path: Path, before: str, after: str, key: str, expected: Any) -> None:
    text = HEAD + NET + TAIL
    assert before in text
    assert imported(script(tmp_path, text.replace(before, after)), given={'worker_num': '8'}).values[key] == expected


def test_widths_are_those_of_where_they_stand(tmp_path: Path) -> None:
    """A default of its definition, a name of the function around a class, and a field of a class that is set later."""
    net = """W, X = 8, 9
class Wide:
    k = 2
class Inner(nn.Cell):
    def __init__(self, w=W, *, x=X):
        super().__init__()
        self.one, self.two = nn.Dense(16, w), nn.Dense(w, Wide.k * x)
    def construct(self, x):
        return self.more(self.one(x))
    def more(self, x):
        return self.two(x)
def make():
    W = 11
    class Outer(Inner):
        def __init__(self):
            super().__init__(x=W)
    return Outer()
W, X, Wide.k = 64, 65, 3
net = make()"""
    values = imported(script(tmp_path, HEAD + TAIL.replace('net = Net()', net)), given={'worker_num': '8'}).values
    assert [(spec['in'], spec['out']) for _, spec in kinds(values['workload.network'])] == [(16, 8), (8, 33)]


@pytest.mark.parametrize(
    ('body', 'width'), load_table(__file__, 'test_what_outlives_a_branch_or_a_loop_is_known_or_refused')
)
def test_what_outlives_a_branch_or_a_loop_is_known_or_refused(tmp_path: Path, body: str, width: int) -> None:
    """Names of the module, and elements of a dict; each width is what Python makes of it."""
    text = f'W = 8\n{body}\n{HEAD}{NET}{TAIL}'.replace('Dense(16, 16)', 'Dense(16, W)')
    path = script(tmp_path, text.replace('Dense(16, 4)', 'Dense(W, 4)'))
    if not width:
        with pytest.raises(ScheduleError, match=r'train\.py:\d+: (whether this is done|.* is no number that)'):
            imported(path, given={'worker_num': '8'})
        return
    values = imported(path, given={'worker_num': '8'}).values
    assert [spec['out'] for _, spec in kinds(values['workload.network'])] == [width, 4]


def test_what_the_environment_and_options_say_is_asked_for_or_read(tmp_path: Path) -> None:
    options = (
        'import argparse, os\nparser = argparse.ArgumentParser()\n'
        'parser.add_argument("--copies", type=int, default=2)\nargs = parser.parse_args()\n'
        'if os.getenv("WIDE") == 1:\n'
        '    ms.set_auto_parallel_context(comm_fusion={"allreduce": {"mode": "auto", "config": None}})\n'
        'net = nn.MicroBatchInterleaved(nn.WithLossCell(Net(), nn.MSELoss()), args.copies)'
    )
    text = HEAD + NET + TAIL.replace('net = Net()', options).replace('nn.MSELoss(), nn.M', 'optimizer=nn.M')
    path = script(tmp_path, text)
    with pytest.raises(ScheduleError, match=r'train.py:18: whether this is done is not known'):
        imported(path, given={'worker_num': '8'})
    given = {'worker_num': '8', 'WIDE': '1'}
    values = imported(path, given=given).values
    assert (values['plan.copies'], values['plan.fusion']) == (2, 'auto')
    start = tmp_path / 'run.sh'
    start.write_text(
        '# mpirun -n 4 python train.py\nfor i in 0 1; do\n  export MS_WORKER_NUM=8\n  python ./train.py --copies 4\n'
    )
    assert imported(path, given={'WIDE': '1'}).values['plan.copies'] == 4
    (tmp_path / 'other.sh').write_text('msrun --worker_num=16 \\\n  train.py\n')
    with pytest.raises(ScheduleError, match='several numbers of devices'):
        imported(path, given={'WIDE': '1'})


def test_a_function_that_is_differentiated_is_followed_to_its_loss(tmp_path: Path) -> None:
    """Every cell that it calls counts, and what it does to the loss; ranks of data_parallel sum what it makes."""
    tail = (
        'net = Net()\nhead = nn.SequentialCell(net, nn.Dense(4, 4))\nloss = nn.MSELoss()\n'
        'def forward(x, y):\n    return loss(head(x), y)\n'
        'grads = ms.value_and_grad(forward, None, net.trainable_params())\nreduce = nn.DistributedGradReducer([])\n'
        'update = nn.SGD(head.trainable_params(), 0.1)\nfor x, y in ds.MnistDataset("d").batch(8):\n'
        '    update(ops.clip_by_global_norm(reduce(grads(x, y)), 0.5))\n'
    )
    path = script(tmp_path, HEAD + NET + tail)
    values = imported(path, given={'worker_num': '8'}).values
    assert [kind for kind, _ in kinds(values['workload.network'])] == ['dense'] * 3
    assert values['workload.clip_norm'] == 0.5
    for before, after, words in (
        ('return loss(head(x), y)', 'return loss(net(x), y) + 0.1', 'what is differentiated returns no loss'),
        ('return loss(', 'return 2 * nn.WithLossCell(head, loss)(x, y)\n    return loss(', 'returns no loss'),
        ('ds.MnistDataset("d").batch(8)', 'near(ds.MnistDataset("d").batch(8))', 'the batch is no number'),
        ('nn.SGD(head', 'nn.SGD(net', 'which weights are updated is not known'),
        ('reduce(grads(x, y))', 'grads(x, y)', ''),
        ('nn.DistributedGradReducer([])', 'None', 'nothing sums gradients over devices'),
    ):
        path.write_text((HEAD + NET + tail).replace(before, after), encoding='utf-8')
        if words:
            with pytest.raises(ScheduleError, match=words):
                imported(path, given={'worker_num': '8'})
        else:
            assert imported(path, given={'worker_num': '8'}).values['plan.data'] == 8


def test_layouts_name_axes_of_one_device_matrix(tmp_path: Path) -> None:
    """A later Layout whose axes are products of those of the first; a weight that lies transposed."""
    net = (
        FUNCTION.replace(
            'self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))',
            'lay, one = ms.Layout((2, 2, 2), ("dp", "sp", "mp")), ms.Layout((8,), ("all",))\n'
            '        both = ("sp", "mp")\n'
            '        self.matmul = ops.MatMul(transpose_b=True).shard((lay("dp", both), lay("None", both)))\n'
            '        self.relu = ops.ReLU().shard((one("all", "None"),))',
        )
        .replace('[16, 32]', '[32, 16]')
        .replace('return y', 'return self.relu(y)')
    )
    values = imported(script(tmp_path, net), given={'worker_num': '8'}).values
    assert values['plan.device_matrix'] == {'dp': 2, 'sp': 2, 'mp': 2}
    (_, dense), (_, relu) = kinds(values['workload.network'])
    assert dense == {'in': 16, 'out': 32, 'bias': True, 'layout': [['dp', 'sp+mp'], ['sp+mp', 'none']]}
    assert relu == {'layout': [['dp+sp+mp', 'none']]}
    path = script(tmp_path, net.replace('(8,), ("all",)', '(2, 4), ("all", "b")'))
    assert imported(path, given={'worker_num': '8'}).values['plan.device_matrix'] == {'dp': 2, 'sp': 2, 'mp': 2}
    with pytest.raises(ScheduleError, match='the layouts are of 8 devices, and a stage has 16'):
        imported(path, given={'worker_num': '16'})


@pytest.mark.parametrize('sample', SAMPLES, ids=lambda sample: sample.of)
def test_a_script_with_the_calls_of_a_public_sample_is_read_or_refused(sample: Sample, tmp_path: Path) -> None:
    """What comes in is lowered on the devices of its launcher's line."""
    path = tmp_path / sample.of.partition('/')[2]
    path.write_text(sample.text, encoding='utf-8')
    (tmp_path / 'run.sh').write_text(sample.launcher.replace('{}', path.name), encoding='utf-8')
    mark, words = sample.refused
    if mark:
        assert_refused(path, sample.text[: sample.text.index(mark)].count('\n') + 1, words)
        return
    output = tmp_path / 'mine.yaml'
    assert main(['import', str(path), '--output', str(output), '--json']) == 0
    values = imported(path, given={}).values
    assert [kind for kind, _ in kinds(values['workload.network'])] == sample.kinds
    assert {key: values.get(key) for key in sample.values} == sample.values
    assert load_case(output).program.world == 8


def test_the_recorded_samples_are_those_of_our_scripts() -> None:
    recorded = [row['path'] for row in read_csv(Path(__file__).parent / 'mindspore_samples.csv')]
    assert recorded == [f'docs/sample_code/{sample.of}' for sample in SAMPLES]
