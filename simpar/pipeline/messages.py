"""Messages: what an action needs and gives; sends and receives written into an order, early, late or in exchanges."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.order import Action, Order, Row

Result = tuple[Literal['F', 'I'], int, int]
"""F: the activation that (stage, micro-batch) gives to the next stage; I: the gradient that it gives back."""
Message = tuple[Literal['F', 'I'], int, int]
"""A result on its way, named by the stage that sends it."""


def gives(action: Action) -> tuple[Result, ...]:
    """Results of an action."""
    # Nearly all actions are one part, and searches ask for hundreds of thousands of them.
    if not action.sub_actions:
        return _gives(action)
    return tuple(result for part in action.sub_actions for result in _gives(part))


def needs(action: Action, order: Order) -> tuple[Result, ...]:
    """Results that an action of this order needs; of a send, what it sends; of a receive, nothing."""
    if not action.sub_actions:
        return _needs(action, order)
    return tuple(need for part in action.sub_actions for need in _needs(part, order))


def _gives(part: Action) -> tuple[Result, ...]:
    if part.kind in ('F', 'I', 'B'):
        return (('F' if part.kind == 'F' else 'I', part.stage, part.micro_batch or 0),)
    return ()


def _needs(action: Action, order: Order) -> tuple[Result, ...]:
    stage, micro_batch = action.stage, action.micro_batch or 0
    if action.kind == 'F':
        before: tuple[Result, ...] = (('F', stage - 1, micro_batch),) if stage else ()
        # Attention reads keys and values of the chunks before, whose forward must be over.
        return (*before, ('F', stage, micro_batch - 1)) if micro_batch % order.sequence_chunks else before
    if action.kind in ('I', 'B'):
        # The last stage's gradient starts from its own forward: nothing comes from behind.
        later: tuple[Result, ...] = (('I', stage + 1, micro_batch),) if stage + 1 < order.stages else ()
        if (micro_batch + 1) % order.sequence_chunks:
            later = (*later, ('I', stage, micro_batch + 1))
        return (('F', stage, micro_batch), *later)
    if action.kind in ('W', 'SEND_B'):
        return (('I', stage, micro_batch),)
    return (('F', stage, micro_batch),) if action.kind == 'SEND_F' else ()


def message(action: Action) -> Message | None:
    """The message of a send or a receive; None for all other actions."""
    micro_batch = action.micro_batch or 0
    if action.kind in ('SEND_F', 'RECV_F'):
        return ('F', action.stage - (action.kind == 'RECV_F'), micro_batch)
    if action.kind in ('SEND_B', 'RECV_B'):
        return ('I', action.stage + (action.kind == 'RECV_B'), micro_batch)
    return None


def sends(action: Action, order: Order) -> tuple[tuple[Action, Action], ...]:
    """The sends that the results of an action cause, each with its receive; none where they stay on the rank."""
    pairs = (sides_of(result, order) for result in gives(action))
    return tuple(sides for sides in pairs if sides)


def sides_of(result: Result, order: Order) -> tuple[Action, Action] | None:
    """The send of a result, and its receive; None where it stays on its rank."""
    kind, stage, micro_batch = result
    if kind == 'F':
        if not order.crosses(stage):
            return None
        return Action(stage, 'SEND_F', micro_batch), Action(stage + 1, 'RECV_F', micro_batch)
    if not stage or not order.crosses(stage - 1):
        return None
    return Action(stage, 'SEND_B', micro_batch), Action(stage - 1, 'RECV_B', micro_batch)


Item = TypeVar('Item')


def walked(
    rows: Sequence[Sequence[Item]],
    wants: Callable[[Item], Iterable[object]],
    makes: Callable[[Item], Iterable[object]],
) -> tuple[list[Item], list[int], set[object]]:
    """Items of ranks, each behind those that make what it wants; how far each rank comes; and all that was made.

    Each rank goes on until it lacks something, then whoever made something last: so little is under way at once.
    """
    done: list[Item] = []
    position, ready = [0] * len(rows), list(range(len(rows)))
    made: set[object] = set()
    waiting: defaultdict[object, list[int]] = defaultdict(list)
    while ready:
        rank = ready.pop()
        while position[rank] < len(rows[rank]):
            item = rows[rank][position[rank]]
            lacks = [one for one in wants(item) if one not in made]
            if lacks:
                # One is enough to wait for: the others are looked at when it is there, so each a few times only.
                waiting[lacks[0]].append(rank)
                break
            done.append(item)
            position[rank] += 1
            for one in makes(item):
                made.add(one)
                ready += waiting.pop(one, ())
    return done, position, made


class _Late:
    """Carries an order out, sends blocking, and writes each receive just before the first use of what it receives.

    Where ranks would then block each other, each sending, the lowest of them that is sent to receives first: torch's
    rule of rank parity (deferred receives) for two ranks, and for a ring of ranks, which that rule leaves waiting.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._rows: list[list[Action]] = [[] for _ in order.actions]
        self._known: list[set[Result]] = [set() for _ in order.actions]
        self._left = [deque(row) for row in order.actions]
        self._pending: list[deque[tuple[Action, Action]]] = [deque() for _ in order.actions]

    def run(self) -> Order:
        while self._going():
            # Every rank does one thing a round; a list, as any() over a generator would stop at the first that moves.
            moved = [self._step(rank) for rank in self._going()]
            if not any(moved):
                self._receive_before(self._sender_in_ring())
        return replace(self._order, actions=tuple(map(tuple, self._rows)))

    def _going(self) -> list[int]:
        return [rank for rank in range(self._order.ranks) if self._left[rank] or self._pending[rank]]

    def _step(self, rank: int) -> bool:
        """One thing that a rank can do; False where it waits."""
        if self._pending[rank]:
            peer = self._peer(rank)
            # A peer that itself stands at a send cannot receive; the ring is broken only where nobody moves at all.
            if self._pending[peer] or rank not in self._wanted(peer):
                return False
            self._receive_before(rank)
            return True
        if self._wanted(rank) or not self._known[rank].issuperset(needs(self._left[rank][0], self._order)):
            return False
        action = self._left[rank].popleft()
        self._rows[rank].append(action)
        self._known[rank].update(gives(action))
        self._pending[rank].extend(sends(action, self._order))
        return True

    def _receive_before(self, rank: int) -> None:
        """The oldest pending send of a rank, and its receive before what the other rank does next."""
        peer = self._peer(rank)
        send, receive = self._pending[rank].popleft()
        self._rows[rank].append(send)
        self._rows[peer].append(receive)
        sent = message(send)
        if sent is not None:
            self._known[peer].add(sent)

    def _peer(self, rank: int) -> int:
        return self._order.placement[self._pending[rank][0][1].stage]

    def _wanted(self, rank: int) -> list[int]:
        """Ranks whose results the next action of a rank lacks."""
        if not self._left[rank]:
            return []
        lacks = [need for need in needs(self._left[rank][0], self._order) if need not in self._known[rank]]
        return [self._order.placement[stage] for _, stage, _ in lacks if self._order.placement[stage] != rank]

    def _sender_in_ring(self) -> int:
        """Of ranks that wait for each other in a ring, the one that sends to the lowest. All ranks wait."""
        rank, path = self._going()[0], []
        while rank not in path:
            path.append(rank)
            wanted = [self._peer(rank)] if self._pending[rank] else self._wanted(rank)
            if not wanted:
                raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
            rank = wanted[0]
        ring = path[path.index(rank) :]
        senders = [rank for rank in ring if self._pending[rank]]
        if not senders:
            raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
        # Any sender would break the ring; the lowest receiver is torch's choice for two ranks, and the same on every
        # run.
        return min(senders, key=self._peer)


