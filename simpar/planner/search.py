"""Search: branch and bound over the tree of a space, the least bound first; the full engine judges the leaves."""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, product
from typing import Final

from simpar.planner.judge import GUESS, Asked, Judge
from simpar.planner.space import DEGREES, KEYS, WITH_BOUNDS, Judged, Refusal, Space, refused
from simpar.sweep.answer import Outcome

# Start: plans that are likely good, found by changing keys of a plan while that helps.
#
# A good plan that is known early cuts off most others. Nothing is proven here: the search goes through all nodes
# anyway.


Path = tuple[int, ...]
SEEDS: Final = 40
"""Degrees from which plans are completed, at most."""
CLIMBS: Final = 2
"""Of them, how many are changed as long as that helps."""
ASKED: Final = 320
"""Plans that are guessed at, at most."""
TOGETHER: Final = 8
"""Plans that are guessed at at once, however many workers there are."""
FOUND: Final = 4
"""Plans that are handed on."""
ALIKE: Final = ('fusion', 'shard_group')
"""Plans that differ in these alone are alike."""
PAIRS: Final = (
    ('tensor', 'context'),
    ('tensor', 'pipeline'),
    ('pipeline', 'micro_batches'),
    ('micro_batches', 'copies'),
    ('micro_batches', 'recompute'),
    ('recompute', 'zero'),
    ('order', 'chunks'),
)
"""Keys of which two are changed at once, where one alone does not help."""
CLOSE: Final = (('pipeline', 'micro_batches'), ('micro_batches', 'copies'), ('copies', 'recompute'))
"""The same around a plan that is predicted: what changes how a step's work is cut up."""
_USUAL: Final[dict[str, tuple[object, ...]]] = {'order': ('interleaved-1f1b', '1f1b'), 'sequence_parallel': (True,)}
PRESETS: Final[tuple[dict[str, tuple[object, ...]], ...]] = (
    {**_USUAL, 'recompute': ('full',), 'zero': (1, 2, 3)},
    {**_USUAL, 'recompute': ('none',), 'zero': (2, 1, 3), 'copies': (2,)},
)
"""Values that plans are completed with: such that they fit, and such that they are fast."""
ALONE: Final[dict[str, tuple[object, ...]]] = {
    **_USUAL, 'recompute': ('full',), 'zero': (3,), 'copies': (2,), 'micro_batches': (1,)
}  # fmt: skip
"""Values of plans of one stage, which are few: its shards come and go, and a micro-batch hides as much as can be."""


