"""A model and its training that simpar did not write, in plain torch: a small GPT, recorded by torch.profiler."""

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


def stepper(model, batch, sequence, loss_of=functional.cross_entropy, fused=False):
    """A step of training on random tokens; ``batch``, samples of a rank."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=fused)

    def step():
        tokens = torch.randint(0, VOCABULARY, (batch, sequence))
        loss = loss_of(model(tokens).view(batch * sequence, -1), tokens.view(-1))
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
