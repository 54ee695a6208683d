"""What the executor still lacks for programs with strategies: filling up with zeros, and all-to-all.

Tests put them into the tables of kernels and collectives; the meaning of an all-to-all's attributes is told by them.
"""

import pytest
import torch

from executor import inprocess, kernels, meeting


def pad(op, where, tensors):
    """The tensor at this rank's position along ``dim``, zeros elsewhere."""
    dim, size = op.attributes['dim'], where.size[op.attributes['partition']]
    pieces = [torch.zeros_like(tensors[0]) for _ in range(size)]
    pieces[where.position[op.attributes['partition']]] = tensors[0]
    return [torch.cat(pieces, dim)]


def all_to_all(op, messages):
    """Slices along ``cuts`` for each position, joined along ``joins``: one dim for each axis of ``sizes``."""
    joins, cuts, sizes = ([int(part) for part in op.attributes[key].split()] for key in ('joins', 'cuts', 'sizes'))
    places = [
        tuple(place) for place in torch.cartesian_prod(*map(torch.arange, sizes)).reshape(-1, len(sizes)).tolist()
    ]

    def cut(tensor, place):
        for dim, size, at in zip(cuts, sizes, place, strict=True):
            tensor = tensor.chunk(size, dim)[at]
        return tensor

    def joined(pieces):
        for dim, size in list(zip(joins, sizes, strict=True))[::-1]:
            pieces = [torch.cat(pieces[first : first + size], dim) for first in range(0, len(pieces), size)]
        return pieces[0]

    return [[joined([cut(tensor, place) for (tensor,) in messages])] for place in places]


def communicate(ops, messages):
    """As the executor's, and all-to-all."""
    return all_to_all(ops[0], messages) if ops[0].operator == 'all_to_all' else meeting.communicate(ops, messages)


@pytest.fixture
def strategy_kernels(monkeypatch):
    for phase in 'FI':
        monkeypatch.setitem(kernels.KERNELS, ('pad', phase), pad)
    monkeypatch.setattr(inprocess, 'communicate', communicate)
