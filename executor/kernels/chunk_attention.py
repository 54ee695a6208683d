"""Attention of one chunk of a sequence with keys and values of all chunks so far, as in a cache of them.

Backward, chunks come from the last to the first: each adds to the gradients of keys and values that later ones left.
"""

from __future__ import annotations

import torch

from executor.kernels.attention import heads, join
from executor.kernels.context import Context
from executor.kernels.context_attention import Part, Tensors
from simpar.program import OpClass


def chunk_forward(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """q, kv of each chunk that is seen[, keys of dropout] → y, lse."""
    q, *more = tensors
    count = int(op.attributes['parts'])
    part = _part(op, where, q, more[:count], more[count:])
    # A token sees itself, so no row is left out.
    y, lse = part.forward()
    return [join(op, y.to(q.dtype)), lse.reshape(lse.shape[0], lse.shape[1], int(op.attributes['queries']), -1)]


def chunk_dx(op: OpClass, where: Context, tensors: Tensors) -> Tensors:
    """dy, q, y, lse, kv of each chunk[, dkv of the last, from later chunks][, keys] → dq, dkv of each chunk."""
    dy, q, y, lse, *more = tensors
    count, dropped = int(op.attributes['parts']), 'dropout' in op.attributes
    kv, later, keys = more[:count], more[count : len(more) - dropped], more[len(more) - dropped :]
    part = _part(op, where, q, kv, keys)
    dq, dkv = part.backward(heads(op, dy), heads(op, y), lse.reshape(part.q.shape[:-1]))
    own = list(dkv.split(q.shape[1], 1))
    # Later chunks see a run of chunks that ends with this one; those before it, past a window, they do not.
    unseen = count - len(later)
    return [join(op, dq), *own[:unseen], *(one + other for one, other in zip(own[unseen:], later, strict=True))]


def _part(op: OpClass, where: Context, q: torch.Tensor, kv: Tensors, keys: Tensors) -> Part:
    own = int(op.attributes.get('first', 0)) + torch.arange(q.shape[1])
    there = int(op.attributes['first_key']) + torch.arange(q.shape[1] * len(kv))
    return Part(op, where, q, torch.cat(kv, 1), keys, (own, there))


KERNELS = {('chunk_attention', 'F'): chunk_forward, ('chunk_attention', 'I'): chunk_dx}
