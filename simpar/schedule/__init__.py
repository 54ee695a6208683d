"""Schedule: what the user writes, a workload, a plan and a cluster; every fault with file:line and a remedy."""

from simpar.keys import WithoutEffect as WithoutEffect
from simpar.schedule.contents import ClusterReference as ClusterReference
from simpar.schedule.schedule import Row as Row
from simpar.schedule.schedule import Schedule as Schedule
from simpar.schedule.schedule import check_against_cluster as check_against_cluster
from simpar.schedule.schedule import load_rows as load_rows
from simpar.schedule.schedule import load_schedule as load_schedule
from simpar.schedule.schedule import schedule_of as schedule_of
from simpar.schedule.schedule import schedule_schema as schedule_schema
from simpar.schedule.schedule import written as written
