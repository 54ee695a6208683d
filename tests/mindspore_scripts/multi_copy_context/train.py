"""Our own script with the calls of MindSpore's multi-copy tutorial (2.3)."""

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, train
from mindspore.communication import init

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.SEMI_AUTO_PARALLEL)
init()


class Digits(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.SequentialCell(nn.Dense(784, 512), nn.ReLU(), nn.Dense(512, 512), nn.ReLU(), nn.Dense(512, 10))

    def construct(self, x):
        return self.layers(self.flatten(x))


def images(size):
    return ds.MnistDataset('data').batch(size)


net = Digits()
optimizer = nn.SGD(net.trainable_params(), 1e-2)
net = nn.MicroBatchInterleaved(nn.WithLossCell(net, nn.CrossEntropyLoss()), 2)
model = ms.Model(net, optimizer=optimizer)
model.train(10, images(32), callbacks=[train.LossMonitor(100)])
