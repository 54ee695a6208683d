"""Strategies by hand on the product of a Dense, a residual sum, blocks in a loop, stages by AutoParallel."""

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops
from mindspore.parallel.auto_parallel import AutoParallel


class Block(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm((width,))
        self.up = nn.Dense(width, hidden, has_bias=False)
        self.down = nn.Dense(hidden, width, has_bias=False)
        self.act = nn.GELU()
        self.add = ops.Add()
        self.up.matmul.shard(((2, 1), (4, 1)))
        self.up.bias_add.shard(((2, 4), (4,)))
        self.act.gelu.shard(((2, 4),))
        self.down.matmul.shard(((2, 4), (1, 4)))

    def construct(self, x):
        inner = self.norm(x)
        inner = self.down(self.act(self.up(inner)))
        return self.add(x, inner)


class Net(nn.Cell):
    def __init__(self, blocks=2, width=64):
        super().__init__()
        self.blocks = nn.CellList([Block(width, 4 * width) for _ in range(blocks)])
        self.head = nn.Dense(width, 16)

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


net = Net(3)
loss = nn.MSELoss()
optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=1e-3)
network = AutoParallel(nn.WithLossCell(net, loss), parallel_mode='semi_auto')
network.dataset_strategy('full_batch')
model = ms.Model(network, optimizer=optimizer)
model.train(1, ds.NumpySlicesDataset({}).batch(16))
