"""Memory: what every rank holds over the time of a step, from its program's writes and frees and a trace's times."""

from simpar.memory.framework import Framework as Framework
from simpar.memory.framework import framework_of as framework_of
from simpar.memory.lifetimes import ALWAYS as ALWAYS
from simpar.memory.lifetimes import Lifetimes as Lifetimes
from simpar.memory.lifetimes import lifetimes as lifetimes
from simpar.memory.memory import Memory as Memory
from simpar.memory.memory import check_fit as check_fit
from simpar.memory.memory import fits as fits
from simpar.memory.memory import in_flight as in_flight
from simpar.memory.memory import margin_of as margin_of
from simpar.memory.memory import memory as memory
from simpar.memory.memory import memory_to_dict as memory_to_dict
from simpar.memory.memory import peak_summary as peak_summary
from simpar.memory.memory import sequential as sequential
from simpar.memory.rank import Peak as Peak
from simpar.memory.rank import RankMemory as RankMemory
from simpar.memory.rank import Timeline as Timeline

__all__ = [
    'ALWAYS',
    'Framework',
    'Lifetimes',
    'Memory',
    'Peak',
    'RankMemory',
    'Timeline',
    'check_fit',
    'fits',
    'framework_of',
    'in_flight',
    'lifetimes',
    'margin_of',
    'memory',
    'memory_to_dict',
    'peak_summary',
    'sequential',
]
