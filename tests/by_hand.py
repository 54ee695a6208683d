"""The same trainings by hand in torch: DDP, FSDP2 and Schedule1F1B, for a comparison of step times.

python tests/by_hand.py ENGINE FOLDER STEPS HIDDEN LAYERS SEQUENCE BATCH
writes FOLDER/rankN.json with the ends of steps by a clock that ranks share. BATCH is of all ranks.
"""

import json
import sys
import time
from pathlib import Path

import torch
from recorded_training import VOCABULARY, Gpt
from torch import nn
from torch.nn import functional

RANKS = 2
MICRO_BATCHES = 4


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


ENGINES = {'ddp': ddp, 'fsdp2': fsdp2, '1f1b': one_f_one_b}


def main(rank, engine, folder, steps, hidden, layers, sequence, batch):
    """One rank of a training."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / 'store'), RANKS)
    torch.distributed.init_process_group('gloo', rank=rank, world_size=RANKS, store=store)
    torch.manual_seed(0)
    step = ENGINES[engine](Gpt(hidden, layers, sequence), batch, sequence)
    ends = []
    for _ in range(steps):
        step()
        ends.append(time.clock_gettime(time.CLOCK_MONOTONIC))
    (folder / f'rank{rank}.json').write_text(json.dumps(ends), encoding='utf-8')
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    where = Path(sys.argv[2])
    torch.multiprocessing.spawn(main, (sys.argv[1], where, *map(int, sys.argv[3:])), RANKS)
