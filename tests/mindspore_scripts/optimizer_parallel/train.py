"""Our own script with the calls of MindSpore's optimizer-parallel tutorial."""

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.communication import init
from mindspore.nn.utils import no_init_parameters
from mindspore.parallel.auto_parallel import AutoParallel

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(1)


def images(size):
    """The samples of a device."""
    found = ds.MnistDataset('data')
    found = found.batch(size)
    return found


data = images(32)


class Digits(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layer1 = nn.Dense(28 * 28, 512)
        self.layer2 = nn.Dense(512, 512)
        self.layer3 = nn.Dense(512, 10)
        self.relu = nn.ReLU()

    def construct(self, x):
        x = self.flatten(x)
        x = self.layer1(x)
        x = self.relu(x)
        x = self.layer2(x)
        x = self.relu(x)
        return self.layer3(x)


with no_init_parameters():
    net = Digits()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)
net.layer1.set_comm_fusion(0)
net.layer2.set_comm_fusion(1)
net.layer3.set_comm_fusion(2)
loss_fn = nn.CrossEntropyLoss()


def forward(images, target):
    logits = net(images)
    loss = loss_fn(logits, target)
    return loss, logits


gradients = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)


@ms.jit
def train_step(inputs, targets):
    (loss, _), found = gradients(inputs, targets)
    optimizer(found)
    return loss


parallel = AutoParallel(train_step, parallel_mode='semi_auto')
parallel.hsdp()
for epoch in range(10):
    i = 0
    for image, label in data:
        loss = parallel(image, label)
        if i % 10 == 0:
            print('epoch: %s, step: %s, loss is %s' % (epoch, i, loss))
        i += 1