Receive = Literal['early', 'late']


def with_communication(order: Order, receive: Receive = 'early') -> Order:
    """The order with a send behind each result that leaves its rank, and its receive on the other rank.

    Arguments: ``receive``: ``early``, as soon as the result is sent, whatever the other rank does meanwhile, as torch
    does; ``late``, just before its first use, or earlier where two ranks would else wait for each other.
    Both end though sends and receives block, and between two ranks, messages of one direction are sent and received in
    the same order. Raises `ScheduleError` where the order communicates already or cannot be carried out.
    """
    if order.communicates:
        raise ScheduleError(Problem('pipeline order', 'has sends and receives already'))
    return _early(order) if receive == 'early' else _Late(order).run()


def _early(order: Order) -> Order:
    """Ranks take turns, one action a turn; a receive is written when its send is (as torch's _add_send_recv)."""
    rows: list[list[Action]] = [[] for _ in order.actions]
    results: list[set[Result]] = [set() for _ in order.actions]
    position = [0] * order.ranks
    going = [rank for rank, row in enumerate(order.actions) if row]
    # What each rank's next action needs: asked again each turn, it would be worked out again each turn.
    lacks = {rank: needs(order.actions[rank][0], order) for rank in going}
    while going:
        # If a full round moves nobody, nobody will ever move.
        moved, ended = False, False
        for rank in going:
            if not results[rank].issuperset(lacks[rank]):
                continue
            row, at = order.actions[rank], position[rank]
            _do(order, row[at], rank, rows, results)
            position[rank] = at = at + 1
            moved = True
            if at < len(row):
                lacks[rank] = needs(row[at], order)
            else:
                ended = True
        if not moved:
            raise ScheduleError(Problem('pipeline order', 'cannot be carried out: ranks wait for each other'))
        if ended:
            going = [rank for rank in going if position[rank] < len(order.actions[rank])]
    return replace(order, actions=tuple(map(tuple, rows)))


