"""Pipeline schedules: the order in which each rank does its actions, by name, from a file, or found from times."""

from simpar.pipeline.action import Action, overlap, parse_action
from simpar.pipeline.automatic import AUTOMATIC, automatic_order
from simpar.pipeline.checks import Fault, check_order, faults, peak_live
from simpar.pipeline.clock import StageTimes, step_time
from simpar.pipeline.communication import with_communication
from simpar.pipeline.grid import draw
from simpar.pipeline.needs import gives, message, needs, sends
from simpar.pipeline.order import Order, loop, v_shape
from simpar.pipeline.orders import ORDERS, Family, family, named_order
from simpar.pipeline.table import read_csv, write_csv

__all__ = [
    'AUTOMATIC',
    'ORDERS',
    'Action',
    'Family',
    'Fault',
    'Order',
    'StageTimes',
    'automatic_order',
    'check_order',
    'draw',
    'family',
    'faults',
    'gives',
    'loop',
    'message',
    'named_order',
    'needs',
    'overlap',
    'parse_action',
    'peak_live',
    'read_csv',
    'sends',
    'step_time',
    'v_shape',
    'with_communication',
    'write_csv',
]
