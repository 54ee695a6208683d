"""Checks of an order, and orders that a CSV table gives."""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from simpar.errors import Problem, ScheduleError, refuse
from simpar.files import read_regular, write_atomically
from simpar.pipeline.messages import Result, gives, message, needs, sends, walked
from simpar.pipeline.order import COMMUNICATION, SHARDING, Action, Kind, Order, Row, draw, parse_action

# Checks: whether a schedule does all that a step needs, once, in an order that ends; and how much it keeps alive.


def stuck(order: Order) -> dict[int, tuple[int, tuple[Result, ...]]]:
    """Ranks that do not reach their end, each with the position of the action it waits at and the results it lacks.

    Sends and receives block: a rank goes on only when the other rank is at the matching action. So an order that ends
    here ends on every machine that does more at once. Without sends and receives, results reach all ranks at once.
    An empty tuple of results: the rank waits at a send or a receive for the other side.
    """
    places = [[(rank, at) for at in range(len(row))] for rank, row in enumerate(order.actions)]
    sides = {(message(order.actions[rank][at]), order.actions[rank][at].kind[0]): (rank, at)
             for row in places if order.communicates for rank, at in row}  # fmt: skip
    # Without messages a result is everywhere as soon as it exists.
    homes = [rank if order.communicates else 0 for rank in range(order.ranks)]

    def wants(place: _Place) -> Iterator[object]:
        rank, at = place
        action = order.actions[rank][at]
        yield from ((homes[rank], need) for need in needs(action, order))
        if (sent := message(action)) is not None:
            receives = action.kind[0] == 'R'
            # Where the other side never comes, this is a place that no rank has.
            other, before = sides.get((sent, 'S' if receives else 'R'), (order.ranks, 1))
            yield from [(other, before - 1)] * bool(before)
            yield from [(other, sent)] * receives

    def makes(place: _Place) -> Iterator[object]:
        rank, at = place
        action = order.actions[rank][at]
        sent = message(action) if action.kind[0] == 'R' else None
        yield from ((homes[rank], result) for result in (*gives(action), *([sent] if sent else ())))
        yield place

    _, position, made = walked(places, wants, makes)
    lacks = {rank: needs(row[at], order) for rank, (at, row) in enumerate(zip(position, order.actions, strict=True))
             if at < len(row)}  # fmt: skip
    return {
        rank: (position[rank], tuple(need for need in inputs if (homes[rank], need) not in made))
        for rank, inputs in lacks.items()
    }


MOST_FAULTS: Final = 100
"""More than these are not told one by one."""
DRAWN: Final = 8
"""The first faults, which are drawn."""
_STAGE: Final[tuple[Kind, ...]] = ('F', 'B', 'I', 'W')
_BEFORE: Final[dict[Kind, Kind]] = {'B': 'F', 'I': 'F', 'W': 'I'}
_Place = tuple[int, int]
_Places = Mapping[Action, list[_Place]]


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong in an order: at a rank's action of this position, or behind its last."""

    rank: int
    position: int
    what: str


def check_order(order: Order, name: str = 'pipeline order') -> Order:
    """The order itself, where it is right.

    Every stage does every micro-batch once: F, and B or I and W, on the rank that holds the stage, in an order that
    ends. Sends and receives, where there are any, pair up, and end though they block. Arguments: ``name``, said where
    it is wrong. Raises `ScheduleError` with every fault and a drawing of the place.
    """
    fault_list = faults(order)
    if fault_list:
        problems = [Problem(f'{name}, rank {fault.rank}, step {fault.position}', fault.what) for fault in fault_list]
        raise ScheduleError([*problems, drawing(order, fault_list, name)])
    return order


def drawing(order: Order, fault_list: tuple[Fault, ...], name: str) -> Problem:
    """The grid of actions around faults, as the last problem of an error."""
    here = {(fault.rank, fault.position) for fault in fault_list[:DRAWN]}
    return Problem(name, 'the actions around\n' + draw(order, here, around=4))


def faults(order: Order) -> tuple[Fault, ...]:
    """All that is wrong in an order, at most ``MOST_FAULTS``.

    Where actions are missing, done twice or in the wrong place on their rank, these are told; only where nothing
    of the kind is found, whether ranks wait for each other for ever.
    """
    places: defaultdict[Action, list[_Place]] = defaultdict(list)
    for rank, row in enumerate(order.actions):
        for position, action in enumerate(row):
            for part in action.parts:
                places[part].append((rank, position))
    # Bounded before it is sorted: a file of nonsense has millions of faults.
    fault_list = sorted(islice(_static(order, places), MOST_FAULTS))
    # An order that lacks actions waits for ever, too; told together, the cause would drown.
    return tuple(fault_list or islice(_waits(order), MOST_FAULTS))


