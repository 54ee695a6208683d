"""Hardware: device, host, links, topology, cluster and profile, each number with its source and grade."""

from simpar.hardware.profile import GRADES as GRADES
from simpar.hardware.profile import Device as Device
from simpar.hardware.profile import Figure as Figure
from simpar.hardware.profile import FlopsFigure as FlopsFigure
from simpar.hardware.profile import Grade as Grade
from simpar.hardware.profile import Library as Library
from simpar.hardware.profile import Link as Link
from simpar.hardware.profile import Profile as Profile
from simpar.hardware.profile import RateFigure as RateFigure
from simpar.hardware.profile import ShareFigure as ShareFigure
from simpar.hardware.profile import TableFile as TableFile
from simpar.hardware.profile import Tables as Tables
from simpar.hardware.profile import TimeFigure as TimeFigure
from simpar.hardware.profile import worst as worst
from simpar.hardware.stack import Beside as Beside
from simpar.hardware.stack import ExpansionMode as ExpansionMode
from simpar.hardware.stack import Launches as Launches
from simpar.hardware.stack import Stack as Stack
from simpar.hardware.stack import StackMemory as StackMemory
from simpar.hardware.stack import Workspace as Workspace
from simpar.hardware.topology import Cluster as Cluster
from simpar.hardware.topology import Shape as Shape
from simpar.hardware.topology import Topology as Topology
