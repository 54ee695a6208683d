"""Data ranks that train with torch's own FSDP2 or DDP: begun by a test.

The folder holds the jobs; what each rank trained, and how many messages that took, is written there.
"""

from collections import Counter
from contextlib import nullcontext

import torch
import torch._dynamo  # FSDP2 would import it later, once a rank.
import torch.distributed as dist
from rank_jobs import fork
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch_ranks import model

from executor.draws import batch_of
from executor.reference import _optimizer
from simpar.model import Dense

MESSAGES = {'c10d::_allgather_base_': 'all_gather', 'c10d::_reduce_scatter_base_': 'reduce_scatter'}


class Counting(TorchDispatchMode):
    """Counts the messages of what runs within it."""

    def __init__(self):
        super().__init__()
        self.messages = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator._schema.name
        if name in MESSAGES:
            self.messages[MESSAGES[name]] += 1
        return operator(*args, **(kwargs or {}))


def wrapped(job, blocks):
    """The model as torch's engine wants it; every dense layer is gathered and reduced on its own."""
    whole = torch.nn.Sequential(*blocks)
    if job['engine'] == 'ddp':
        return DistributedDataParallel(whole, bucket_cap_mb=job['bucket'])
    mesh = init_device_mesh('cpu', (dist.get_world_size(),))
    for block in blocks:
        # What the backward begins with need not be dropped before: FSDP2's documentation says so of the last block.
        again = job['engine'] == 'fsdp, gathered twice' and block is not blocks[-1]
        fully_shard(block, mesh=mesh, reshard_after_forward=again)
    return fully_shard(whole, mesh=mesh)


def without_sums(whole, wanted):
    """Gradients stay where they are, unless this is the micro-batch behind which they are summed."""
    if isinstance(whole, FSDPModule):
        whole.set_requires_gradient_sync(wanted)
        return nullcontext()
    return nullcontext() if wanted else whole.no_sync()


def train(job, rank, world):
    workload, seed, count = job['workload'], job['seed'], job['micro_batches']
    blocks = model(workload, seed)
    whole = wrapped(job, blocks)
    optimizer = _optimizer(workload, dict(whole.named_parameters()))
    dense = [layer for layer in workload.model.layers if isinstance(layer, Dense)]
    sizes = {'x': dense[0].inputs, 'target': dense[-1].outputs}
    messages = {}
    for step in range(job['steps']):
        x, target = (
            batch_of(name, 'normal:1', (workload.batch, size), torch.float64, seed, step).chunk(world)[rank]
            for name, size in sizes.items()
        )
        optimizer.zero_grad()
        with Counting() as seen:
            for index, (part, wanted) in enumerate(zip(x.chunk(count), target.chunk(count), strict=True)):
                with without_sums(whole, job['each'] or index == count - 1):
                    (torch.nn.functional.mse_loss(whole(part), wanted) / count).backward()
        messages = dict(seen.messages)
        if workload.clip_norm:
            torch.nn.utils.clip_grad_norm_(whole.parameters(), workload.clip_norm)
        optimizer.step()
    if isinstance(whole, DistributedDataParallel):
        buckets = whole._get_ddp_logging_data()
        messages['all_reduce'] = len((buckets.get('rebuilt_bucket_sizes') or buckets['bucket_sizes']).split(','))
    return {
        'messages': messages,
        'parameters': {
            f'dense{index}.{name}': (value.full_tensor() if isinstance(value, DTensor) else value).detach()
            for index, block in enumerate(blocks)
            for name, value in block[0].named_parameters()
        },
    }


def main(world, folder):
    return fork(lambda job, rank: train(job, rank, world), world, folder)
