"""Memory: what every rank holds over the time of a step, from its program's writes and frees and a trace's times."""

from simpar.memory.lifetimes import ALWAYS, Lifetimes, lifetimes
from simpar.memory.memory import (
    Framework,
    Memory,
    Room,
    beside_summary,
    check_fit,
    fits,
    framework_of,
    margin_of,
    memory,
    memory_to_dict,
    peak_summary,
    room_of,
    sequential,
)
from simpar.memory.rank import Peak, RankMemory, Timeline
