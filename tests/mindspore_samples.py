"""Our own scripts with the calls of public samples of MindSpore, put together from what these have in common.

The originals are named in tests/mindspore_samples.csv; tests/prove_samples.py reads them as they stand.
"""

from dataclasses import dataclass, field
from typing import Any, Final

IMPORTS: Final = """
import os
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
import mindspore.runtime as rt
from mindspore import nn, ops, train, Parameter, Tensor
from mindspore.common.initializer import HeUniform, initializer
from mindspore.communication import get_group_size, get_rank, init
from mindspore.nn.utils import no_init_parameters
from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import GradAccumulation
ms.set_context(mode=ms.GRAPH_MODE)
"""
SEMI: Final = (
    'ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL{})\ninit()\nms.set_seed(1)\n'
)
DATA: Final = 'ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)\ninit()\n'
IMAGES: Final = """
def images(size):
    shards = {'num_shards': get_group_size(), 'shard_id': get_rank()}
    found = ds.MnistDataset(os.getenv('DATA_PATH'), **shards)
    found = found.map([ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()], 'image')
    found = found.map(ds.transforms.TypeCast(ms.int32), 'label')
    return found.batch(size)
data = images(32)
update, loss_of = nn.SGD(net.trainable_params(), 1e-2), nn.CrossEntropyLoss()
"""
DIGITS: Final = """
class Digits(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layer1 = nn.Dense(28 * 28, 512)
        self.relu1 = nn.ReLU()
        self.layer2 = nn.Dense(512, 512)
        self.relu2 = nn.ReLU()
        self.layer3 = nn.Dense(512, 10)
    def construct(self, x):
        x = self.relu1(self.layer1(self.flatten(x)))
        return self.layer3(self.relu2(self.layer2(x)))
net = Digits()
"""
STEP: Final = """
def forward(image, target):
    logits = net(image)
    return loss_of(logits, target), logits
gradients = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
@ms.jit
def step(image, target):
    (loss, _), found = gradients(image, target)
    update(found)
    return loss
"""
SUMMED: Final = STEP.replace('update(found)', 'update(nn.DistributedGradReducer(update.parameters)(found))')
TURNS: Final = """
for epoch in range(10):
    i = 0
    for image, label in data:
        loss = step(image, label)
        if i % 10 == 0:
            print('epoch: %s, step: %s, loss is %s' % (epoch, i, loss))
        i += 1
"""
BY_HAND: Final = STEP + TURNS
PRODUCT: Final = """
class Product(nn.Cell):
    def __init__(self, weight=None, shape=None):
        super().__init__()
        if shape is None:
            shape = [28 * 28, 512]
        self.param = Parameter(initializer(HeUniform(5 ** 0.5), shape), name='param')
        if weight is not None:
            self.param = weight
        self.print = ops.Print()
        self.matmul = ops.MatMul()
    def construct(self, x):
        out = self.matmul(x, self.param)
        self.print('out is:', out)
        return out
"""
PRODUCTS: Final = """
class Products(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = ops.Flatten()
        sizes = ([28 * 28, 512], [512, 512], [512, 10])
        self.w1, self.w2, self.w3 = [ms.Parameter(initializer('normal', one, ms.float32)) for one in sizes]
        self.matmul1 = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu1 = ops.ReLU().shard(((4, 1),))
        self.matmul2 = ops.MatMul().shard(((1, 8), (8, 1)))
        self.relu2 = ops.ReLU().shard(((8, 1),))
        self.matmul3 = ops.MatMul()
    def construct(self, x):
        x = self.relu1(self.matmul1(self.flatten(x), self.w1))
        return self.matmul3(self.relu2(self.matmul2(x, self.w2)), self.w3)
"""
DENSE: Final = ['flatten', 'dense', 'relu', 'dense', 'relu', 'dense']


@dataclass(frozen=True)
class Sample:
    """A script. Arguments: ``of``, the public one; ``values`` that it comes to; ``refused``, the line and why."""

    of: str
    text: str
    kinds: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    refused: tuple[str, str] = ('', '')
    launcher: str = 'mpirun -n 8 --output-filename log_output --merge-stderr-to-stdout python {}'


