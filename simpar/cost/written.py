"""Costs as JSON and back: a prediction that is kept says what it rests on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simpar.cost.costs import Array, Communication, Costs
from simpar.program import Program

_COLUMNS = ('compute', 'host', 'beside_communication', 'beside_compute')


def costs_to_dict(costs: Costs) -> dict[str, Any]:
    """All that a simulation needs, as lists and numbers; seconds."""
    # Groups mostly cost the same, so that each message stands once.
    number: dict[Communication, int] = {}
    of_op = {
        str(index): [number.setdefault(message, len(number)) for message in messages]
        for index, messages in costs.communication.items()
    }
    return {
        **{name: getattr(costs, name).tolist() for name in _COLUMNS},
        'messages': [[one.alpha, one.transfer, [list(link) for link in one.links]] for one in number],
        'communication': of_op,
        'links': list(costs.links),
        'rank_speed': costs.rank_speed.tolist(),
        'waiting_slows': costs.waiting_slows,
        **({'work_queues': costs.work_queues} if costs.work_queues else {}),
    }


def costs_from_dict(content: dict[str, Any], program: Program) -> Costs:
    """Read them back, for this program; raises ``ValueError`` saying what does not fit."""
    try:
        return _costs(content, program)
    except (TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f'cannot be read ({type(error).__name__}: {error})') from error


def _costs(content: dict[str, Any], program: Program) -> Costs:
    count = len(program.op_classes)
    compute, host, *speeds = (_numbers(content[name], count, name) for name in _COLUMNS)
    for name, beside in zip(_COLUMNS[2:], speeds, strict=True):
        if not ((beside > 0) & (beside <= 1)).all():
            raise ValueError(f'{name}: a speed is above 0 and at most 1')
    speed = _numbers(content['rank_speed'], program.world, 'rank_speed')
    if not (speed > 0).all():
        raise ValueError('rank_speed: a speed is above 0')
    links = tuple(map(str, content['links']))
    messages = [_message(*each, links=len(links)) for each in content['messages']]
    communication = {int(index): _entries(numbers, messages) for index, numbers in content['communication'].items()}
    _check_groups(communication, program)
    return Costs(
        compute=compute,
        host=host,
        beside_communication=speeds[0],
        beside_compute=speeds[1],
        communication=communication,
        links=links,
        rank_speed=speed,
        waiting_slows=bool(content['waiting_slows']),
        # Files of before there were any have none.
        work_queues=_queues(content.get('work_queues', 0)),
    )


def _queues(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError('work_queues: not a number of queues')
    return value


def _numbers(values: object, count: int, name: str) -> Array:
    numbers = np.array(values, dtype=np.float64)
    if numbers.shape != (count,):
        raise ValueError(f'{name}: has not {count} numbers')
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise ValueError(f'{name}: some number is below 0 or not finite')
    return numbers


def _message(alpha: float, transfer: float, shares: list[list[float]], *, links: int) -> Communication:
    found = tuple((int(link), float(share)) for link, share in shares)
    fits = all(0 <= link < links and 0 < share <= 1 for link, share in found)
    if not fits or not all(math.isfinite(time) and time >= 0 for time in (alpha, transfer)):
        raise ValueError('messages: some time or share of a link is out of range')
    return Communication(alpha=float(alpha), transfer=float(transfer), links=found)


def _entries(numbers: list[int], messages: list[Communication]) -> tuple[Communication, ...]:
    if any(not 0 <= number < len(messages) for number in numbers):
        raise ValueError('communication: names a message that is not there')
    return tuple(messages[number] for number in numbers)


def _check_groups(communication: dict[int, tuple[Communication, ...]], program: Program) -> None:
    """Every op that communicates has a cost for each group, or for each of its pairs; receives may have none."""
    for index, op in enumerate(program.op_classes):
        if op.kind in ('collective', 'send'):
            groups = program.partitions[op.partition].groups_GP
            if len(communication.get(index, ())) not in (len(groups), groups.size):
                raise ValueError(f'communication: {op.name} has not one message a group')
