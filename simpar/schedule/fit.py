"""Whether a schedule fits the ranks of its cluster."""

from __future__ import annotations

from dataclasses import replace

from simpar.document import Complaint, dotted
from simpar.errors import Problem, ScheduleError
from simpar.schedule.checks import batch_fits, divisors
from simpar.schedule.schedule import Schedule


def check_against_cluster(schedule: Schedule, world: int) -> Schedule:
    """The schedule with its degree of data parallelism filled in.

    Arguments: ``world``, number of ranks of the cluster.
    Raises `ScheduleError` with every factor and their product, where data × tensor are not these ranks, the batch does
    not divide, or a slow rank does not exist.
    """
    plan = schedule.plan
    data = plan.data or max(1, world // plan.tensor)
    complaints = [*_ranks(schedule, data, world), *_slow(schedule, world)]
    if not plan.data:
        complaints += batch_fits(schedule.workload, plan, data)
    if complaints:
        raise ScheduleError([_problem(schedule, complaint) for complaint in complaints])
    return replace(schedule, plan=replace(plan, data=data))


def _problem(schedule: Schedule, complaint: Complaint) -> Problem:
    key = dotted(complaint.key)
    return Problem(schedule.where(key), f'{key}: {complaint.what}', complaint.instead)


def _ranks(schedule: Schedule, data: int, world: int) -> list[Complaint]:
    tensor = schedule.plan.tensor
    if data * tensor == world:
        return []
    what = f'data {data} × tensor {tensor} = {data * tensor} ranks, but the cluster has {world}'
    key = ('plan', 'data') if schedule.plan.data else ('plan', 'tensor')
    if schedule.plan.data and world % tensor == 0:
        return [Complaint(key, what, f'write data: {world // tensor}, or 0 for all that tensor leaves')]
    return [Complaint(('plan', 'tensor'), what, f'write a divisor of {world} as tensor: {divisors(world)}')]


def _slow(schedule: Schedule, world: int) -> list[Complaint]:
    return [
        Complaint(('cluster', 'slow', str(rank)), f'there is no rank {rank}', f'write a rank below {world}')
        for rank in schedule.cluster.slow
        if rank >= world
    ]
