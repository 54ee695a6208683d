"""Experts of a mixture: rows of tokens to slots and back, products of each expert, the gate of shared experts.

B batch, S sequence, E experts, C slots of an expert for each sample, K and N features. A token's slot is its place in
the sequence where there are as many slots as tokens; else its turn among the tokens of the expert.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from executor.kernels.context import Context
from simpar.program import OpClass


def dispatch_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x [B, S, K], map [B, S, E] → [B, E, C, K], zeros in empty slots."""
    x, chosen = tensors
    return [_rows(x, _tokens(op, chosen))]


def dispatch_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy [B, E, C, K], map → dx."""
    dy, chosen = tensors
    return [_added(_tokens(op, chosen), dy, chosen.shape[1])]


def combine_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """weights [B, S, E], z [B, E, C, K], map → [B, S, K]."""
    weights, z, chosen = tensors
    tokens = _tokens(op, chosen)
    return [_added(tokens, z * _weights(weights, tokens), chosen.shape[1])]


def combine_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy [B, S, K], z, map → dweights; or dy, weights, map → dz."""
    dy, other, chosen = tensors
    tokens = _tokens(op, chosen)
    rows = _rows(dy, tokens)
    if op.attributes['of'] == 'weights':
        batch, sequence, experts = chosen.shape
        dweights = dy.new_zeros(batch, experts, sequence + 1).scatter_(2, tokens, (rows * other).sum(-1))
        return [dweights[..., :sequence].transpose(1, 2).contiguous()]
    return [rows * _weights(other, tokens)]


def grouped_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x [B, E, C, K], weight [E, N..., K] → [B, E, C, N]."""
    x, weight = tensors
    return [x @ weight.flatten(1, -2).mT]


def grouped_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, weight → dx."""
    dy, weight = tensors
    return [dy @ weight.flatten(1, -2)]


def grouped_dw(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, x → dweight."""
    dy_ETN, x_ETK = (tensor.transpose(0, 1).flatten(1, 2) for tensor in tensors)
    return [dy_ETN.mT @ x_ETK]


def gate_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, gate [B, S, 1] → x · sigmoid(gate)."""
    x, gate = tensors
    return [x * gate.sigmoid()]


def gate_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy, gate → dx; or dy, x, gate → dgate."""
    dy, *x, gate = tensors
    share = gate.sigmoid()
    if op.attributes['of'] == 'x':
        return [dy * share]
    return [(dy * x[0]).sum(-1, keepdim=True) * share * (1 - share)]


def _tokens(op: OpClass, chosen: torch.Tensor) -> torch.Tensor:
    """[B, E, C], the token in each slot; S where there is none. No size depends on what was chosen."""
    slots, sequence = int(op.attributes['slots']), chosen.shape[1]
    every = torch.arange(sequence, device=chosen.device)
    chosen_BES = chosen.bool().transpose(1, 2)
    # The first tokens of a sample come first.
    turn = every.expand_as(chosen_BES) if slots == sequence else chosen_BES.long().cumsum(2) - 1
    # What no expert takes goes to a slot behind all others, which nobody reads.
    slot = torch.where(chosen_BES & (turn < slots), turn, slots)
    tokens = slot.new_full((*chosen_BES.shape[:2], slots + 1), sequence)
    return tokens.scatter_(2, slot, every.expand_as(slot))[..., :slots]


def _rows(x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[B, E, C, K]: the row of each slot's token, zeros in empty ones."""
    samples = torch.arange(len(x), device=x.device)[:, None, None]
    return pad(x, (0, 0, 0, 1))[samples, tokens]


def _weights(weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[B, E, C, 1]: the weight of each slot's token."""
    return pad(weights.transpose(1, 2), (0, 1)).gather(2, tokens).unsqueeze(-1)


def _added(tokens: torch.Tensor, rows: torch.Tensor, sequence: int) -> torch.Tensor:
    """[B, S, K]: the sum of the rows of each token."""
    batch, features = len(rows), rows.shape[-1]
    # One row more a sample, for empty slots.
    first = torch.arange(batch, device=rows.device)[:, None, None] * (sequence + 1)
    total = rows.new_zeros(batch * (sequence + 1), features)
    total.index_add_(0, (first + tokens).flatten(), rows.reshape(-1, features))
    return total.unflatten(0, (batch, sequence + 1))[:, :sequence].contiguous()


KERNELS = {
    ('dispatch', 'F'): dispatch_forward,
    ('dispatch', 'I'): dispatch_dx,
    ('combine', 'F'): combine_forward,
    ('combine', 'I'): combine_dx,
    ('grouped_matmul', 'F'): grouped_forward,
    ('grouped_matmul', 'I'): grouped_dx,
    ('grouped_matmul', 'W'): grouped_dw,
    ('sigmoid_gate', 'F'): gate_forward,
    ('sigmoid_gate', 'I'): gate_dx,
}
