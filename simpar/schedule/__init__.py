"""Schedule: what the user writes, a workload, a plan and a cluster; every fault with file:line and a remedy."""

from simpar.keys import WithoutEffect
from simpar.schedule.contents import ClusterReference
from simpar.schedule.schedule import (
    Row,
    Schedule,
    check_against_cluster,
    load_rows,
    load_schedule,
    schedule_of,
    schedule_schema,
    written,
)
