"""Orders of a pipeline: actions of a stage, and the orders that have a closed form."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from simpar.errors import Problem, ScheduleError

# Order: what every rank of a pipeline does, action after action, in the spelling of torch (``2F0``).

Kind = Literal[
    'F', 'I', 'W', 'B', 'SEND_F', 'RECV_F', 'SEND_B', 'RECV_B', 'UNSHARD', 'RESHARD', 'REDUCE_GRAD', 'OVERLAP_F_B'
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
COMPUTE: Final = frozenset[Kind]({'F', 'I', 'W', 'B'})
COMMUNICATION: Final = frozenset[Kind]({'SEND_F', 'RECV_F', 'SEND_B', 'RECV_B'})
SHARDING: Final = frozenset[Kind]({'UNSHARD', 'RESHARD', 'REDUCE_GRAD'})
NO_STAGE: Final = -1
"""The stage of an ``OVERLAP_F_B``, which spans the stages of its two parts."""

# Nine digits at most: a file cannot ask for a list of 10¹⁸ stages.
_NUMBER: Final = '(0|[1-9][0-9]{0,8})'
# The longest kinds first: an alternation takes the first that fits.
_SINGLE: Final = re.compile(f'{_NUMBER}({"|".join(sorted(KINDS[:-1], key=len, reverse=True))}){_NUMBER}?')
_OVERLAP: Final = re.compile(r'\(([^();]*);([^();]*)\)OVERLAP_F_B')
_EXAMPLE: Final = 'write e.g. 2F0, 1SEND_F1, 0UNSHARD or (0F7;7B3)OVERLAP_F_B'


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a pipeline rank does.

    Arguments:
        stage: of the pipeline; ``NO_STAGE`` for an overlap.
        kind: F forward, B the full backward, I gradient of the input, W gradient of the weights; sends and receives of
            an activation (F) or a gradient (B); UNSHARD, RESHARD and REDUCE_GRAD of a stage's sharded weights;
            OVERLAP_F_B, a forward and a backward that interleave.
        micro_batch: None for overlaps and for what is done to a stage's weights.
        sub_actions: the two parts of an overlap.

    A receive names the stage that receives: ``1SEND_F0`` pairs with ``2RECV_F0``.
    """

    stage: int
    kind: Kind
    micro_batch: int | None = None
    sub_actions: tuple[Action, ...] = ()

    def __str__(self) -> str:
        if self.sub_actions:
            return f'({";".join(map(str, self.sub_actions))}){self.kind}'
        return f'{self.stage}{self.kind}{"" if self.micro_batch is None else self.micro_batch}'

    @property
    def parts(self) -> tuple[Action, ...]:
        """The two parts of an overlap, else the action alone."""
        return self.sub_actions or (self,)


def overlap(forward: Action, backward: Action) -> Action:
    """A forward and a backward of two micro-batches, interleaved."""
    return Action(NO_STAGE, 'OVERLAP_F_B', None, (forward, backward))


def parse_action(text: str) -> Action:
    """Read one action.

    Arguments: ``text``, an action and nothing else; numbers have no leading zeros.
    Raises ``ValueError`` in the form "what is wrong; what to write", where the text is no action.
    """
    match = _OVERLAP.fullmatch(text)
    if match is None:
        return _single(text)
    first, second = _single(match[1]), _single(match[2])
    # Either part may stand first.
    if sorted((first.kind, second.kind)) not in (['B', 'F'], ['F', 'I']):
        raise ValueError(f'{_quote(text)} overlaps no forward with a backward; write e.g. (0F7;7B3)OVERLAP_F_B')
    return overlap(first, second)


def _single(text: str) -> Action:
    match = _SINGLE.fullmatch(text)
    if match is None:
        raise ValueError(f'{_quote(text)} is no action; {_EXAMPLE}')
    stage, micro_batch = match[1], match[3]
    kind: Kind = match[2]  # type: ignore[assignment]
    if (micro_batch is None) != (kind in SHARDING):
        what = 'has a micro-batch, but is done to the weights' if micro_batch else 'has no micro-batch'
        raise ValueError(f'{_quote(text)} {what}; {_EXAMPLE}')
    return Action(int(stage), kind, None if micro_batch is None else int(micro_batch))


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else f'{text[:38]}…')


