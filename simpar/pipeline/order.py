"""Order: a pipeline schedule, what every pipeline rank does, action after action."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simpar.pipeline.action import COMMUNICATION, Action

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