def peak_live(order: Order, kept: float = 1.0) -> tuple[float, ...]:
    """Most activations of one stage that each rank keeps at once, by rank.

    An activation lives from its F to its B, or to its W. Arguments: ``kept``, share of it that still lives between its
    I and its W (M_W / M_B in the zero-bubble paper). Does not model buffers of communication.
    """
    return tuple(max(_live(row, kept), default=0.0) for row in order.actions)


def _live(row: Row, kept: float) -> Iterator[float]:
    """What a rank keeps behind each action; counted, so that no share is lost in sums."""
    full = waiting = 0
    for action in row:
        # In an overlap both activations live at once, so the forward's is counted before the backward's is freed.
        for part in sorted(action.parts, key=lambda part: part.kind != 'F'):
            full += (part.kind == 'F') - (part.kind in ('I', 'B'))
            waiting += (part.kind == 'I') - (part.kind == 'W')
            # Integers are counted and multiplied once: a running sum of shares would drift.
            yield full + kept * waiting


def _static(order: Order, places: _Places) -> Iterator[Fault]:
    homeless = [stage for stage, rank in enumerate(order.placement) if not 0 <= rank < order.ranks]
    # Without a rank for each stage no other check can look anything up.
    if homeless:
        yield Fault(0, 0, f'stage {homeless[0]} is on rank {order.placement[homeless[0]]} of {order.ranks}')
        return
    yield from (Fault(rank, 0, f'rank {rank} does nothing') for rank, row in enumerate(order.actions) if not row)
    yield from _strangers(order, places)
    yield from _duplicates(places)
    yield from _missing(order, places)
    if order.communicates:
        yield from _unpaired(order, places)
    yield from _disordered(places)


def _strangers(order: Order, places: _Places) -> Iterator[Fault]:
    """Stages and micro-batches that are not there, and actions on another rank than their stage's."""
    for action, where in places.items():
        for rank, position in where:
            if not 0 <= action.stage < order.stages:
                yield Fault(rank, position, f'{action}: there is no stage {action.stage} (of {order.stages})')
            elif (action.micro_batch or 0) >= order.micro_batches:
                what = f'{action}: there is no micro-batch {action.micro_batch} (of {order.micro_batches})'
                yield Fault(rank, position, what)
            elif rank != order.placement[action.stage]:
                what = f'{action} is on rank {rank}, but stage {action.stage} is on {order.placement[action.stage]}'
                yield Fault(rank, position, what)


def _duplicates(places: _Places) -> Iterator[Fault]:
    for action, where in places.items():
        # Weights may be gathered and resharded as often as one likes.
        if action.kind in SHARDING:
            continue
        for rank, position in where[1:]:
            what = f'{action} for the second time, first on rank {where[0][0]}, step {where[0][1]}'
            yield Fault(rank, position, what)
        if action.kind == 'B':
            for part in (replace(action, kind='I'), replace(action, kind='W')):
                for rank, position in places.get(part, ()):
                    yield Fault(rank, position, f'{part}, but {action} does it already')


def _missing(order: Order, places: _Places) -> Iterator[Fault]:
    for stage, rank in enumerate(order.placement):
        lacking: defaultdict[str, list[int]] = defaultdict(list)
        for micro_batch in range(order.micro_batches):
            done = {kind for kind in _STAGE if Action(stage, kind, micro_batch) in places}
            if 'F' not in done:
                lacking['F'].append(micro_batch)
            if 'B' not in done and not {'I', 'W'} <= done:
                lacking['I' if 'W' in done else 'W' if 'I' in done else 'B'].append(micro_batch)
        for kind, micro_batches in lacking.items():
            what = f'stage {stage} lacks {kind} of micro-batch {_listed(micro_batches)}'
            yield Fault(rank, len(order.actions[rank]), what)


def _listed(numbers: list[int]) -> str:
    text = ', '.join(map(str, numbers[:8]))
    return f'{text}, … ({len(numbers)} in all)' if len(numbers) > 8 else text