Row = tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """The actions of every pipeline rank; no seconds, no hardware.

    Arguments:
        actions: by pipeline rank, in the order that it does them.
        placement: by stage, the pipeline rank that holds it.
        micro_batches: the micro-batch of an action is below it.
        sequence_chunks: parts of a sample's sequence (MindSpore's ``seq_split_num``). With more than one, the
            micro-batch of an action counts them: micro-batch × sequence_chunks + chunk. A chunk's forward needs that of
            the chunk before it, its backward that of the chunk behind it.

    An order is not checked where it is made: see ``check_order``.
    """

    actions: tuple[Row, ...]
    placement: tuple[int, ...]
    micro_batches: int
    sequence_chunks: int = 1

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.placement)

    @property
    def by_chunk(self) -> tuple[Row, ...]:
        """The actions by micro-batches of their own, and stages numbered stage × sequence_chunks + chunk."""
        if self.sequence_chunks == 1:
            return self.actions
        return tuple(tuple(_of_chunk(action, self.sequence_chunks) for action in row) for row in self.actions)

    @property
    def communicates(self) -> bool:
        """Whether sends and receives are written down, or left to whoever carries the order out."""
        return not all(COMMUNICATION.isdisjoint([action.kind for action in row]) for row in self.actions)

    @property
    def splits_backward(self) -> bool:
        """Whether some backward is done in two parts, I and W."""
        return any(part.kind == 'I' for row in self.actions for action in row for part in action.parts)

    @property
    def overlaps(self) -> bool:
        """Whether some forward interleaves with a backward."""
        return any(action.sub_actions for row in self.actions for action in row)

    def crosses(self, stage: int) -> bool:
        """Whether what passes between a stage and the next goes to another rank; False behind the last stage."""
        return stage + 1 < self.stages and self.placement[stage] != self.placement[stage + 1]


def _of_chunk(action: Action, chunks: int) -> Action:
    if action.micro_batch is None:
        return action
    micro_batch, chunk = divmod(action.micro_batch, chunks)
    return replace(action, stage=action.stage * chunks + chunk, micro_batch=micro_batch)


def loop(ranks: int, chunks: int = 1) -> tuple[int, ...]:
    """The placement that deals stages out in rounds: stage s on rank s mod ranks."""
    return tuple(stage % ranks for stage in range(ranks * chunks))


def v_shape(ranks: int, chunks: int = 2) -> tuple[int, ...]:
    """The placement that turns around at each end: with two chunks, rank r holds stages r and 2 × ranks − 1 − r."""
    # At the turn a rank follows itself, so that nothing is sent there.
    rounds = (range(ranks) if chunk % 2 == 0 else reversed(range(ranks)) for chunk in range(chunks))
    return tuple(rank for turn in rounds for rank in turn)


def make_order(rows: Iterable[Iterable[Action]], placement: tuple[int, ...], micro_batches: int) -> Order:
    """An order from its rows, one for each pipeline rank."""
    return Order(tuple(tuple(row) for row in rows), placement, micro_batches)


def draw(order: Order, here: Collection[tuple[int, int]] = (), around: int | None = None) -> str:
    """A grid of actions: one line for each step, one column for each pipeline rank, as in torch's errors.

    Arguments: ``here``, (rank, step) of what is wrong: those lines end in ``<-- here`` and the rank; ``around``, draw
    only so many lines before and behind them (all, unless given). A step is a position in a rank's list, no time:
    actions of one line do not run at the same time.
    """
    steps = max([0, *(len(row) for row in order.actions), *(position + 1 for _, position in here)])
    window = [step for step in range(steps) if around is None or any(abs(step - at) <= around for _, at in here)]
    columns = [[str(row[step]) if step < len(row) else '' for step in window] for row in order.actions]
    heads = [f'Rank {rank}' for rank in range(order.ranks)]
    widths = [max(map(len, [head, *column])) for head, column in zip(heads, columns, strict=True)]
    # Zeros in front, as torch writes them, keep columns straight.
    labels = [f'Step {step:0{len(str(max(0, steps - 1)))}}: ' for step in window]
    lines = [' ' * len(labels[0] if labels else '') + _cells_row(heads, widths)]
    for line, (step, label) in enumerate(zip(window, labels, strict=True)):
        ranks = sorted(rank for rank, at in here if at == step)
        mark = f' <-- here, rank {", ".join(map(str, ranks))}' if ranks else ''
        if line and window[line - 1] != step - 1:
            lines.append('...')
        # Trailing blanks are kept where a mark follows, so that marks stand in a column.
        lines.append(label + _cells_row([column[line] for column in columns], widths, keep=bool(mark)) + mark)
    return '\n'.join(lines)


def _cells_row(cells: list[str], widths: list[int], keep: bool = False) -> str:
    text = ' '.join(f'{cell:<{width}}' for cell, width in zip(cells, widths, strict=True))
    return text if keep else text.rstrip()


# Closed forms of pipeline schedules: GPipe, 1F1B, breadth first, interleaved 1F1B and interleaved zero bubble.


def refuse(name: str, what: str, instead: str) -> ScheduleError:
    """The error that an order cannot be made for these counts: to be raised."""
    return ScheduleError(Problem(f'pipeline order {name}', what, instead))


