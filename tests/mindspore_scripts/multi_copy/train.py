"""Our own script with the calls of MindSpore's multi-copy tutorial (2.10)."""

import os

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, train
from mindspore.communication import init
from mindspore.nn.utils import no_init_parameters
from mindspore.parallel.auto_parallel import AutoParallel

ms.set_context(mode=ms.GRAPH_MODE)
init()


def images(size):
    found = ds.MnistDataset(os.getenv('DATA_PATH'))
    found = found.map([ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()], 'image')
    found = found.batch(size)
    return found


class Digits(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.SequentialCell(
            nn.Dense(28 * 28, 512, weight_init='normal', bias_init='zeros'),
            nn.ReLU(),
            nn.Dense(512, 512, weight_init='normal', bias_init='zeros'),
            nn.ReLU(),
            nn.Dense(512, 10, weight_init='normal', bias_init='zeros'),
        )

    def construct(self, x):
        x = self.flatten(x)
        return self.layers(x)


with no_init_parameters():
    net = Digits()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)
loss = nn.CrossEntropyLoss()
net = ms.parallel.nn.MicroBatchInterleaved(nn.WithLossCell(net, loss), 2)
net = AutoParallel(net, parallel_mode='semi_auto')
model = ms.Model(net, optimizer=optimizer)
model.train(10, images(32), callbacks=[train.LossMonitor(100)])