MSRUN: Final = (
    'msrun --worker_num=8 --local_worker_num=8 \\\n      --join=True --log_dir=./log_output \\\n      pytest -s {}'
)
WORKERS: Final = (
    'for((i=0;i<8;i++));\ndo\n    export MS_WORKER_NUM=8   # processes\n    python ./{} > {}.log 2>&1 &\ndone\n'
)
SAMPLES: Final = (
    Sample(
        'comm_subgraph/train.py',
        IMPORTS + SEMI.format(', enable_parallel_optimizer=True') + DIGITS
        + "for item in net.trainable_params():\n    print(f'{item.name} has the id {item.comm_fusion}')\n"
        + IMAGES + BY_HAND,
        DENSE, {'plan.hsdp': 'level1', 'plan.data': 8, 'workload.batch': 256},
    ),
    Sample(
        'dataset_slice/train.py',
        IMPORTS + SEMI.format('') + 'high, wide = 1, 4\n'
        + 'ms.set_auto_parallel_context(dataset_strategy=((1, 1, high, wide), (1,)))\n' + DIGITS + IMAGES + BY_HAND,
        refused=('dataset_strategy=', 'a dataset_strategy by slices is not read'), launcher=MSRUN,
    ),
    Sample(
        'disaster_recover/train.py',
        IMPORTS + DATA + DIGITS + IMAGES
        + "kept = train.ModelCheckpoint('train', str(get_rank()), train.CheckpointConfig(100, keep_checkpoint_max=5))\n"
        + 'model = ms.Model(net, loss_fn=loss_of, optimizer=update)\n'
        + 'model.train(10, data, callbacks=[train.LossMonitor(20), kept])\n',
        DENSE, {'plan.data': 8, 'workload.batch': 256}, launcher=WORKERS,
    ),
    Sample(
        'distributed_comm_fusion/fusion_example_cell.py',
        IMPORTS + SEMI.format('') + """
class Pair(nn.Cell):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Dense(10, 32), nn.Dense(32, 10)
    def construct(self, x):
        x = self.into(x)
        return self.out(x)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten, self.head = nn.Flatten(), nn.Dense(28 * 28, 10)
        self.layer1, self.layer2 = Pair(), Pair()
    def construct(self, x):
        return self.layer2(self.layer1(self.head(self.flatten(x))))
net = Net()
net.head.set_comm_fusion(0)
net.layer1.set_comm_fusion(1)
net.layer2.set_comm_fusion(2)
""" + IMAGES + BY_HAND,
        ['flatten', 'dense', 'dense', 'dense', 'dense', 'dense'], {'plan.fusion': 'ids', 'plan.data': 8},
    ),
    Sample(
        'distributed_data_parallel/distributed_data_parallel.py',
        IMPORTS + DATA + DIGITS + IMAGES + SUMMED + TURNS, DENSE, {'plan.data': 8, 'workload.batch': 256},
    ),
    Sample(
        'distributed_gradient_accumulation/train.py',
        IMPORTS + 'init()\n' + DIGITS.replace('net = ', 'with no_init_parameters():\n    net = ') + IMAGES
        + 'net = AutoParallel(GradAccumulation(nn.WithLossCell(net, loss_of), 4))\nnet.hsdp()\n'
        + 'ms.Model(net, optimizer=update).train(10, data, callbacks=[train.LossMonitor(100)])\n',
        DENSE, {'plan.hsdp': 'level1', 'plan.micro_batches': 4, 'workload.batch': 256}, launcher=MSRUN,
    ),
    Sample(
        'distributed_graph_partition/train.py',
        IMPORTS + 'init()\n' + DIGITS + "net.layer1.place('MS_WORKER', 0)\n" + IMAGES
        + 'ms.Model(net, loss_of, update).train(10, data)\n',
        refused=('.place(', '.place() of a layer is not known'), launcher=WORKERS,
    ),
    Sample(
        'distributed_operator_parallel/distributed_operator_parallel.py',
        IMPORTS + "rt.set_memory(max_size='28GB')\ninit()\nms.set_seed(1)\n" + PRODUCTS + 'def test_it():\n'
        + (
            'with no_init_parameters():\n    net = Products()\n' + IMAGES + STEP.replace('@ms.jit\n', '')
            + "step = AutoParallel(step, parallel_mode='semi_auto')\n" + TURNS
        ).replace('\n', '\n    ').replace('with no', '    with no', 1),
        DENSE, {'plan.dataset': 'data-parallel', 'workload.batch': 256}, launcher=MSRUN,
    ),
    Sample(
        'distributed_pipeline_parallel/distributed_pipeline_parallel.py',
        IMPORTS + SEMI.format(', pipeline_stages=2') + PRODUCT + DIGITS.replace('nn.Dense(28 * 28, 512)', 'Product()')
        + 'net.layer1.pipeline_stage = net.relu1.pipeline_stage = net.layer2.pipeline_stage = 0\n'
        + 'net.relu2.pipeline_stage = net.layer3.pipeline_stage = 1\n' + IMAGES + """
whole = nn.PipelineCell(nn.WithLossCell(net, loss_of), 4)
whole.set_train()
def forward(image, target):
    loss = whole(image, target)
    return loss
gradients = ops.value_and_grad(forward, None, update.parameters)
reducer = nn.PipelineGradReducer(update.parameters)
@ms.jit
def step(image, target):
    loss, found = gradients(image, target)
    update(reducer(found))
    return loss
""" + TURNS,
        DENSE, {'plan.pipeline': 2, 'plan.micro_batches': 4, 'plan.data': 4, 'workload.batch': 128},
    ),
    Sample(
        'fault_recover/train.py',
        IMPORTS + 'import argparse\nparser = argparse.ArgumentParser()\n'
        + "parser.add_argument('--is_recover', type=int, default=0, choices=[1, 0])\nargs = parser.parse_args()\n"
        + SEMI.format(', enable_parallel_optimizer=True')
        + PRODUCTS.replace('.shard(((1, 8), (8, 1)))', '').replace('.shard(((8, 1),))', '')
        + 'net = Products()' + IMAGES
        + 'model = ms.Model(net, loss_fn=loss_of, optimizer=update)\nif bool(args.is_recover):\n'
        + "    kept = ms.load_checkpoint('at {}'.format(get_rank()))\n    model.infer_train_layout(data)\n"
        + 'model.train(2, data, callbacks=[train.LossMonitor()], dataset_sink_mode=True)\n',
        DENSE, {'plan.hsdp': 'level1', 'plan.dataset': 'data-parallel', 'workload.batch': 256},
    ),
)  # fmt: skip