def _do(order: Order, action: Action, rank: int, rows: list[list[Action]], results: list[set[Result]]) -> None:
    rows[rank].append(action)
    outputs = gives(action)
    # A W gives nothing to anybody.
    if not outputs:
        return
    results[rank].update(outputs)
    for result in outputs:
        sides = sides_of(result, order)
        if sides:
            send, receive = sides
            peer = order.placement[receive.stage]
            rows[rank].append(send)
            # The receive is written at once, whatever the peer is doing: both ranks see their messages in one order,
            # so blocking ends.
            rows[peer].append(receive)
            # Known as soon as it is received; whether the peer then waits for it is the engine's business.
            results[peer].add(result)


_Turn = tuple[Action, ...]


# One exchange at a time: messages of an interleaved pipeline as Megatron-LM sends them without overlap.
# Source: NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py,
# forward_backward_pipelining_with_interleaving: send_forward_recv_forward while it warms up,
# send_forward_backward_recv_forward_backward behind each forward and the backward that follows it,
# send_backward_recv_backward at the end.


_Exchange = tuple[tuple[Result, ...], tuple[Result, ...]]
"""What a rank sends and receives between two turns."""


def in_exchanges(order: Order) -> Order | None:
    """The order with one exchange between two turns of a rank: one sends what it gave, the next needs what is received.

    A turn is a forward with the backward behind it, or one action. An exchange ends when all of its messages have.
    None where ranks would wait for each other, or messages between two ranks would be received in another order.
    """
    pairs = [_turns(row) for row in order.actions]
    # A rank that does all forwards first has none with a backward; or, if it has one turn of both, looks the same.
    apart = [
        list[_Turn]((action,) for action in row) if _all_forwards_first(row) else own
        for row, own in zip(order.actions, pairs, strict=True)
    ]
    return _exchanged(pairs, order) or _exchanged(apart, order)


def _exchanged(turns: Sequence[list[_Turn]], order: Order) -> Order | None:
    exchanges = [_exchanges(own, order) for own in turns]
    if not _ends(exchanges):
        return None
    rows = tuple(_row(own, between, order) for own, between in zip(turns, exchanges, strict=True))
    new_order = replace(order, actions=rows)
    return new_order if _alike(new_order) else None


def _turns(row: Row) -> list[_Turn]:
    turns: list[_Turn] = []
    for action in row:
        if action.kind == 'B' and turns and [one.kind for one in turns[-1]] == ['F']:
            turns[-1] = (*turns[-1], action)
        else:
            turns.append((action,))
    return turns


def _all_forwards_first(row: Row) -> bool:
    kinds = [action.kind for action in row]
    return 'F' not in kinds[kinds.count('F') :]


def _exchanges(turns: Sequence[_Turn], order: Order) -> list[_Exchange]:
    """One before each turn, and one behind the last."""
    outputs = [tuple(one for action in turn for one in gives(action) if sides_of(one, order)) for turn in turns]
    needed = [tuple(one for action in turn for one in needs(action, order)) for turn in turns]
    own = {one for action in chain(*turns) for one in gives(action)}
    wanted = [tuple(one for one in dict.fromkeys(inputs) if one not in own) for inputs in needed]
    return list(zip([(), *outputs], [*wanted, ()], strict=True))


def _ends(exchanges: Sequence[Sequence[_Exchange]]) -> bool:
    """Whether every exchange ends; ranks reach one when the one before has ended."""
    places = [[(rank, at) for at in range(len(own))] for rank, own in enumerate(exchanges)]
    sender, taker = (
        {one: (rank, at) for own in places for rank, at in own for one in exchanges[rank][at][side]} for side in (0, 1)
    )
    if sender.keys() != taker.keys():
        return False

    def wants(place: tuple[int, int]) -> list[tuple[int, int]]:
        """What stands before the same exchange on other ranks."""
        sent, received = exchanges[place[0]][place[1]]
        peers = [*(taker[one] for one in sent), *(sender[one] for one in received)]
        return [(peer, at - 1) for peer, at in peers if at]

    done, *_ = walked(places, wants, lambda place: (place,))
    return len(done) == sum(map(len, places))


def _row(turns: Sequence[_Turn], exchanges: Sequence[_Exchange], order: Order) -> Row:
    row: list[Action] = []
    for turn, (sent, received) in zip([*turns, ()], exchanges, strict=True):
        row += [_sides(one, order)[0] for one in sorted(sent)]
        row += [_sides(one, order)[1] for one in sorted(received)]
        row += turn
    return tuple(row)


def _sides(result: Result, order: Order) -> tuple[Action, Action]:
    sides = sides_of(result, order)
    assert sides, 'what crosses no ranks is in no exchange'
    return sides