def _unpaired(order: Order, places: _Places) -> Iterator[Fault]:
    """Messages that lack a side, and sends and receives of what does not leave its rank."""
    expected = {side: action for action in places for pair in sends(action, order) for side in pair}
    for side, action in expected.items():
        # A stage that is not there has been told already.
        if side not in places and 0 <= side.stage < order.stages:
            rank = order.placement[side.stage]
            yield Fault(rank, len(order.actions[rank]), f'{side} is missing: {action} crosses ranks')
    for action, where in places.items():
        if action.kind in COMMUNICATION and action not in expected:
            rank, position = where[0]
            yield Fault(rank, position, f'{action} carries nothing: no result crosses ranks there')


def _disordered(places: _Places) -> Iterator[Fault]:
    """A backward before its forward, or a weight gradient before the gradient of the input, on one rank."""
    for action, where in places.items():
        kind = _BEFORE.get(action.kind)
        if kind is not None:
            first = places.get(replace(action, kind=kind), ())
            # On different ranks positions cannot be compared; the dry run decides there.
            if first and first[0][0] == where[0][0] and first[0][1] >= where[0][1]:
                verb = 'overlaps' if first[0][1] == where[0][1] else 'before'
                yield Fault(*where[0], f'{action} {verb} {replace(action, kind=kind)}, which it needs')


def _waits(order: Order) -> Iterator[Fault]:
    for rank, (position, lacks) in stuck(order).items():
        action = order.actions[rank][position]
        what = ' and '.join(map(_result_text, lacks)) or 'the other side of the message'
        yield Fault(rank, position, f'{action} waits for ever for {what}')


def _result_text(result: Result) -> str:
    kind, stage, micro_batch = result
    return f'{"the output" if kind == "F" else "the input gradient"} of stage {stage}, micro-batch {micro_batch}'


# Tables: schedules as CSV of torch.distributed.pipelining, and as lines of text that a plan holds.

MOST_BYTES: Final = 64 * 2**20
_WAIT: Final = re.compile(r'\d+WAIT_((SEND|RECV)_[FB]\d+|REDUCE_GRAD)')
_Cell = tuple[int, int, Action]
"""Line and column, from 1, and what stands there."""


def write_csv(order: Order, path: Path, *, waits: bool = False) -> None:
    """Write an order so that torch reads it: ``compute_comms`` where it communicates, else ``compute_only``.

    Arguments: ``waits``, whether it says where sends and reductions are waited for. From 2.15 on torch demands that of
    an order that communicates; before, it has no such actions.
    Raises ``OSError``. The number of sequence chunks is not written: torch has none.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows(map(_with_waits, order.actions) if waits else order.actions)
    write_atomically(path, text.getvalue())


def _with_waits(row: Sequence[Action]) -> Iterator[str]:
    """A rank's actions with waits where torch 2.15 has them (``_add_wait_send`` and ``_add_reduce_grad`` there)."""
    pending: dict[tuple[str, int, int | None], str] = {}
    for action in row:
        yield str(action)
        if action.kind in ('SEND_F', 'SEND_B'):
            wait = f'{action.stage}WAIT_{action.kind}{action.micro_batch}'
            pending[action.kind, action.stage, action.micro_batch] = wait
        elif action.kind == 'REDUCE_GRAD':
            yield f'{action.stage}WAIT_REDUCE_GRAD'
        # Whoever has the gradient of what was sent, knows that it has come.
        backwards = (part for part in action.parts if part.kind in ('B', 'I'))
        sent = (pending.pop(('SEND_F', part.stage, part.micro_batch), '') for part in backwards)
        yield from filter(None, sent)
    yield from pending.values()


def read_csv(path: Path) -> Order:
    """Read an order, torch's ``compute_only`` or ``compute_comms``, and check it.

    Stages, their ranks and the micro-batches are those that its actions name. Empty cells, torch's idle steps, are
    skipped. Raises `ScheduleError` with every fault and its file:line:column.
    """
    cells, problems = _cells(path, _text(path))
    if not problems and not any(cells):
        problems = [Problem(str(path), 'no actions', 'write a row for each rank, e.g. 0F0,0B0')]
    problems = problems or _numbering(path, cells)
    refuse(problems[:MOST_FAULTS])
    order = _order([[action for *_, action in row] for row in cells])
    fault_list = faults(order)
    if fault_list:
        fault_problems = [Problem(_where(path, cells, fault.rank, fault.position), fault.what) for fault in fault_list]
        raise ScheduleError([*fault_problems, drawing(order, fault_list, str(path))])
    return order