def require(name: str, micro_batches: int, least: int, why: str) -> None:
    """Refuse fewer micro-batches than an order needs. Raises `ScheduleError`."""
    if micro_batches < least:
        raise refuse(name, f'{micro_batches} micro-batches, but it needs {why}', f'write at least {least}')


def forwards(stage: int, micro_batches: int) -> list[Action]:
    """F of a stage for all micro-batches."""
    return [Action(stage, 'F', micro_batch) for micro_batch in range(micro_batches)]


def backwards(stage: int, micro_batches: int) -> list[Action]:
    """B of a stage for all micro-batches."""
    return [Action(stage, 'B', micro_batch) for micro_batch in range(micro_batches)]


def split(row: Sequence[Action]) -> list[Action]:
    """The row with I in the place of each B."""
    return [Action(action.stage, 'I', action.micro_batch) if action.kind == 'B' else action for action in row]


def alternate(
    forward: Sequence[Action], backward: Sequence[Action], warm_up: int, *, pairs: bool = False
) -> list[Action]:
    """Some forwards first, then one backward behind each further forward, then the backwards that are left.

    Arguments: ``pairs``: each further forward interleaves with its backward, which needs one more forward before.
    """
    # Fewer micro-batches than stages leave no steady state.
    warm_up = min(warm_up + pairs, len(forward))
    # The forward goes first: torch's and Megatron's 1F1B send it before they wait for a gradient.
    steady = zip(forward[warm_up:], backward, strict=False)
    beside = [overlap(*pair) for pair in steady] if pairs else [action for pair in steady for action in pair]
    return [*forward[:warm_up], *beside, *backward[len(forward) - warm_up :]]


def with_weights(row: Sequence[Action], lag: int) -> list[Action]:
    """The row with a W behind each I, that of ``lag`` micro-batches before, and the W that are left at its end."""
    weights = [Action(action.stage, 'W', action.micro_batch) for action in row if action.kind == 'I']
    done, started = [], 0
    for action in row:
        done.append(action)
        if action.kind == 'I':
            started += 1
            if started > lag:
                done.append(weights[started - lag - 1])
    return [*done, *weights[max(0, started - lag) :]]


class RowCounter:
    """Writes a row by stage and kind alone: the micro-batch is the next of its stage and kind.

    B and I of a stage count together; the W of an I waits until it is asked for, oldest first, of a stage or of any
    (``NO_STAGE``). Where none waits, none is written.
    """

    def __init__(self) -> None:
        self.row: list[Action] = []
        self._next: Counter[tuple[int, str]] = Counter()
        self._weights: deque[Action] = deque()

    def take(self, stage: int, kind: Kind) -> Action:
        """The next action of this stage and kind, not written yet."""
        # A micro-batch's backward is done once, as a B or as an I: both count on.
        key = stage, 'F' if kind == 'F' else 'B'
        action = Action(stage, kind, self._next[key])
        self._next[key] += 1
        if kind == 'I':
            self._weights.append(Action(stage, 'W', action.micro_batch))
        return action

    def do(self, times: int, *each: tuple[int, Kind]) -> None:
        """Write the next action of each stage and kind in turn, so many times."""
        for stage, kind in each * times:
            action = self._weight(stage) if kind == 'W' else self.take(stage, kind)
            self.row += [action] if action else []

    def overlap(self, forward: int, backward: int) -> None:
        """Write the next F of one stage and the next B of another, interleaved."""
        self.row.append(overlap(self.take(forward, 'F'), self.take(backward, 'B')))

    def _weight(self, stage: int) -> Action | None:
        weight = next((action for action in self._weights if stage in (NO_STAGE, action.stage)), None)
        if weight is not None:
            self._weights.remove(weight)
        return weight


