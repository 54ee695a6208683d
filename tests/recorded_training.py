"""A training that simpar did not write: a small GPT in plain torch with DDP, timed, and recorded by torch.profiler.

python tests/recorded_training.py FOLDER RANKS HIDDEN LAYERS SEQUENCE BATCH
writes FOLDER/rankN.json of every rank, and FOLDER/steps.json with rank 0's seconds of 20 steps without the profiler.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 512
HEADS = 4


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, sequence, hidden = x.shape
        # Of its layers a rank may have a part, so that heads are counted by their width.
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(batch, sequence, -1, hidden // HEADS).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, sequence, -1))
        return x + self.feed_forward(self.norm2(x))

    def feed_forward(self, x):
        """Two products, and what stands between them."""
        return self.down(functional.gelu(self.up(x)))


class Gpt(nn.Module):
    """GPT-2 with an untied head."""

    def __init__(self, hidden, layers, sequence):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, hidden), nn.Embedding(sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def stepper(model, batch, sequence):
    """A step of training on random tokens."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step():
        tokens = torch.randint(0, VOCABULARY, (batch, sequence))
        loss = functional.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def record(path, step, steps=3):
    """Some steps under the profiler; the first of them is not whole."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(steps + 1):
            step()
            profiler.step()


def main(rank, folder, ranks, hidden, layers, sequence, batch):
    """One rank: time steps, then record some."""
    torch.set_num_threads(1)
    os.environ |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': os.environ.get('MASTER_PORT', '29531')}
    if hasattr(os, 'sched_setaffinity'):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.distributed.init_process_group('gloo', rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = Gpt(hidden, layers, sequence)
    step = stepper(nn.parallel.DistributedDataParallel(model) if ranks > 1 else model, batch, sequence)
    seconds = []
    for _ in range(24):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    record(folder / f'rank{rank}.json', step, 5)
    if rank == 0:
        told = {'median': statistics.median(seconds[4:]), 'steps': seconds[4:]}
        (folder / 'steps.json').write_text(json.dumps(told), encoding='utf-8')
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    numbers = [int(word) for word in sys.argv[2:]]
    torch.multiprocessing.spawn(main, (where, *numbers), numbers[0])