def _alike(order: Order) -> bool:
    """Whether messages from one rank to another are received as they are sent."""
    messages: dict[tuple[int, int], tuple[list[Message], list[Message]]] = {}
    for rank, row in enumerate(order.actions):
        for action in row:
            content = message(action)
            if content is None:
                continue
            kind, stage, _ = content
            ends = order.placement[stage], order.placement[stage + (1 if kind == 'F' else -1)]
            messages.setdefault(ends, ([], []))[rank == ends[1]].append(content)
    return all(sent == received for sent, received in messages.values())


# Arrays: an order's computations by number, with what each needs and gives; searches ask for thousands of orders.


Ints = NDArray[np.int64]
KINDS: Final = ('F', 'B', 'I', 'W')
NONE: Final = -1
"""No second part, no result."""
_CODE: Final = {kind: code for code, kind in enumerate(KINDS)}
_F, _B, _I, _W = range(len(KINDS))


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """The computations of an order, rank after rank, as each rank does them; T in all.

    Arguments:
        begin: shape [ranks + 1], the first of each rank.
        kind: shape [2, T], of both parts of an overlap, its forward first; a place in ``KINDS``. Of all else ``NONE``
            is the second.
        stage, micro_batch: the same.
        stages, micro_batches: of the order.
        sequence_chunks: of the order.
    """

    begin: Ints
    kind: Ints
    stage: Ints
    micro_batch: Ints
    stages: int
    micro_batches: int
    sequence_chunks: int

    @property
    def rank(self) -> Ints:
        """Of each, shape [T]."""
        return np.repeat(np.arange(len(self.begin) - 1), np.diff(self.begin))

    @property
    def results(self) -> int:
        """How many numbers results may have."""
        return 2 * self.stages * self.micro_batches

    def gives(self) -> Ints:
        """The results of each, shape [T, 2]; as `simpar.pipeline.messages.gives`."""
        back = (self.kind == _I) | (self.kind == _B)
        own = np.where(self.kind == _F, self._activation(0, 0), np.where(back, self._gradient(0, 0), NONE))
        return np.ascontiguousarray(own.T)

    def needs(self) -> Ints:
        """The results that each needs, shape [T, 6], some of them ``NONE``; as `simpar.pipeline.messages.needs`."""
        forward, weights = self.kind == _F, self.kind == _W
        back = (self.kind == _I) | (self.kind == _B)
        before, behind = forward & (self.stage > 0), back & (self.stage + 1 < self.stages)
        # Attention reads keys and values of the chunks before, whose forward must be over.
        chunk = forward & (self.micro_batch % self.sequence_chunks > 0)
        later = back & ((self.micro_batch + 1) % self.sequence_chunks > 0)
        own = np.where(back, self._activation(0, 0), np.where(weights, self._gradient(0, 0), NONE))
        columns = (
            np.where(before, self._activation(-1, 0), own),
            np.where(behind, self._gradient(1, 0), NONE),
            np.where(chunk, self._activation(0, -1), np.where(later, self._gradient(0, 1), NONE)),
        )
        return np.ascontiguousarray(np.concatenate(columns).T)

    def _activation(self, stage: int, micro_batch: int) -> Ints:
        """The number of what a stage and micro-batch near by gives to the next stage."""
        number: Ints = (self.stage + stage) * self.micro_batches + self.micro_batch + micro_batch
        return number

    def _gradient(self, stage: int, micro_batch: int) -> Ints:
        """The number of what it gives back."""
        return self.stages * self.micro_batches + self._activation(stage, micro_batch)


def arrays_of(order: Order) -> Arrays:
    """The computations of an order that is right."""
    rows = [[action for action in row if action.sub_actions or action.kind in _CODE] for row in order.actions]
    flat = [action for row in rows for action in row]
    parts = np.full((3, 2, len(flat)), NONE, dtype=np.int64)
    overlaps = [place for place, action in enumerate(flat) if action.sub_actions]
    if overlaps:
        # A forward has the least code.
        pairs = [sorted(flat[place].sub_actions, key=lambda part: _CODE[part.kind]) for place in overlaps]
        for place, (forward, _) in zip(overlaps, pairs, strict=True):
            flat[place] = forward
        parts[:, 1, overlaps] = _columns([back for _, back in pairs])
    parts[:, 0] = _columns(flat)
    begin = np.cumsum([0, *map(len, rows)])
    kind, stage, micro_batch = parts
    return Arrays(begin, kind, stage, micro_batch, order.stages, order.micro_batches, order.sequence_chunks)


def _columns(actions: Sequence[Action]) -> Ints:
    """Kind, stage and micro-batch, shape [3, actions]."""
    rows = [(_CODE[action.kind], action.stage, action.micro_batch or 0) for action in actions]
    return np.array(rows, dtype=np.int64).reshape(-1, 3).T
