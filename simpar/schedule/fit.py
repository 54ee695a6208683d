"""Whether a schedule fits the ranks of its cluster."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from simpar.document import dotted
from simpar.errors import Problem, ScheduleError
from simpar.model.advice import divisors
from simpar.schedule.checks import batch_fits
from simpar.schedule.schedule import Schedule


def check_against_cluster(schedule: Schedule, world: int) -> Schedule:
    """The schedule with its degree of data parallelism filled in.

    Arguments: ``world``, number of ranks of the cluster.
    Raises `ScheduleError` where pipeline × data × tensor are not these ranks, the batch does not divide, or a slow rank
    does not exist. It tells every factor and their product.
    """
    plan = schedule.plan
    data = plan.data or max(1, world // (plan.context * plan.tensor * plan.pipeline))
    problems = [*_ranks(schedule, data, world), *_slow(schedule, world)]
    # With ``data`` written, the file was checked for it when it was read.
    if not plan.data:
        problems += batch_fits(schedule.workload, plan, data)
    if problems:
        raise ScheduleError([_problem(schedule, problem) for problem in problems])
    return schedule if plan.data else replace(schedule, plan=replace(plan, data=data))


def _problem(schedule: Schedule, problem: Problem) -> Problem:
    return problem.at(schedule.where(dotted(problem.key)))


def _ranks(schedule: Schedule, data: int, world: int) -> list[Problem]:
    plan = schedule.plan
    degrees = {'pipeline': plan.pipeline, 'data': data, 'context': plan.context, 'tensor': plan.tensor}
    ranks = prod(degrees.values())
    if ranks == world:
        return []
    factors = ' × '.join(
        f'{name} {degree}' for name, degree in degrees.items() if degree > 1 or name in ('data', 'tensor')
    )
    what = f'{factors} = {ranks} ranks, but the cluster has {world}'
    inner = plan.context * plan.tensor * plan.pipeline
    key = ('plan', 'data') if plan.data else ('plan', 'tensor')
    # Changing data alone is the smallest remedy; only where no data fits is another degree to blame.
    if plan.data and world % inner == 0:
        others = [name for name in ('context', 'tensor', 'pipeline') if degrees[name] > 1 or name == 'tensor']
        left = f'{" and ".join(others)} {"leaves" if len(others) == 1 else "leave"}'
        return [Problem(key, what, f'write data: {world // inner}, or 0 for all that {left}')]
    if plan.pipeline > 1 and world % plan.pipeline:
        return [Problem(('plan', 'pipeline'), what, f'write a divisor of {world} as pipeline: {divisors(world)}')]
    share = world // plan.pipeline
    if plan.context > 1 and share % plan.context:
        return [Problem(('plan', 'context'), what, f'write a divisor of {share} as context: {divisors(share)}')]
    share //= plan.context
    return [Problem(('plan', 'tensor'), what, f'write a divisor of {share} as tensor: {divisors(share)}')]


def _slow(schedule: Schedule, world: int) -> list[Problem]:
    return [
        Problem(('cluster', 'slow', str(rank)), f'there is no rank {rank}', f'write a rank below {world}')
        for rank in schedule.cluster.slow
        if rank >= world
    ]
