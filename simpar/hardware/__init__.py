"""Hardware: device, host, links, topology, cluster and profile, each number with its source and grade."""

from simpar.hardware.profile import (
    GRADES,
    Device,
    Figure,
    FlopsFigure,
    Grade,
    Library,
    Link,
    Profile,
    RateFigure,
    ShareFigure,
    TableFile,
    Tables,
    TimeFigure,
    worst,
)
from simpar.hardware.stack import Beside, ExpansionMode, Launches, Stack, StackMemory, Workspace
from simpar.hardware.topology import Cluster, Placement, Shape, Topology
