"""The same trainings by hand in torch: DDP, FSDP2, Schedule1F1B and experts on two ranks, to compare step times.

Each rank is a process that trains so many steps as its parent asks for, and tells when they ended.
"""

import multiprocessing
import os
import time

import torch
from recorded_training import VOCABULARY, Block, Gpt
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn import functional

RANKS = 2
MICRO_BATCHES = 4
EXPERTS, TOP = 4, 2
"""Of a mixture, half of them on each rank; experts of a token."""


def loss_of(logits, tokens):
    """Cross entropy over all positions."""
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens.reshape(-1))


def ddp(model, batch, sequence):
    """Data parallelism: gradients are summed in buckets beside the backward."""
    whole = nn.parallel.DistributedDataParallel(model)
    return _by_data(whole, batch, sequence)


def fsdp2(model, batch, sequence):
    """ZeRO-3: every layer's weights are gathered before use and freed behind it."""
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return _by_data(fully_shard(model), batch, sequence)


def _by_data(whole, batch, sequence):
    optimizer = torch.optim.Adam(whole.parameters(), 1e-3)

    def step():
        tokens = torch.randint(0, VOCABULARY, (batch // RANKS, sequence))
        loss = loss_of(whole(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Half(nn.Module):
    """One of two stages of the model."""

    def __init__(self, model, rank):
        super().__init__()
        middle = len(model.blocks) // 2
        self.blocks = model.blocks[:middle] if rank == 0 else model.blocks[middle:]
        self.model = model if rank == 0 else None
        self.norm, self.head = (None, None) if rank == 0 else (model.norm, model.head)
        if rank == 0:
            # Only what this stage has is trained here.
            del model.blocks, model.norm, model.head

    def forward(self, x):
        if self.model is not None:
            x = self.model.tokens(x) + self.model.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def one_f_one_b(model, batch, sequence):
    """A pipeline of two stages, 1F1B over four micro-batches."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = torch.distributed.get_rank()
    half = Half(model, rank)
    schedule = Schedule1F1B(PipelineStage(half, rank, RANKS, torch.device('cpu')), MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.Adam(half.parameters(), 1e-3)

    def step():
        tokens = torch.randint(0, VOCABULARY, (batch, sequence))
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens)
        optimizer.step()
        optimizer.zero_grad()

    return step


class Mixture(Block):
    """A layer without biases whose feed-forward is experts, shared out over the ranks.

    An expert takes the mean of its tokens from each sample; further ones are dropped.
    """

    def __init__(self, hidden):
        super().__init__(hidden)
        for linear in (self.qkv, self.out):
            linear.bias = None
        del self.up, self.down
        self.router = nn.Linear(hidden, EXPERTS, bias=False)
        own = EXPERTS // RANKS
        self.experts = nn.ParameterList(
            torch.randn(own, *shape) / shape[0] ** 0.5 for shape in ((hidden, 4 * hidden), (4 * hidden, hidden))
        )

    def feed_forward(self, x):
        """To the experts' ranks, through the experts, and back."""
        batch, sequence, hidden = x.shape
        slots = sequence * TOP // EXPERTS
        scores, chosen = self.router(x).softmax(-1).topk(TOP, -1)
        taken = torch.zeros(batch, sequence, EXPERTS, dtype=torch.int64).scatter_(-1, chosen, 1)
        turn = (taken.cumsum(1) - 1).gather(-1, chosen)
        sample = torch.arange(batch)[:, None, None]
        place = torch.where(turn < slots, (chosen * batch + sample) * slots + turn, EXPERTS * batch * slots)
        rows = x.new_zeros(EXPERTS * batch * slots + 1, hidden)
        rows = rows.index_copy(0, place.flatten(), x.repeat_interleave(TOP, 1).reshape(-1, hidden))[:-1]
        came = self._exchanged(rows).view(RANKS, EXPERTS // RANKS, -1, hidden).transpose(0, 1).flatten(1, 2)
        up, down = self.experts
        gone = (functional.gelu(came @ up) @ down).unflatten(1, (RANKS, -1)).transpose(0, 1)
        back = functional.pad(self._exchanged(gone.reshape(-1, hidden)), (0, 0, 0, 1))
        return (back[place] * (scores / scores.sum(-1, keepdim=True)).unsqueeze(-1)).sum(2)

    def _exchanged(self, rows):
        return all_to_all_single(torch.empty_like(rows), rows)


def experts(model, batch, sequence):
    """Experts on the ranks that share the data; gradients of all else are summed by layer beside the backward."""
    hidden = model.norm.normalized_shape[0]
    model.blocks = nn.ModuleList(Mixture(hidden) for _ in model.blocks)
    sums = []

    def summed(weights):
        left = len(weights)

        def ready(_):
            nonlocal left
            left -= 1
            if not left:
                left = len(weights)
                flat = torch.cat([one.grad.flatten() for one in weights]) / RANKS
                sums.append((weights, flat, torch.distributed.all_reduce(flat, async_op=True)))

        for one in weights:
            one.register_post_accumulate_grad_hook(ready)

    for block in model.blocks:
        summed([one for name, one in block.named_parameters() if not name.startswith('experts')])
    summed([one for name, one in model.named_parameters() if not name.startswith('blocks')])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step():
        tokens = torch.randint(0, VOCABULARY, (batch // RANKS, sequence))
        loss_of(model(tokens), tokens).backward()
        for weights, flat, work in sums:
            work.wait()
            for one, part in zip(weights, flat.split([one.numel() for one in weights]), strict=True):
                one.grad = part.view_as(one)
        sums.clear()
        optimizer.step()
        optimizer.zero_grad()

    return step


ENGINES = {'ddp': ddp, 'fsdp2': fsdp2, '1f1b': one_f_one_b, 'experts': experts}


def parameters(hidden, layers, sequence):
    """How many numbers the model has."""
    return sum(parameter.numel() for parameter in Gpt(hidden, layers, sequence).parameters())


def rank_of(rank, engine, cores, store, pipe, sizes):
    """One rank of a training; ``cores`` are those that it may use."""
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(store, RANKS)
    torch.distributed.init_process_group('gloo', rank=rank, world_size=RANKS, store=store)
    torch.manual_seed(0)
    hidden, layers, sequence, batch = sizes
    step = ENGINES[engine](Gpt(hidden, layers, sequence), batch, sequence)
    pipe.send(os.getpid())
    for steps in iter(pipe.recv, 0):
        torch.distributed.barrier()
        ends = []
        for _ in range(steps):
            step()
            ends.append(time.clock_gettime(time.CLOCK_MONOTONIC))
        pipe.send(ends)
    os._exit(0)


class ByHand:
    """Both ranks of a training, which goes on by some steps at a time.

    Arguments:
        cores: for each rank those that it may use.
        sizes: hidden, layers, sequence, and the batch of all ranks.
    """

    def __init__(self, engine, cores, folder, sizes):
        spawned = multiprocessing.get_context('spawn')
        self._pipes, self._ranks = [], []
        for rank in range(RANKS):
            ours, theirs = spawned.Pipe()
            words = (rank, engine, cores[rank], str(folder / 'store'), theirs, sizes)
            self._ranks.append(spawned.Process(target=rank_of, args=words, daemon=True))
            self._ranks[-1].start()
            self._pipes.append(ours)
        self.processes = [pipe.recv() for pipe in self._pipes]

    def ends(self, steps):
        """Train; when each step had ended on both ranks."""
        for pipe in self._pipes:
            pipe.send(steps)
        return [max(both) for both in zip(*(pipe.recv() for pipe in self._pipes), strict=True)]

    def close(self):
        """End the ranks."""
        for pipe, rank in zip(self._pipes, self._ranks, strict=True):
            pipe.send(0)
            rank.join()
