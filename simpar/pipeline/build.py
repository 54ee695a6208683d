"""What the orders are built from: alternating forwards and backwards, weight gradients behind, rows that count."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.action import Action, Kind, overlap


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


def alternate(forward: Sequence[Action], backward: Sequence[Action], warm_up: int) -> list[Action]:
    """Some forwards first, then one backward behind each further forward, then the backwards that are left."""
    # Fewer micro-batches than stages leave no steady state.
    warm_up = min(warm_up, len(forward))
    # The forward goes first: torch's and Megatron's 1F1B send it before they wait for a gradient.
    steady = [action for pair in zip(forward[warm_up:], backward, strict=False) for action in pair]
    return [*forward[:warm_up], *steady, *backward[len(forward) - warm_up :]]


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

    B and I of a stage count together; the W of an I waits until it is asked for, oldest first.
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

    def do(self, stage: int, kind: Kind) -> None:
        """Write the next action of this stage and kind."""
        self.row.append(self.take(stage, kind))

    def overlap(self, forward: int, backward: int) -> None:
        """Write the next F of one stage and the next B of another, interleaved."""
        self.row.append(overlap(self.take(forward, 'F'), self.take(backward, 'B')))

    def weight(self, stage: int | None = None) -> bool:
        """Write the oldest waiting W, or the oldest of a stage; False where none waits."""
        found = next((action for action in self._weights if stage in (None, action.stage)), None)
        if found is not None:
            self._weights.remove(found)
            self.row.append(found)
        return found is not None
