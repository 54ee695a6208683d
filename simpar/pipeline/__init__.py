"""Pipeline schedules: the order in which each rank does its actions, by name, from a file, or found from times."""

from simpar.pipeline.automatic import automatic_order
from simpar.pipeline.checks import Fault, check_order, faults, peak_live, read_csv, write_csv
from simpar.pipeline.clock import Recurrence, StageTimes, StageTimesTable, step_time, step_times
from simpar.pipeline.messages import gives, message, sends, with_communication
from simpar.pipeline.order import Action, Order, draw, loop, overlap, parse_action, v_shape
from simpar.pipeline.orders import AUTOMATIC, ORDERS, Family, family, named_order
