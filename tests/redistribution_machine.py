"""Executes a redistribution on numpy slices, one for each rank, by the meaning of its steps alone."""

from math import prod

import numpy as np


def cut(tensor, layout):
    """Each rank's slice of a whole tensor; where sums are pending, shares of it that are all different."""
    count = prod(axis.size for axis in layout.partial)
    slices = []
    for rank in range(layout.world):
        place = 0
        for axis in layout.partial:
            place = place * axis.size + axis.position(rank)
        share = place or 1 - sum(range(count))
        slices.append(tensor[layout.slices(tensor.shape, rank)] * share)
    return slices


def peers(rank, axes):
    """Positions along axes → rank, of a rank's group."""
    found = {(): rank - sum(axis.position(rank) * axis.stride for axis in axes)}
    for axis in axes:
        found = {(*at, place): base + place * axis.stride for at, base in found.items() for place in range(axis.size)}
    return found


def narrowed(array, dims, axes, at):
    """The slice of an array that belongs to a position."""
    for dim, axis, place in zip(dims, axes, at, strict=True):
        array = np.split(array, axis.size, dim)[place]
    return array


def joined(pieces, dims, axes, shape):
    """An array of this shape made of the pieces of all positions."""
    whole = np.zeros(shape, dtype=next(iter(pieces.values())).dtype)
    for at, piece in pieces.items():
        narrowed_into(whole, dims, axes, at)[...] = piece
    return whole


def narrowed_into(whole, dims, axes, at):
    """The part of an array that belongs to a position, to be written to."""
    index = [slice(None)] * whole.ndim
    for dim, axis, place in zip(dims, axes, at, strict=True):
        length = whole.shape[dim] // axis.size
        index[dim] = slice(place * length, (place + 1) * length)
    return whole[tuple(index)]


def step_on(step, slices):
    """All ranks' slices after a step."""
    after = []
    for rank, mine in enumerate(slices):
        at = tuple(axis.position(rank) for axis in step.axes)
        group = peers(rank, step.axes)
        if step.kind == 'slice':
            after.append(narrowed(mine, step.split, step.axes, at))
        elif step.kind == 'pad':
            after.append(joined({at: mine}, step.gather, step.axes, step.after))
        elif step.kind == 'all_gather':
            pieces = {place: slices[peer] for place, peer in group.items()}
            after.append(joined(pieces, step.gather, step.axes, step.after))
        elif step.kind == 'all_to_all':
            pieces = {p: narrowed(slices[peer], step.split, step.axes, at) for p, peer in group.items()}
            after.append(joined(pieces, step.gather, step.axes, step.after))
        else:
            total = sum(slices[peer] for peer in group.values())
            after.append(total if step.kind == 'all_reduce' else narrowed(total, step.split, step.axes, at))
        assert after[-1].shape == step.after, step
    return after


def execute(redistribution, slices):
    """All ranks' slices after a redistribution."""
    target = redistribution.target.slice_shape(redistribution.shape)
    for part in redistribution.parts:
        for step in part.steps:
            slices = step_on(step, [mine.reshape(step.before) for mine in slices])
    return [mine.reshape(target) for mine in slices]
