"""The critical path of a step: what made it last as long as it did."""

from simpar.critical_path.path import CriticalPath as CriticalPath
from simpar.critical_path.path import Segment as Segment
from simpar.critical_path.walk import critical_path as critical_path

__all__ = ['CriticalPath', 'Segment', 'critical_path']
