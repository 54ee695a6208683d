"""Pipeline schedules: the order in which each rank does its actions, by name, from a file, or found from times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simpar.lazy import named

if TYPE_CHECKING:
    from simpar.pipeline.action import Action as Action
    from simpar.pipeline.action import overlap as overlap
    from simpar.pipeline.action import parse_action as parse_action
    from simpar.pipeline.automatic import automatic_order as automatic_order
    from simpar.pipeline.batch import StageTimesTable as StageTimesTable
    from simpar.pipeline.batch import step_times as step_times
    from simpar.pipeline.checks import Fault as Fault
    from simpar.pipeline.checks import check_order as check_order
    from simpar.pipeline.checks import faults as faults
    from simpar.pipeline.checks import peak_live as peak_live
    from simpar.pipeline.clock import StageTimes as StageTimes
    from simpar.pipeline.clock import step_time as step_time
    from simpar.pipeline.communication import with_communication as with_communication
    from simpar.pipeline.grid import draw as draw
    from simpar.pipeline.needs import gives as gives
    from simpar.pipeline.needs import message as message
    from simpar.pipeline.needs import sends as sends
    from simpar.pipeline.order import Order as Order
    from simpar.pipeline.order import loop as loop
    from simpar.pipeline.order import v_shape as v_shape
    from simpar.pipeline.orders import AUTOMATIC as AUTOMATIC
    from simpar.pipeline.orders import ORDERS as ORDERS
    from simpar.pipeline.orders import Family as Family
    from simpar.pipeline.orders import family as family
    from simpar.pipeline.orders import named_order as named_order
    from simpar.pipeline.recurrence import Recurrence as Recurrence
    from simpar.pipeline.table import read_csv as read_csv
    from simpar.pipeline.table import write_csv as write_csv

_HOMES: Final = {
    'AUTOMATIC': 'simpar.pipeline.orders',
    'Action': 'simpar.pipeline.action',
    'Family': 'simpar.pipeline.orders',
    'Fault': 'simpar.pipeline.checks',
    'ORDERS': 'simpar.pipeline.orders',
    'Order': 'simpar.pipeline.order',
    'Recurrence': 'simpar.pipeline.recurrence',
    'StageTimes': 'simpar.pipeline.clock',
    'StageTimesTable': 'simpar.pipeline.batch',
    'automatic_order': 'simpar.pipeline.automatic',
    'check_order': 'simpar.pipeline.checks',
    'draw': 'simpar.pipeline.grid',
    'family': 'simpar.pipeline.orders',
    'faults': 'simpar.pipeline.checks',
    'gives': 'simpar.pipeline.needs',
    'loop': 'simpar.pipeline.order',
    'message': 'simpar.pipeline.needs',
    'named_order': 'simpar.pipeline.orders',
    'overlap': 'simpar.pipeline.action',
    'parse_action': 'simpar.pipeline.action',
    'peak_live': 'simpar.pipeline.checks',
    'read_csv': 'simpar.pipeline.table',
    'sends': 'simpar.pipeline.needs',
    'step_time': 'simpar.pipeline.clock',
    'step_times': 'simpar.pipeline.batch',
    'v_shape': 'simpar.pipeline.order',
    'with_communication': 'simpar.pipeline.communication',
    'write_csv': 'simpar.pipeline.table',
}

__all__ = sorted(_HOMES)  # noqa: PLE0605
__getattr__ = named(__name__, _HOMES, globals())