def gpipe(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """All forwards, then all backwards, in the order of the micro-batches (Huang et al., 2019).

    Bubble (ranks − 1)(T_F + T_B); every rank keeps the activations of all micro-batches.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 1. Equals torch's ScheduleGPipe.
    """
    return in_turns(ranks, chunks, [micro_batches], micro_batches, 0)


def one_forward_one_backward(ranks: int, micro_batches: int, chunks: int = 1, *, pairs: bool = False) -> Order:
    """One forward, one backward behind ranks − 1 − rank forwards (Narayanan et al., 2021; PipeDream-Flush).

    Bubble (ranks − 1)(T_F + T_B), as GPipe; rank r keeps at most ranks − r activations.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 1; ``pairs``: of a forward and the backward beside it. These
    keep up to 2(ranks − 1 − r) + 2 activations. Equals torch's Schedule1F1B, which refuses fewer micro-batches than
    ranks; here they make an order like any other.
    """
    # A pair waits for the pair of the rank behind: with 1F1B's own warm-up neighbours would work in turns.
    return in_turns(ranks, chunks, [micro_batches], 0, 1 + pairs, pairs=pairs)


def looped_bfs(ranks: int, micro_batches: int, chunks: int) -> Order:
    """Breadth-first pipeline (Lamy-Poirier, 2022): GPipe over several chunks, backwards in reverse.

    Bubble (ranks − 1)(T_F + T_B) / chunks of the work of a rank's stages; every activation is kept.
    Arguments: pipeline ranks, micro-batches, chunks on each rank. Equals torch's ScheduleLoopedBFS.
    """
    every = [in_rounds(rank, ranks, chunks, [micro_batches], 'F') for rank in range(ranks)]
    rows = ([*ahead, *(replace(action, kind='B') for action in reversed(ahead))] for ahead in every)
    return make_order(rows, loop(ranks, chunks), micro_batches)


def interleaved_1f1b(ranks: int, micro_batches: int, chunks: int, *, pairs: bool = False) -> Order:
    """Interleaved 1F1B, Megatron's virtual pipeline (Narayanan et al., 2021), rounds as in torch.

    Bubble (ranks − 1)(T_F + T_B) / chunks of the work of a rank's stages. Rank r is ahead by at most
    (chunks − 1) × round + 2(ranks − 1 − r) + 1 activations of one stage, with ``pairs`` by one more.
    Arguments: pipeline ranks, micro-batches, chunks on each rank; ``pairs``: of a forward and the backward beside it
    (Megatron-LM's combined 1F1B, schedules.py of d98e8a64: one more micro-batch of warm-up). The micro-batches must
    divide evenly into max(1, micro-batches // ranks) rounds. Raises `ScheduleError` where not. Equals torch's
    ScheduleInterleaved1F1B.
    """
    size = round_size('interleaved-1f1b', ranks, micro_batches)
    # Megatron's warm-up: all chunks but the last for a round, and there and back again to the last rank.
    return in_turns(ranks, chunks, [size] * (micro_batches // size), (chunks - 1) * size, 2, pairs=pairs)


def interleaved_zero_bubble(ranks: int, micro_batches: int, chunks: int) -> Order:
    """Interleaved 1F1B with half the warm-up, and weight gradients that lag by the rank's number.

    Over one chunk this is ZB-H1. Every rank is ahead by (chunks − 1) × round + ranks activations of one stage.
    Arguments and what it raises: see ``interleaved_1f1b``. Equals torch's ScheduleInterleavedZeroBubble.
    """
    size = round_size('interleaved-zero-bubble', ranks, micro_batches)
    whole = in_turns(ranks, chunks, [size] * (micro_batches // size), (chunks - 1) * size, 1)
    rows = (with_weights(split(row), rank) for rank, row in enumerate(whole.actions))
    return make_order(rows, whole.placement, micro_batches)


def round_size(name: str, ranks: int, micro_batches: int) -> int:
    """Micro-batches that a chunk does before the next chunk begins. Raises `ScheduleError` where they are not even."""
    # torch's rule, where Megatron wants the ranks to divide the micro-batches: rounds may be longer than ranks.
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        below, above = micro_batches - micro_batches % rounds, micro_batches + 1
        while above % max(1, above // ranks):
            above += 1
        what = f'{micro_batches} micro-batches do not divide into {rounds} rounds on {ranks} ranks'
        raise refuse(name, what, f'write {below} or {above} micro-batches')
    return micro_batches // rounds


def in_turns(ranks: int, chunks: int, rounds: Sequence[int], ahead: int, hop: int, *, pairs: bool = False) -> Order:
    """One forward, one backward in rounds, behind a warm-up of ``ahead`` forwards and ``hop`` for each rank behind."""
    rows = []
    for rank in range(ranks):
        forward, backward = (in_rounds(rank, ranks, chunks, rounds, kind) for kind in ('F', 'B'))
        rows.append(alternate(forward, backward, ahead + hop * (ranks - 1 - rank), pairs=pairs))
    return make_order(rows, loop(ranks, chunks), sum(rounds))


def in_rounds(rank: int, ranks: int, chunks: int, rounds: Iterable[int], kind: str) -> list[Action]:
    """All F or B of a rank: in each round of micro-batches, chunk after chunk, for B from the last.

    Arguments: ``rounds``, micro-batches in each; ``kind``, F or B.
    """
    actions: list[Action] = []
    first = 0
    for size in rounds:
        for chunk in range(chunks) if kind == 'F' else reversed(range(chunks)):
            stage = chunk * ranks + rank
            actions += [Action(stage, 'F' if kind == 'F' else 'B', first + number) for number in range(size)]
        first += size
    return actions
