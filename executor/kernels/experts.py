"""Experts of a mixture: rows of tokens to slots and back, products of each expert, the gate of shared experts.

B batch, S sequence, E experts, C slots of an expert for each sample, K and N features. A token's slot is its place in
the sequence where there are as many slots as tokens; else its turn among the tokens of the expert.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from executor.kernels.context import Context
from simpar.program import OpClass


class _Sent(NamedTuple):
    """Each row that goes to an expert: its sample, token, expert and slot."""

    sample: torch.Tensor
    token: torch.Tensor
    expert: torch.Tensor
    slot: torch.Tensor


def dispatch_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """x [B, S, K], map [B, S, E] → [B, E, C, K], zeros in empty slots."""
    x, chosen = tensors
    sent = _sent(op, chosen)
    y = x.new_zeros(x.shape[0], chosen.shape[-1], int(op.attributes['slots']), x.shape[-1])
    y[sent.sample, sent.expert, sent.slot] = x[sent.sample, sent.token]
    return [y]


def dispatch_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy [B, E, C, K], map → dx."""
    dy, chosen = tensors
    sent = _sent(op, chosen)
    return [_added(chosen, sent, dy[sent.sample, sent.expert, sent.slot])]


def combine_forward(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """weights [B, S, E], z [B, E, C, K], map → [B, S, K]."""
    weights, z, chosen = tensors
    sent = _sent(op, chosen)
    rows = z[sent.sample, sent.expert, sent.slot] * _weight(weights, sent)
    return [_added(chosen, sent, rows)]


def combine_dx(op: OpClass, where: Context, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """dy [B, S, K], z, map → dweights; or dy, weights, map → dz."""
    dy, other, chosen = tensors
    sent = _sent(op, chosen)
    rows = dy[sent.sample, sent.token]
    if op.attributes['of'] == 'weights':
        dweights = torch.zeros_like(chosen, dtype=dy.dtype)
        dweights[sent.sample, sent.token, sent.expert] = (rows * other[sent.sample, sent.expert, sent.slot]).sum(-1)
        return [dweights]
    dz = dy.new_zeros(dy.shape[0], chosen.shape[-1], int(op.attributes['slots']), dy.shape[-1])
    dz[sent.sample, sent.expert, sent.slot] = rows * _weight(other, sent)
    return [dz]


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


def _sent(op: OpClass, chosen: torch.Tensor) -> _Sent:
    slots = int(op.attributes['slots'])
    if slots == chosen.shape[1]:
        sample, token, expert = chosen.nonzero(as_tuple=True)
        return _Sent(sample, token, expert, token)
    # The first tokens of a sample come first.
    turn = chosen.long().cumsum(1) - 1
    sample, token, expert = (chosen & (turn < slots)).nonzero(as_tuple=True)
    return _Sent(sample, token, expert, turn[sample, token, expert])


def _weight(weights: torch.Tensor, sent: _Sent) -> torch.Tensor:
    return weights[sent.sample, sent.token, sent.expert].unsqueeze(-1)


def _added(chosen: torch.Tensor, sent: _Sent, rows: torch.Tensor) -> torch.Tensor:
    """[B, S, K]: the sum of the rows of each token."""
    batch, sequence, _ = chosen.shape
    total = rows.new_zeros(batch * sequence, rows.shape[-1])
    return total.index_add_(0, sent.sample * sequence + sent.token, rows).unflatten(0, (batch, sequence))


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
