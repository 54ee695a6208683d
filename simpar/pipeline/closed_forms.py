"""Closed forms of pipeline schedules: GPipe, 1F1B, breadth first, interleaved 1F1B and interleaved zero bubble."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from simpar.errors import Problem, ScheduleError
from simpar.pipeline.order import Action, Kind, Order, loop, make_order, overlap


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


def gpipe(ranks: int, micro_batches: int, chunks: int = 1) -> Order:
    """All forwards, then all backwards, in the order of the micro-batches (Huang et al., 2019).

    Bubble (ranks − 1)(T_F + T_B); every rank keeps the activations of all micro-batches.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 1. Equals torch's ScheduleGPipe.
    """
    rows = ([*forwards(stage, micro_batches), *backwards(stage, micro_batches)] for stage in range(ranks * chunks))
    return make_order(rows, loop(ranks), micro_batches)


def one_forward_one_backward(ranks: int, micro_batches: int, chunks: int = 1, *, pairs: bool = False) -> Order:
    """One forward, one backward behind ranks − 1 − rank forwards (Narayanan et al., 2021; PipeDream-Flush).

    Bubble (ranks − 1)(T_F + T_B), as GPipe; rank r keeps at most ranks − r activations.
    Arguments: pipeline ranks, micro-batches, ``chunks`` 1; ``pairs``: of a forward and the backward beside it. These
    keep up to 2(ranks − 1 − r) + 2 activations. Equals torch's Schedule1F1B, which refuses fewer micro-batches than
    ranks; here they make an order like any other.
    """
    # A pair waits for the pair of the rank behind: with 1F1B's own warm-up neighbours would work in turns.

    def row(stage: int) -> list[Action]:
        ahead, back = forwards(stage, micro_batches), backwards(stage, micro_batches)
        return alternate(ahead, back, (1 + pairs) * (ranks - 1 - stage), pairs=pairs)

    return make_order(map(row, range(ranks * chunks)), loop(ranks), micro_batches)


def looped_bfs(ranks: int, micro_batches: int, chunks: int) -> Order:
    """Breadth-first pipeline (Lamy-Poirier, 2022): GPipe over several chunks, backwards in reverse.

    Bubble (ranks − 1)(T_F + T_B) / chunks of the work of a rank's stages; every activation is kept.
    Arguments: pipeline ranks, micro-batches, chunks on each rank. Equals torch's ScheduleLoopedBFS.
    """

    def row(rank: int) -> list[Action]:
        stages = range(rank, ranks * chunks, ranks)
        ahead = [action for stage in stages for action in forwards(stage, micro_batches)]
        back = [action for stage in stages for action in backwards(stage, micro_batches)]
        return [*ahead, *reversed(back)]

    return make_order(map(row, range(ranks)), loop(ranks, chunks), micro_batches)


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

    def row(rank: int) -> list[Action]:
        ahead, back = _directions(rank, ranks, chunks, [size] * (micro_batches // size))
        # Megatron's warm-up: all chunks but the last for a round, and there and back again to the last rank.
        return alternate(ahead, back, (chunks - 1) * size + 2 * (ranks - 1 - rank), pairs=pairs)

    return make_order(map(row, range(ranks)), loop(ranks, chunks), micro_batches)


def interleaved_zero_bubble(ranks: int, micro_batches: int, chunks: int) -> Order:
    """Interleaved 1F1B with half the warm-up, and weight gradients that lag by the rank's number.

    Over one chunk this is ZB-H1. Every rank is ahead by (chunks − 1) × round + ranks activations of one stage.
    Arguments and what it raises: see ``interleaved_1f1b``. Equals torch's ScheduleInterleavedZeroBubble.
    """
    size = round_size('interleaved-zero-bubble', ranks, micro_batches)

    def row(rank: int) -> list[Action]:
        ahead, back = _directions(rank, ranks, chunks, [size] * (micro_batches // size))
        return with_weights(alternate(ahead, split(back), (chunks - 1) * size + ranks - 1 - rank), rank)

    return make_order(map(row, range(ranks)), loop(ranks, chunks), micro_batches)


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


def _directions(rank: int, ranks: int, chunks: int, rounds: Iterable[int]) -> tuple[list[Action], list[Action]]:
    return in_rounds(rank, ranks, chunks, rounds, 'F'), in_rounds(rank, ranks, chunks, rounds, 'B')


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
