"""Order: what every rank of a pipeline does, action after action, in the spelling of torch (``2F0``)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

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
        raise ValueError(f'{_shown(text)} overlaps no forward with a backward; write e.g. (0F7;7B3)OVERLAP_F_B')
    return overlap(first, second)


def _single(text: str) -> Action:
    match = _SINGLE.fullmatch(text)
    if match is None:
        raise ValueError(f'{_shown(text)} is no action; {_EXAMPLE}')
    stage, micro_batch = match[1], match[3]
    kind: Kind = match[2]  # type: ignore[assignment]
    if (micro_batch is None) != (kind in SHARDING):
        what = 'has a micro-batch, but is done to the weights' if micro_batch else 'has no micro-batch'
        raise ValueError(f'{_shown(text)} {what}; {_EXAMPLE}')
    return Action(int(stage), kind, None if micro_batch is None else int(micro_batch))


def _shown(text: str) -> str:
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

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a pipeline rank holds, in order."""
        return tuple(stage for stage, holder in enumerate(self.placement) if holder == rank)

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
    shown = [step for step in range(steps) if around is None or any(abs(step - at) <= around for _, at in here)]
    columns = [[str(row[step]) if step < len(row) else '' for step in shown] for row in order.actions]
    heads = [f'Rank {rank}' for rank in range(order.ranks)]
    widths = [max(map(len, [head, *column])) for head, column in zip(heads, columns, strict=True)]
    # Zeros in front, as torch writes them, keep columns straight.
    labels = [f'Step {step:0{len(str(max(0, steps - 1)))}}: ' for step in shown]
    lines = [' ' * len(labels[0] if labels else '') + _cells_row(heads, widths)]
    for line, (step, label) in enumerate(zip(shown, labels, strict=True)):
        ranks = sorted(rank for rank, at in here if at == step)
        mark = f' <-- here, rank {", ".join(map(str, ranks))}' if ranks else ''
        if line and shown[line - 1] != step - 1:
            lines.append('...')
        # Trailing blanks are kept where a mark follows, so that marks stand in a column.
        lines.append(label + _cells_row([column[line] for column in columns], widths, keep=bool(mark)) + mark)
    return '\n'.join(lines)


def _cells_row(cells: list[str], widths: list[int], keep: bool = False) -> str:
    text = ' '.join(f'{cell:<{width}}' for cell, width in zip(cells, widths, strict=True))
    return text if keep else text.rstrip()
