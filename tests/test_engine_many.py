"""Thousands of ranks are priced by shapes of groups and folded by hashes; both tell the same as lists, rank by rank."""

import dataclasses
import random

import numpy as np
import pytest

from simpar.cost.collective import ClusterCollectives
from simpar.cost.price import Effects, price
from simpar.engine import simulate
from simpar.engine.fold import fold
from simpar.lower import lower
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.workload import Transformer, Workload

IDEAL = Effects(small_operator=False, launch=False, slow_down=False, link_sharing=True)


def drawn(seed):
    """A program and a cluster: nodes of any size, slow ranks, cards that a node shares."""
    draw = random.Random(seed)
    tensor, pipeline, data = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4]), draw.choice([2, 3, 4, 6])
    world = tensor * pipeline * data
    devices = draw.choice([size for size in (1, 2, 3, 4, 6, 8) if world % size == 0])
    hardware = dataclasses.replace(
        cluster(load_profile(draw.choice(['a100-sxm-8', 'h100-sxm-8']))), nodes=world // devices, devices=devices
    )
    if draw.random() < 0.4:
        slow = {draw.randrange(world): draw.choice([0.5, 0.75]) for _ in range(2)}
        hardware = dataclasses.replace(hardware, slow=slow)
    if draw.random() < 0.4:
        *inner, last = hardware.profile.links
        profile = dataclasses.replace(hardware.profile, links=(*inner, dataclasses.replace(last, per='node')))
        hardware = dataclasses.replace(hardware, profile=profile)
    plan = Plan(tensor=tensor, pipeline=pipeline, data=data, micro_batches=4, sequence_parallel=tensor > 1)
    model = Transformer(layers=4, hidden=64, heads=8, vocab=64, sequence=32)
    return lower(Workload(model=model, batch=4 * data), plan, world), hardware


def named(costs):
    """Messages of each op class with the names of their links, as numbers are given by first use."""
    return {
        index: [(one.alpha, one.transfer, sorted((costs.links[link], part) for link, part in one.links)) for one in all]
        for index, all in costs.communication.items()
    }


@pytest.mark.parametrize('effects', [Effects(), IDEAL], ids=['all', 'ideal'])
def test_shapes_and_hashes_tell_what_lists_tell(effects, monkeypatch):
    for seed in range(12):
        program, hardware = drawn(seed)
        by_shape = price(program, hardware, effects)
        monkeypatch.setattr(ClusterCollectives, 'shapes_tell', False)
        by_rank = price(program, hardware, effects)
        monkeypatch.undo()
        assert named(by_shape) == named(by_rank), seed
        assert (by_shape.why, by_shape.grades) == (by_rank.why, by_rank.grades)
        assert fold(program, by_shape).of_rank == fold(program, by_rank).of_rank, seed
        for unfold in (None, True):
            one, other = (simulate(program, costs, steps=2, unfold=unfold) for costs in (by_rank, by_shape))
            for mine, theirs in zip(one.representatives, other.representatives, strict=True):
                np.testing.assert_array_equal(mine.start_KS, theirs.start_KS)
                np.testing.assert_array_equal(mine.end_KS, theirs.end_KS)
