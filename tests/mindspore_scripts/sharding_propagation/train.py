"""Our own script with the calls of MindSpore's quick start of sharding propagation (2.0)."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Model, Parameter, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_rank, init
from mindspore.nn import Cell, LossMonitor, Momentum, MSELoss

step_per_epoch = 4
samples = 2
in_dim = 32
hidden_dim = 16
out_dim = 16

ms.set_context(mode=ms.GRAPH_MODE, device_target='GPU', save_graphs=2, save_graphs_path='../saved_graph')
ms.set_auto_parallel_context(
    parallel_mode=ms.ParallelMode.AUTO_PARALLEL, search_mode='sharding_propagation', dataset_strategy='data_parallel'
)
init('nccl')
rank_id = get_rank()


class Net(Cell):
    """Two products."""

    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.in_dim = in_dim
        self.hidden_dim = hidden_dim
        self.out_dim = out_dim
        self.weight = Parameter(initializer('normal', [self.in_dim, self.hidden_dim]), 'w')
        self.weight2 = Parameter(initializer('normal', [self.hidden_dim, self.out_dim]), 'w2')
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU()
        self.matmul2 = ops.MatMul()

    def construct(self, x):
        out = self.matmul(x, self.weight)
        out = self.relu(out)
        out = self.matmul2(out, self.weight2)
        return out


def random_samples(size, steps, into, out):
    images = np.random.rand(size, into).astype(np.float32)
    labels = np.random.rand(size, out).astype(np.float32)

    def generate():
        for _ in range(steps):
            yield images, labels

    return generate


dataset = ds.GeneratorDataset(random_samples(samples, step_per_epoch, in_dim, out_dim), ['input', 'label'])
net = Net(in_dim, hidden_dim, out_dim)
loss = MSELoss()
opt = Momentum(net.trainable_params(), 0.2, 0.1)
model = Model(net, loss_fn=loss, optimizer=opt)
model.train(5, dataset, callbacks=[LossMonitor()], dataset_sink_mode=False)
