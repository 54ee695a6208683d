"""Programs for virtual accelerators, and ways to spoil what their hosts issue."""

from dataclasses import replace

import torch
from trained_cases import trained_case, workload_of

from executor.state import Request
from executor.virtual.transport import VirtualWorld
from simpar.lower import lower
from simpar.plans import Plan

WORLD = 4
STEPS = 2


def program(name):
    """One of the cases that run on gloo."""
    return lower(*trained_case(name), WORLD)


def small():
    """A program of two ranks that takes little time, with collectives beside computation."""
    return lower(workload_of('network'), Plan(tensor=2, copies=2, reduce='late'), 2)


def world(made, order=None, steps=STEPS):
    """Its ranks on virtual accelerators, in fp64."""
    return VirtualWorld(made, Request(steps=steps, dtype='fp64'), order)


def differences(one, other):
    """Names of losses, gradients and parameters that are not equal to the bit."""
    pairs = [('losses', torch.tensor(one.losses), torch.tensor(other.losses))]
    for found, wanted in ((one.gradients, other.gradients), (one.parameters, other.parameters)):
        assert found.keys() == wanted.keys()
        pairs += [(name, found[name], wanted[name]) for name in wanted]
    return [name for name, a, b in pairs if not torch.equal(a, b)]


def waits(rank):
    """All (slot, its place among the slot's needs, whether carried) for which a host has a stream wait."""
    return [
        (slot.position, place, kind)
        for slot in rank.slots
        for kind in ('needs', 'carried')
        for place in range(len(getattr(slot, kind)))
    ]


def drop_event(rank, wait):
    """Have a host wait for all events but one."""
    position, place, kind = wait
    slot = rank.slots[position]
    needs = getattr(slot, kind)
    rank.slots[position] = replace(slot, **{kind: needs[:place] + needs[place + 1 :]})


def reuse_early(rank):
    """Have a host drop every tensor as soon as the program frees it."""
    rank.memory._let_go = rank.memory._release


def swappable(rank):
    """Pairs of collectives on two communicators, of which the later may be issued before the earlier."""
    slots = rank.slots
    talk = [slot for slot in slots if slot.op.kind == 'collective']
    for one in talk:
        for other in talk:
            apart = one.stream != other.stream and one.op.partition != other.op.partition
            if apart and one.position < other.position and all(need < one.position for need in other.needs):
                # On one stream order is kept, so nothing of the other's may stand between.
                between = slots[one.position : other.position]
                if all(slot.stream != other.stream for slot in between):
                    yield one.position, other.position


def swap_communicators(rank, pair):
    """Have a host issue the later of two collectives first."""
    first, second = pair
    rank.slots.insert(first, rank.slots.pop(second))
