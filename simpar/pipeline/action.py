"""Action: one thing that a pipeline rank does, in the spelling of torch.distributed.pipelining, e.g. ``2F0``."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
