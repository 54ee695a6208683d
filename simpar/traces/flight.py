"""Dumps of PyTorch's flight recorder: which collectives a rank came to, and which rank a job that hangs waits for.

A dump is a pickle of plain values, or the same as JSON. Of a pickle the opcodes are read, and nothing is imported.
Source: pytorch/pytorch torch/csrc/distributed/c10d/FlightRecorder.hpp (2.13).
"""

import json
import pickletools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simpar import errors, files
from simpar.traces.table import Call, RankTrace

MOST_BYTES: Final = 2**28
FLIGHT: Final = 'flight recorder'
KEY: Final = re.compile(rb'collective_seq_id|pg_config')
"""What stands in the beginning of every dump; in a recording of Kineto, too."""
_ALL: Final = '(default_pg)'
"""What torch calls the group of all ranks."""
_RANK = re.compile(r'(\d+)$')
_CONSTANTS: Final[Mapping[str, Any]] = {'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False}
_VALUES: Final = frozenset({
    'BINUNICODE', 'SHORT_BINUNICODE', 'BININT', 'BININT1', 'BININT2', 'LONG1', 'BINFLOAT', 'UNICODE', 'INT', 'LONG',
})  # fmt: skip
_TAKEN: Final = {
    'EMPTY_DICT': 0, 'EMPTY_LIST': 0, 'EMPTY_TUPLE': 0, 'TUPLE1': 1, 'TUPLE2': 2, 'TUPLE3': 3, 'SETITEM': 2,
    'APPEND': 1, 'SETITEMS': -1, 'APPENDS': -1, 'TUPLE': -1,
}  # fmt: skip
"""What an opcode takes from the stack; -1, all behind the last mark."""
_PUTS: Final = frozenset({'BINPUT', 'LONG_BINPUT', 'MEMOIZE', 'PUT'})
_GETS: Final = frozenset({'BINGET', 'LONG_BINGET', 'GET'})
_SKIPPED: Final = frozenset({'PROTO', 'FRAME', 'STOP'})


def read_dump(path: Path) -> RankTrace:
    """A rank's dump; its rank is the number that its name ends with. Raises ``ScheduleError`` for what is no dump."""
    data = files.read_regular(path, MOST_BYTES)
    try:
        dump = json.loads(data) if data.lstrip()[:1] == b'{' else _unpickled(data)
        calls: dict[str, list[Call]] = defaultdict(list)
        for entry in dump['entries']:
            if entry.get('is_p2p'):
                continue
            name, title = entry['process_group']
            over = bool(entry['retired']) or entry['state'] == 'completed'
            number, what = int(entry['collective_seq_id']), entry['profiling_name'].partition(':')[2]
            sizes = ', '.join('×'.join(str(int(n)) for n in shape) for shape in entry['input_sizes'])
            # Added up, not formatted: what is no text may be a list of itself, whose words have no end.
            calls[name + ' (' + title + ')'].append(Call(number, f'{what} of {sizes}', over))
        world = max((len(json.loads(one['ranks'])) for one in dump['pg_config'].values()), default=0)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        what = f'is no whole dump of a flight recorder: {error.__class__.__name__} {error}'
        raise errors.refusal(path, what, 'give the file as torch wrote it') from None
    rank = _RANK.search(path.name.partition('.')[0])
    if rank is None:
        what = 'a dump does not say its rank, and its name does not end with one'
        raise errors.refusal(path, what, 'name it as torch does, e.g. nccl_trace_rank_3')
    return RankTrace(
        source=str(path),
        format=FLIGHT,
        rank=int(rank[1]),
        world=world,
        calls={group: tuple(mine) for group, mine in calls.items()},
    )


def _unpickled(data: bytes) -> Any:
    """The plain values of a pickle. Raises ``ValueError`` for an opcode that imports or calls anything."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in _VALUES or name in _CONSTANTS:
            stack.append(_CONSTANTS.get(name, argument))
        elif name == 'MARK':
            marks.append(len(stack))
        elif name in _TAKEN:
            begin = marks.pop() if _TAKEN[name] < 0 else len(stack) - _TAKEN[name]
            values = stack[begin:]
            del stack[begin:]
            if name.startswith('SET'):
                stack[-1].update(zip(values[::2], values[1::2], strict=True))
            elif name.startswith('APPEND'):
                stack[-1].extend(values)
            else:
                stack.append({} if name == 'EMPTY_DICT' else [] if name == 'EMPTY_LIST' else tuple(values))
        elif name in _PUTS:
            memo[len(memo) if argument is None else int(argument)] = stack[-1]
        elif name in _GETS:
            stack.append(memo[int(argument or 0)])
        elif name not in _SKIPPED:
            raise ValueError(f'opcode {name} is none of plain values')
    return stack[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A collective that some ranks came to and that does not end.

    Arguments: ``waiting``, ranks that are in it; ``absent``, ranks that did not come to it; ``other``, ranks that came
    to another one instead, ``differs``.
    """

    group: str
    call: Call
    waiting: tuple[int, ...]
    absent: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    differs: str = ''


def stuck_of(traces: Sequence[RankTrace]) -> Stuck | None:
    """The collective that a job hangs in; None where all are over. Does not model messages between two ranks.

    Of several, one whose absent ranks wait for nobody themselves.
    """
    waiting = {trace.rank for trace in traces if any(not call.over for mine in trace.calls.values() for call in mine)}
    groups: dict[str, dict[int, Mapping[int, Call]]] = defaultdict(dict)
    for trace in traces:
        for group, mine in trace.calls.items():
            groups[group][trace.rank] = {call.number: call for call in mine}
    nobody: dict[int, Mapping[int, Call]] = {trace.rank: {} for trace in traces}
    of_all = {group: nobody | ranks if group.endswith(_ALL) else ranks for group, ranks in groups.items()}
    candidates = [one for group, ranks in of_all.items() if (one := _stuck(group, ranks)) is not None]
    return min(
        candidates, key=lambda one: (not one.absent or bool(waiting & set(one.absent)), not one.other), default=None
    )


def _stuck(group: str, ranks: Mapping[int, Mapping[int, Call]]) -> Stuck | None:
    """The first collective of a group that is not over."""
    numbers = [number for mine in ranks.values() for number, call in mine.items() if not call.over]
    if not numbers:
        return None
    number = min(numbers)
    came = {rank: mine[number] for rank, mine in ranks.items() if number in mine}
    absent = tuple(rank for rank, mine in ranks.items() if max(mine, default=0) < number)
    names = [call.name for call in came.values()]
    usual = max(names, key=names.count)
    waiting = tuple(rank for rank, call in came.items() if call.name == usual)
    other = tuple(rank for rank in came if rank not in waiting)
    differs = came[other[0]].name if other else ''
    return Stuck(group=group, call=came[waiting[0]], waiting=waiting, absent=absent, other=other, differs=differs)