class Starts:
    """Looks for good plans of one space; remembers what it asked.

    Argument: ``own``, the file's plan, which is predicted already and from which others are made.
    """

    def __init__(
        self, space: Space, ask: Callable[[Sequence[Asked]], Sequence[Judged]], own: Path | None = None
    ) -> None:
        self._space, self._ask, self._own = space, ask, own
        self._known: dict[Path, float] = {}
        self._held: dict[Path, float] = {}
        self._until = float('inf')

    def least(self, path: Path) -> float:
        """Least seconds of a plan, as far as bounds know; 0 where they say that it does not fit."""
        (seconds,) = self._seconds([path])
        return seconds if seconds < float('inf') else 0.0

    def found(self, until: float) -> Iterator[tuple[float, Path]]:
        """Least seconds and places of some plans: an early guess, then the best of some, perhaps the same, then others.

        Argument: ``until``, as of a search.
        """
        self._until = until
        seeds: list[tuple[float, Path]] = []
        early: tuple[float, Path] | None = None
        paths = self._seeds()
        while some := list(islice(paths, TOGETHER)):
            seeds += zip(self._seconds(some), some, strict=True)
            if early is None and min(seeds)[0] < float('inf'):
                # An answer soon, for whoever interrupts.
                early = min(seeds)
                yield early
            if time.monotonic() >= until and early:
                break
        if early is None:
            return
        seeds.sort()
        yield seeds[0]
        for path in [*([self._own] if self._own else []), *(path for _, path in seeds[:CLIMBS])]:
            self._climb(path)
        best = sorted((seconds, path) for path, seconds in self._known.items() if seconds < float('inf'))
        unlike: dict[tuple[object, ...], tuple[float, Path]] = {}
        for seconds, path in best:
            key = tuple(value for name, value in self._space.chosen(path).items() if name not in ALIKE)
            unlike.setdefault(key, (seconds, path))
        yield from [one for one in unlike.values() if one not in (early, seeds[0])][:FOUND]

    def lightest(self) -> Iterator[tuple[float, Path]]:
        """Least seconds and places of plans by what they hold at least, the lightest first: by peak memory alone.

        Keys of the lightest guess are changed as long as that makes it lighter. Seconds are 0 where nothing is known.
        """
        path = min(self._held, key=lambda one: (self._held[one], one), default=None)
        lighter = path is not None
        while lighter and path is not None and time.monotonic() < self._until:
            others = list(self._near(path, pairs=False))
            for first in range(0, len(others), TOGETHER):
                self._seconds(others[first : first + TOGETHER])
            least = min(self._held, key=lambda one: (self._held[one], one))
            lighter, path = self._held[least] < self._held[path] and len(self._known) < ASKED, least
        unlike: dict[float, Path] = {}
        for held, one in sorted((held, one) for one, held in self._held.items()):
            unlike.setdefault(held, one)
        for one in unlike.values():
            yield self.least(one), one

    def near(self, path: Path, limit: float) -> list[tuple[float, Path]]:
        """Least seconds and places of plans that differ in a key or two and may be below a limit; the best guess first.

        Those that differ only in what hardly changes a step are left out.
        """
        changed = chain(self._near(path, pairs=False, every=True), self._near(path, pairs=True, among=CLOSE))
        by_path: dict[Path, float] = {}
        while time.monotonic() < self._until and (some := list(islice(changed, TOGETHER))):
            by_path |= zip(some, self._seconds(some, limit), strict=True)
        alike = [number for number, key in enumerate(self._space.keys) if key in ALIKE]
        return sorted(
            (seconds, one)
            for one, seconds in by_path.items()
            if seconds < limit and all(one[number] == path[number] for number in alike)
        )

    def _seeds(self) -> Iterator[Path]:
        """Plans of all degrees but context, or of some of them, evenly taken, with usual values of all other keys."""
        degrees: list[Path] = [()]
        depth = max((number + 1 for number, key in enumerate(self._space.keys) if key in DEGREES), default=0)
        for key, values in list(zip(self._space.keys, self._space.values, strict=True))[:depth]:
            places = range(len(values)) if key in ('tensor', 'expert', 'pipeline') else None
            degrees = [
                longer
                for path in degrees
                for longer in (
                    [(*path, place) for place in places if refused(self._space, (*path, place)) is None]
                    if places is not None
                    else filter(None, [self._next(path, key, values, _USUAL)])
                )
            ]
        few = degrees[:: -(-len(degrees) // SEEDS) or 1]
        alone = [path for path in degrees if self._space.plan(path).pipeline == 1]
        for path, liked in chain(product(few, PRESETS), product(alone, [ALONE])):
            whole: Path | None = path
            for key, values in list(zip(self._space.keys, self._space.values, strict=True))[len(path) :]:
                whole = self._next(whole, key, values, liked) if whole else None
            if whole:
                yield whole

    def _next(
        self, path: Path, key: str, values: Sequence[object], liked: Mapping[str, tuple[object, ...]]
    ) -> Path | None:
        first = [values.index(one) for one in liked.get(key, ()) if one in values]
        places = list(range(len(values)))
        if key == 'micro_batches':
            pipeline = self._space.plan(path).pipeline
            places.sort(key=lambda place: abs(int(str(values[place])) - 8 * pipeline))
        return next(
            ((*path, place) for place in [*first, *places] if refused(self._space, (*path, place)) is None), None
        )

    def _climb(self, path: Path) -> None:
        """Change a key or two as long as that helps."""
        (seconds,), better = self._seconds([path]), True
        while better:
            better = False
            others = chain(self._near(path, pairs=False), self._near(path, pairs=True))
            while not better and (some := list(islice(others, TOGETHER))):
                if len(self._known) >= ASKED or time.monotonic() >= self._until:
                    return
                least, one = min(zip(self._seconds(some, seconds), some, strict=True))
                if least < seconds:
                    seconds, path, better = least, one, True

    def _near(
        self, path: Path, *, pairs: bool, among: Sequence[tuple[str, ...]] = PAIRS, every: bool = False
    ) -> Iterator[Path]:
        """Plans that differ in a key or two. Argument: ``every``, also in keys whose values have the same bounds."""
        keys = self._space.keys
        alike = () if every else WITH_BOUNDS
        numbers = [
            number for number, values in enumerate(self._space.values) if len(values) > 1 and keys[number] not in alike
        ]
        if not pairs:
            for number in numbers:
                yield from self._changed(path, (number,))
            return
        for both in among:
            pair = [number for number in numbers if keys[number] in both]
            if len(pair) == len(both):
                yield from self._changed(path, pair)

    def _changed(self, path: Path, numbers: Sequence[int]) -> Iterator[Path]:
        number, *others = numbers
        for place in range(len(self._space.values[number])):
            if place != path[number]:
                changed = (*path[:number], place, *path[number + 1 :])
                yield from self._changed(changed, others) if others else (changed,)

    def _seconds(self, paths: Sequence[Path], limit: float = float('inf')) -> list[float]:
        """Least seconds of plans; infinite where they are refused, surely do not fit, or are not below a limit."""
        unknown = [path for path in dict.fromkeys(paths) if path not in self._known]
        right = [path for path in unknown if not self._refused(path)]
        guesses = self._ask([(path, GUESS, limit) for path in right])
        self._known |= dict.fromkeys(unknown, float('inf'))
        self._known |= {path: one.seconds for path, one in zip(right, guesses, strict=True)}
        # Of no bytes: it has no order, or it was not asked how much it holds.
        self._held |= {path: one.held for path, one in zip(right, guesses, strict=True) if one.held}
        return [self._known[path] for path in paths]

    def _refused(self, path: Path) -> bool:
        return any(refused(self._space, path[:depth]) is not None for depth in range(1, len(path) + 1))


FIRST: Final = 2
LARGEST: Final = 16
"""Leaves of the first round, and of the largest: each round has twice as many as the one before."""
WIDE: Final = 32
"""Nodes that are judged at once before there is a bound; of large models each takes up to a second."""
BATCH: Final = 256
"""Nodes that are judged at once, however many workers there are."""
Node = tuple[float, int, Path, int]
"""Least seconds; the depth, negative, so that of equal bounds the deeper comes first; place; judgements still open."""
ROOT: Final[Node] = (0.0, 0, (), 0)
Ask = Callable[[Sequence[Asked]], Sequence[Judged]]
"""Judges nodes."""
AT_ONCE: Final = 2
"""Guesses that are predicted before all choices of degrees are bounded."""
FITTING: Final = 12
"""Guesses that are predicted for what they hold alone, where no other one fits."""
PATIENCE: Final = 4096
"""Nodes without a leaf among them, after which plans near the best are predicted: bounds alone find no better one."""
PAIR: Final = 2
"""How many of these are predicted at once, however many workers there are."""
AROUND: Final = 8
HEAVY: Final = 24
"""How many of them that fit and are no better, one after the other, end this; and how many that do not fit."""
OFTEN: Final = 256
"""Nodes between two words to who wants to know."""
Evaluate = Callable[[Sequence[Path]], Iterator[tuple[Path, Outcome]]]
"""Predicts leaves; yields each as it comes."""
NEVER: Final = 2**62
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
        nodes: how many nodes were looked at.
        early: leaves that were predicted before the search came to them.
        complete: whether the search ended by itself.
        widened: whether all choices of degrees are bounded.
        other: seconds of a plan outside of the space that may be chosen; infinite where there is none.
    """

    outcomes: dict[Path, Outcome] = field(default_factory=dict)
    bounds: dict[Path, float] = field(default_factory=dict)
    pruned: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    least: float = 0.0
    open: int = 0
    nodes: int = 0
    early: set[Path] = field(default_factory=set)
    complete: bool = False
    widened: bool = False
    other: float = float('inf')

    @property
    def fastest(self) -> float:
        """Seconds of the fastest plan that is known to fit; infinite where none is."""
        return min(self.best[0], self.other) if self.best else self.other

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
        if self.fastest == float('inf'):
            return 0.0 if self.complete else 1.0
        return max(0.0, 1 - self.least / self.fastest)


@dataclass(slots=True, eq=False)
class Search:
    """A search of a space: what is known, and the nodes and leaves that are still open; mutable, for one search.

    Arguments:
        gap: a search ends when no open plan can be faster by more than this share of the best step.
        until: on the clock of ``time.monotonic``, when it ends anyway.
        tell: is told now and then what is known so far.
        ask: judges nodes, as ``judge`` does.
        heap: open nodes, the least bound first; leaves, with their bounds.
    """

    space: Space
    judge: Judge
    evaluate: Evaluate
    gap: float = 0.0
    until: float = float('inf')
    tell: Tell | None = None
    ask: Ask | None = None
    found: Found = field(default_factory=Found)
    heap: list[Node] = field(default_factory=lambda: [ROOT])
    leaves: list[tuple[float, Path]] = field(default_factory=list)

    def run(self, own: tuple[Path, Outcome] | None = None, other: float = float('inf')) -> Found:
        """Search; ends early, with what is known, on KeyboardInterrupt.

        Arguments: ``own``, a plan of the space that is predicted already, from which the search sets out; ``other``, as
        of ``Found``.
        """
        found = self.found
        found.open, found.other = self.space.count, other
        try:
            self._run(Starts(self.space, self._judged, own[0] if own else None), own)
        except KeyboardInterrupt:
            if not found.widened:
                # Some nodes are in nobody's hands: any plan may be open.
                heapq.heappush(self.heap, ROOT)
        self.settle()
        # What a finished search leaves open is cut off by its bounds.
        left = [*(node[2] for node in self.heap), *(path for _, path in self.leaves)]
        for path in left if found.complete else ():
            self._prune(path, Refusal('time', 'its least step is no shorter than the best, but for the gap'))
        return found

    def _judged(self, nodes: Sequence[Asked]) -> Sequence[Judged]:
        return self.ask(nodes) if self.ask else [self.judge(*one) for one in nodes]

    @property
    def _user_key_count(self) -> int:
        """How many keys are free because the file asks for them; they are ahead of all others."""
        return sum(key not in KEYS for key in self.space.keys)

    @property
    def late(self) -> bool:
        """Whether the search's time is over."""
        return time.monotonic() >= self.until

    @property
    def cut(self) -> float:
        """A node whose bound is no less is not looked at."""
        return self.found.fastest * (1 - self.gap)

    def _run(self, maker: Starts, own: tuple[Path, Outcome] | None) -> None:
        """Search until nothing is left that may be faster, or the time is over."""
        found = self.found
        if own:
            self._took(*own, 0.0)
            found.bounds[own[0]] = maker.least(own[0])
        elif self.tell and found.fastest < float('inf'):
            # A plan outside of the space is an answer, too.
            self.tell(found)
        starts = maker.found(self.until)
        for _ in range(AT_ONCE):
            self._begin([*islice(starts, 1)])
        for one in islice(maker.lightest() if found.fastest == float('inf') else (), FITTING):
            # No guess fits: one that does, however slow, comes before one that is fast.
            if found.fastest < float('inf') or self.late:
                break
            self._begin([one])
        self._widen()
        found.widened = True
        if not self.late:
            self._begin([*starts])
        patience, size, around = found.nodes + PATIENCE, FIRST, False
        while True:
            if self._dig(size, patience):
                self._look_around(maker)
                patience, around = NEVER, True
                continue
            cut = self.cut
            round_ = [path for bound, path in self.leaves if bound < cut]
            self.settle()
            if self.space.never_bounded and not (round_ or self.late or around):
                # What has no bounds is tried near the best plan alone.
                self._look_around(maker)
                patience, around = NEVER, True
                continue
            if not round_ or self.late:
                found.complete = not round_ and (not self.heap or self.heap[0][0] >= cut)
                return
            self._predict(round_)
            size, patience = min(2 * size, LARGEST), NEVER

    def _predict(self, paths: Sequence[Path]) -> None:
        """Predict leaves."""
        for path, outcome in self._evaluated(paths):
            self.found.outcomes[path] = outcome
            self.leaves = [leaf for leaf in self.leaves if leaf[1] != path]
            self.found.open -= 1
            if self.tell:
                self.settle()
                self.tell(self.found)

    def _begin(self, starts: Sequence[tuple[float, Path]]) -> None:
        """Predict plans that are likely good: they cut off others, and are an answer if the search is interrupted."""
        bounds = {path: bound for bound, path in starts if path not in self.found.outcomes}
        for path, outcome in self._evaluated([*bounds]):
            self._took(path, outcome, bounds[path])

    def _evaluated(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Outcome]]:
        """Outcomes, as long as there is time: a round may have hundreds of plans, which stay open then."""
        for first in range(0, len(paths), LARGEST):
            if first and self.late:
                return
            yield from self.evaluate(paths[first : first + LARGEST])

    def _took(self, path: Path, outcome: Outcome, bound: float) -> None:
        """Note a plan that is predicted before the search comes to it."""
        self.found.outcomes[path], self.found.bounds[path] = outcome, bound
        self.found.early.add(path)
        self.found.open -= 1
        if self.tell:
            self.tell(self.found)

    def _look_around(self, starts: Starts) -> None:
        """Predict plans near the best as long as better ones are found; open leaves are predicted anyway."""
        found = self.found
        seen, best, worse, heavy = {*(path for _, path in self.leaves), *found.outcomes}, found.best, 0, 0
        while best is not None:
            near = iter([one for one in starts.near(best[1], best[0]) if one[1] not in seen])
            while found.best == best:
                some = [*islice(near, PAIR)]
                if not some or worse >= AROUND or heavy >= HEAVY or self.late:
                    return
                seen.update(path for _, path in some)
                self._begin(some)
                outcomes = [found.outcomes[path] for _, path in some]
                fit = sum(one.peak <= one.device for one in outcomes)
                worse, heavy = worse + fit, heavy + len(some) - fit
            best, worse, heavy = found.best, 0, 0

    def _widen(self) -> None:
        """Open nodes down to the first that are judged, and judge all of these: a first bound, known soon.

        It takes half of the time at most: a better plan is worth more than a bound of plans that nobody would take.
        """
        ahead, half = [self.heap.pop()], (time.monotonic() + self.until) / 2
        while ahead:
            self.found.nodes += len(ahead)
            ready = [node for node in ahead if node[3]]
            for first in range(0, len(ready), WIDE):
                batch = ready[first : first + WIDE]
                if time.monotonic() >= half:
                    self._push(batch)
                else:
                    self._judge(batch)
            children = [child for node in ahead if not node[3] for child in self._opened(node)]
            # Of keys ahead of all degrees the first values at first: guesses are of them.
            ahead = [child for child in children if not any(child[2][: self._user_key_count])]
            self._push([child for child in children if any(child[2][: self._user_key_count])])
        self.settle()

    def _dig(self, size: int, patience: int) -> bool:
        """Look at nodes, the least bound first, until there are leaves for a round or nothing is left to look at.

        Returns whether it ended for want of ``patience``: after so many nodes in all.
        """
        found, heap, cut, reported = self.found, self.heap, self.cut, 0

        def goes_on() -> bool:
            return bool(heap) and heap[0][0] < cut and len(self.leaves) < size

        while goes_on() and not self.late:
            if found.nodes >= patience:
                return True
            if self.tell and found.nodes >= reported:
                found.least, reported = heap[0][0], found.nodes + OFTEN
                self.tell(found)
            batch: list[Node] = []
            while goes_on() and len(batch) < BATCH:
                node = heapq.heappop(heap)
                found.nodes += 1
                if node[3]:
                    batch.append(node)
                else:
                    self._push(self._opened(node))
            self._judge(batch)
        return False

    def _push(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            heapq.heappush(self.heap, node)

    def _judge(self, batch: list[Node]) -> None:
        """Judge nodes closer, all at once; what is not cut off comes back to the heap."""
        try:
            judged = self._judged([(path, self.judge.judges(len(path)) - left) for _, _, path, left in batch])
        except KeyboardInterrupt:
            self._push(batch)
            raise
        for (bound, turn, path, left), one in zip(batch, judged, strict=True):
            if one.refusal:
                self._prune(path, one.refusal)
            else:
                heapq.heappush(self.heap, (max(bound, one.seconds), turn, path, left - 1))

    def _opened(self, node: Node) -> list[Node]:
        """The children of a node that no rule refuses; none of a leaf, which is put among the leaves."""
        bound, _, path, _ = node
        if len(path) == len(self.space.keys):
            if path in self.found.early:
                self.found.early.discard(path)
            else:
                self.leaves.append((bound, path))
            self.found.bounds[path] = bound
            return []
        children = []
        for place in range(len(self.space.values[len(path)])):
            child = (*path, place)
            if not self.space.has_bounds(child):
                continue
            refusal = refused(self.space, child)
            if refusal:
                self._prune(child, refusal)
            else:
                # Of equal bounds the deeper node first: it comes to a leaf, and a leaf to a best step.
                children.append((bound, -len(child), child, self.judge.judges(len(child))))
        return children

    def _prune(self, path: Path, refusal: Refusal) -> None:
        # Those that are predicted already are not cut off.
        found = self.found
        below = [one for one in found.early if one[: len(path)] == path]
        found.early.difference_update(below)
        count = self.space.below(len(path)) - len(below)
        found.pruned[refusal.rule] = found.pruned.get(refusal.rule, 0) + count
        found.examples.setdefault(refusal.rule, refusal.example)
        found.open -= count

    def settle(self) -> None:
        """Note how fast an open plan could be: never faster than the best, if that is known."""
        bounds = [*(node[0] for node in self.heap[:1]), *(bound for bound, _ in self.leaves)]
        bounds += [self.found.fastest] if self.found.fastest < float('inf') else []
        self.found.least = min(bounds, default=0.0)