def _text(path: Path) -> str:
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise ScheduleError(Problem(str(path), error.strerror or 'cannot be read')) from error
    try:
        # Spreadsheets put a byte order mark in front.
        return data.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        line = data.count(b'\n', 0, error.start) + 1
        raise ScheduleError(Problem(f'{path}:{line}', 'not UTF-8')) from error


def _cells(path: Path, text: str) -> tuple[list[list[_Cell]], list[Problem]]:
    """Rows of cells without the empty ones, and every cell that is no action."""
    # Line by line, not csv.reader over the file: a stray quote must not swallow the lines behind it.
    lines = text.rstrip().replace('\r\n', '\n').split('\n')
    rows: list[list[_Cell]] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        words = ((column, cell.strip()) for column, cell in enumerate(_split(line), 1))
        # From 2.15 on torch also writes when it waits; of what is sent and summed that is known here by who needs it.
        read = [
            (column, _read(word, f'{path}:{number}:{column}'))
            for column, word in words
            if word and not _WAIT.fullmatch(word)
        ]
        rows.append([(number, column, entry) for column, entry in read if isinstance(entry, Action)])
        problems += [entry for _, entry in read if isinstance(entry, Problem)]
    return rows, problems


def _read(word: str, where: str) -> Action | Problem:
    try:
        return parse_action(word)
    except ValueError as error:
        what, _, instead = str(error).partition('; ')
        return Problem(where, what, instead)


def _split(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        # Python 3.10 takes no NUL; cells have their columns all the same.
        return line.split(',') if '\0' in line else [line]


def _numbering(path: Path, cells: list[list[_Cell]]) -> list[Problem]:
    """Stages and micro-batches count from 0 without a gap: the first cell beyond each gap."""
    problems = []
    flat = [(line, column, part) for row in cells for line, column, action in row for part in action.parts]
    for what, numbers in (
        ('stage', {part.stage for *_, part in flat}),
        ('micro-batch', {part.micro_batch for *_, part in flat if part.micro_batch is not None}),
    ):
        # Of n numbers one from 0 to n is always missing: n itself where there is no gap.
        gap = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if gap < len(numbers):
            line, column, part = next(
                cell for cell in flat if ((cell[2].stage if what == 'stage' else cell[2].micro_batch) or 0) > gap
            )
            problems.append(Problem(f'{path}:{line}:{column}', f'{part}, but no action of {what} {gap}'))
    return problems


def _order(rows: Sequence[Sequence[Action]]) -> Order:
    """The order of some rows, whose stages have numbers without a gap."""
    placement: dict[int, int] = {}
    micro_batches = 0
    for rank, row in enumerate(rows):
        for action in row:
            for part in action.parts:
                # The first rank that names a stage has it; another that does is told as a fault.
                placement.setdefault(part.stage, rank)
                micro_batches = max(micro_batches, (part.micro_batch or 0) + 1)
    placed = tuple(placement[stage] for stage in range(len(placement)))
    return Order(tuple(map(tuple, rows)), placed, micro_batches)


def _where(path: Path, cells: list[list[_Cell]], rank: int, position: int) -> str:
    """File, line and column of an action; of what is missing at a rank's end, its line."""
    row = cells[rank]
    return f'{path}:{row[position][0]}:{row[position][1]}' if position < len(row) else f'{path}:{rank + 1}'


def rows_of(order: Order) -> tuple[str, ...]:
    """The lines of an order."""
    return tuple(' '.join(map(str, row)) for row in order.actions)


def order_of_rows(rows: Sequence[str], name: str = 'plan.rows') -> Order:
    """Read lines back and check them.

    Arguments: ``name``, said where they are wrong. Raises `ScheduleError` with every fault.
    """
    read = [[_read(word, f'{name}.{rank}') for word in row.replace(',', ' ').split()] for rank, row in enumerate(rows)]
    problems = [entry for row in read for entry in row if isinstance(entry, Problem)]
    actions = [[entry for entry in row if isinstance(entry, Action)] for row in read]
    stages = sorted({part.stage for row in actions for action in row for part in action.parts})
    if not problems and (not stages or stages != list(range(len(stages)))):
        problems.append(Problem(name, f'stages {stages}', 'number stages from 0 without a gap'))
    refuse(problems[:20])
    return check_order(_order(actions), name)
