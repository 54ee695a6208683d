"""Trainings in plain torch, in turns, timed and recorded: alone, by DDP, FSDP2, and tensor parallelism by hand.

python tests/recorded_pairs.py FOLDER RANKS '[["ddp", {"layers": 2, ...}, true], ...]' ROUNDS RECORDED
writes FOLDER/N/rankR.json, a recording of each training where that is true and of each rank, and FOLDER/steps.json with
rank 0's seconds by round.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from recorded_training import VOCABULARY, Gpt, record, stepper
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

STEPS = 3
"""Steps of a training in a round, of which the first, whose caches are another training's, does not count."""


class Copied(torch.autograd.Function):
    """What all ranks have goes to each part of a product; its gradients are summed (f of Megatron-LM)."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.contiguous())
        return gradient


class Summed(torch.autograd.Function):
    """Results of the parts are summed; their gradients are alike (g of Megatron-LM)."""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.contiguous())
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Columns(nn.Module):
    """A linear layer of which each rank has some of the results."""

    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        self.own = nn.Linear(inputs, outputs // dist.get_world_size(), bias=bias)

    def forward(self, x):
        return self.own(Copied.apply(x))


class Rows(nn.Module):
    """A linear layer of which each rank has some of the inputs."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.own = nn.Linear(inputs // dist.get_world_size(), outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return Summed.apply(self.own(x)) + self.bias


class Vocabulary(nn.Module):
    """An embedding of which each rank has some rows."""

    def __init__(self, rows, hidden):
        super().__init__()
        self.size = rows // dist.get_world_size()
        self.own = nn.Embedding(self.size, hidden)

    def forward(self, tokens):
        mine = tokens - dist.get_rank() * self.size
        other = (mine < 0) | (mine >= self.size)
        return Summed.apply(self.own(mine.masked_fill(other, 0)).masked_fill(other[..., None], 0.0))


class Loss(torch.autograd.Function):
    """Cross-entropy of logits of which each rank has some columns."""

    @staticmethod
    def forward(ctx, logits, targets):
        most = logits.max(-1).values
        dist.all_reduce(most, dist.ReduceOp.MAX)
        mine = targets - dist.get_rank() * logits.shape[-1]
        other = (mine < 0) | (mine >= logits.shape[-1])
        shifted = logits - most[:, None]
        powers = shifted.exp()
        mine = mine.masked_fill(other, 0)
        parts = torch.stack((shifted.gather(-1, mine[:, None])[:, 0].masked_fill(other, 0.0), powers.sum(-1)))
        dist.all_reduce(parts)
        ctx.save_for_backward(powers.div_(parts[1][:, None]), mine, other)
        return (parts[1].log() - parts[0]).mean()

    @staticmethod
    def backward(ctx, gradient):
        chances, mine, other = ctx.saved_tensors
        chances.scatter_add_(-1, mine[:, None], -(~other).to(chances.dtype)[:, None])
        return chances.mul_(gradient / len(mine)), None


def in_parts(model, hidden):
    """The model with parts of its products on each rank."""
    for block in model.blocks:
        block.qkv, block.up = Columns(hidden, 3 * hidden), Columns(hidden, 4 * hidden)
        block.out, block.down = Rows(hidden, hidden), Rows(4 * hidden, hidden)
    model.tokens, model.head = Vocabulary(VOCABULARY, hidden), Columns(hidden, VOCABULARY, bias=False)
    return model


def wrapped(kind, hidden, layers, sequence):
    """The model as its script would have it."""
    model = Gpt(hidden, layers, sequence)
    if kind == 'fsdp2':
        for block in model.blocks:
            fully_shard(block)
    of = {'plain': nn.Identity(), 'ddp': nn.parallel.DistributedDataParallel, 'fsdp2': fully_shard}
    return in_parts(model, hidden) if kind == 'tensor' else of[kind](model)


def main(rank, folder, ranks, trainings, rounds, recorded):
    """One rank: each training in turn, for some rounds; then a recording of each."""
    torch.set_num_threads(1)
    os.environ |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': os.environ.get('MASTER_PORT', '29533')}
    if hasattr(os, 'sched_setaffinity'):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group('gloo', rank=rank, world_size=ranks)
    torch.manual_seed(0)
    steps = []
    for kind, shape, _ in trainings:
        batch, sequence = shape.pop('batch'), shape['sequence']
        loss_of = Loss.apply if kind == 'tensor' else functional.cross_entropy
        steps.append(stepper(wrapped(kind, **shape), batch, sequence, loss_of, fused=True))
    seconds = [[] for _ in steps]
    # DDP makes its buckets in the first step, and FSDP2 its groups.
    for step in steps * 2:
        step()
    for _ in range(rounds):
        for step, mine in zip(steps, seconds, strict=True):
            times = []
            for _ in range(STEPS):
                dist.barrier()
                began = time.perf_counter()
                step()
                times.append(time.perf_counter() - began)
            mine.append(times[1:])
    for number, (step, (*_, kept)) in enumerate(zip(steps, trainings, strict=True)):
        if not kept:
            continue
        where = folder / str(number)
        where.mkdir(exist_ok=True)
        step()
        record(where / f'rank{rank}.json', step, recorded)
    if rank == 0:
        (folder / 'steps.json').write_text(json.dumps(seconds), encoding='utf-8')
    dist.destroy_process_group()


if __name__ == '__main__':
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    ranks, rounds, recorded = (int(sys.argv[at]) for at in (2, 4, 5))
    torch.multiprocessing.spawn(main, (where, ranks, json.loads(sys.argv[3]), rounds, recorded), ranks)
