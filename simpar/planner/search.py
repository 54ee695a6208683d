"""Search: branch and bound over the tree of a space, the least bound first; the full engine judges the leaves.

A node that no plan below can use is cut off, and all plans below it are counted at once. Leaves are predicted in
rounds of the least bounds, whose sizes do not depend on the workers: so the answer does not, either.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from simpar.planner.judge import Judge
from simpar.planner.rules import TIME, Refusal, refused
from simpar.planner.space import Space
from simpar.sweep.outcome import Outcome

FIRST: Final = 2
LARGEST: Final = 16
"""Leaves of the first round, and of the largest: each round has twice as many as the one before."""
DIVE: Final = 600
"""Nodes that are looked at on the way to one leaf, at most."""
FIRST_DIVE: Final = 256
"""Nodes before the first such way; before each other one, twice as many."""
Path = tuple[int, ...]
Node = tuple[float, int, Path, int]
"""Least seconds; the depth, negative, so that of equal bounds the deeper comes first; place; judgements still open."""
Evaluate = Callable[[Sequence[Path]], Iterator[tuple[Path, Outcome]]]
"""Predicts leaves; yields each as it comes."""
Tell = Callable[['Found'], None]


@dataclass(slots=True)
class Found:
    """What a search knows so far; mutable, for one search.

    Arguments:
        outcomes: of the leaves that the engine predicted.
        bounds: the least seconds of each of them, as known before.
        pruned: by rule, how many plans it cut off; examples, what it said of the first.
        least: no plan that is still open takes less seconds than this.
        open: how many plans are neither pruned nor predicted.
        nodes: how many nodes were looked at; dive: at how many a way to a leaf is looked for next.
        complete: whether the search ended by itself.
    """

    outcomes: dict[Path, Outcome] = field(default_factory=dict)
    bounds: dict[Path, float] = field(default_factory=dict)
    pruned: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    least: float = 0.0
    open: int = 0
    nodes: int = 0
    dive: int = FIRST_DIVE
    complete: bool = False

    @property
    def best(self) -> tuple[float, Path] | None:
        """Seconds and place of the fastest plan that fits; of equal ones the first."""
        steps = [
            (one.figures.step, path) for path, one in self.outcomes.items() if one.feasible and one.figures is not None
        ]
        return min(steps, default=None)

    @property
    def gap(self) -> float:
        """Share of the best step by which another plan may be faster; 1 where none is known."""
        best = self.best
        if best is None:
            return 0.0 if self.complete else 1.0
        return max(0.0, 1 - self.least / best[0])


def search(
    space: Space,
    judge: Judge,
    evaluate: Evaluate,
    *,
    gap: float = 0.0,
    until: float = float('inf'),
    tell: Tell | None = None,
) -> Found:
    """Search a space.

    Arguments:
        gap: a search ends when no open plan can be faster by more than this share of the best step.
        until: on the clock of ``time.monotonic``, when it ends anyway.
        tell: is told now and then what is known so far.
    Ends early, with what is known, on KeyboardInterrupt.
    """
    found = Found(open=space.count)
    heap: list[Node] = [(0.0, 0, (), 0)]
    leaves: list[tuple[float, Path]] = []
    size = FIRST
    try:
        while True:
            _dig(space, judge, found, heap, leaves, gap, until, size, tell)
            cut = _cut(found, gap)
            round_ = [path for bound, path in leaves if bound < cut]
            _settle(found, heap, leaves)
            if not round_ or time.monotonic() >= until:
                found.complete = not round_ and (not heap or heap[0][0] >= cut)
                break
            for path, outcome in evaluate(round_):
                found.outcomes[path] = outcome
                leaves = [leaf for leaf in leaves if leaf[1] != path]
                found.open -= 1
                if tell:
                    _settle(found, heap, leaves)
                    tell(found)
            size = min(2 * size, LARGEST)
    except KeyboardInterrupt:
        pass
    _settle(found, heap, leaves)
    if found.complete:
        _cut_rest(space, found, heap, leaves)
    return found


def _dig(
    space: Space,
    judge: Judge,
    found: Found,
    heap: list[Node],
    leaves: list[tuple[float, Path]],
    gap: float,
    until: float,
    size: int,
    tell: Tell | None,
) -> None:
    """Look at nodes, the least bound first, until there are leaves for a round or nothing is left to look at."""
    cut = _cut(found, gap)
    while heap and heap[0][0] < cut and len(leaves) < size and time.monotonic() < until:
        if found.nodes >= found.dive:
            found.dive = 2 * found.nodes
            # A plan that is known cuts off others, and is an answer if the search is interrupted.
            if _dive(space, judge, found, heap, leaves, cut, until):
                return
            continue
        if tell and found.nodes % 256 == 0:
            found.least = heap[0][0]
            tell(found)
        node = heapq.heappop(heap)
        for other in _looked(space, judge, found, leaves, node):
            heapq.heappush(heap, other)


def _dive(
    space: Space,
    judge: Judge,
    found: Found,
    heap: list[Node],
    leaves: list[tuple[float, Path]],
    cut: float,
    until: float,
) -> bool:
    """Go from the node of the least bound to a leaf, the deepest nodes first; whether one was found."""
    node = heapq.heappop(heap)
    near = [((node[1], node[0], node[2]), node)]
    many = len(leaves)
    for _ in range(DIVE):
        if not near or len(leaves) > many or time.monotonic() >= until:
            break
        node = heapq.heappop(near)[1]
        others = _looked(space, judge, found, leaves, node) if node[0] < cut else ()
        if node[0] >= cut:
            heapq.heappush(heap, node)
        for other in others:
            heapq.heappush(near, ((other[1], other[0], other[2]), other))
    for _, other in near:
        heapq.heappush(heap, other)
    return len(leaves) > many


def _looked(space: Space, judge: Judge, found: Found, leaves: list[tuple[float, Path]], node: Node) -> list[Node]:
    """What comes of a node: itself judged closer, its children, or a leaf among ``leaves``."""
    bound, turn, path, left = node
    found.nodes += 1
    if left:
        judged = judge(path, judge.judges(len(path)) - left)
        if judged.refusal:
            _prune(space, found, path, judged.refusal)
            return []
        return [(max(bound, judged.seconds), turn, path, left - 1)]
    if len(path) == len(space.keys):
        leaves.append((bound, path))
        found.bounds[path] = bound
        return []
    return _branch(space, judge, found, bound, path)


def _branch(space: Space, judge: Judge, found: Found, bound: float, path: Path) -> list[Node]:
    """The children of a node that no rule refuses."""
    children = []
    for place in range(len(space.values[len(path)])):
        child = (*path, place)
        refusal = refused(space, child)
        if refusal:
            _prune(space, found, child, refusal)
        else:
            # Of equal bounds the deeper node first: it comes to a leaf, and a leaf to a best step.
            children.append((bound, -len(child), child, judge.judges(len(child))))
    return children


def _prune(space: Space, found: Found, path: Path, refusal: Refusal) -> None:
    count = space.below(len(path))
    found.pruned[refusal.rule] = found.pruned.get(refusal.rule, 0) + count
    found.examples.setdefault(refusal.rule, refusal.example)
    found.open -= count


def _cut(found: Found, gap: float) -> float:
    """A node whose bound is no less is not looked at."""
    best = found.best
    return best[0] * (1 - gap) if best else float('inf')


def _settle(found: Found, heap: list[Node], leaves: list[tuple[float, Path]]) -> None:
    """How fast an open plan could be: never faster than the best, if that is known."""
    bounds = [heap[0][0]] if heap else []
    bounds += [bound for bound, _ in leaves]
    best = found.best
    found.least = min([*bounds, *([best[0]] if best else [])], default=0.0)


def _cut_rest(space: Space, found: Found, heap: list[Node], leaves: list[tuple[float, Path]]) -> None:
    """What a finished search leaves open is cut off by its bounds."""
    paths = [path for _, _, path, _ in heap] + [path for _, path in leaves]
    for path in paths:
        _prune(space, found, path, Refusal(TIME, 'its least step is no shorter than the best, but for the gap'))
