"""Start: plans that are likely good, found by changing keys of a plan while that helps.

A good plan that is known early cuts off most others. Nothing is proven here: the search goes through all nodes anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
from typing import Final

from simpar.planner.judge import GUESS, Asked
from simpar.planner.rules import Judged, refused
from simpar.planner.space import DEGREES, Space

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
        changed = chain(self._near(path, pairs=False), self._near(path, pairs=True, among=CLOSE))
        found: dict[Path, float] = {}
        while time.monotonic() < self._until and (some := list(islice(changed, TOGETHER))):
            found |= zip(some, self._seconds(some, limit), strict=True)
        alike = [number for number, key in enumerate(self._space.keys) if key in ALIKE]
        return sorted(
            (seconds, one)
            for one, seconds in found.items()
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
        for path, liked in product(few, PRESETS):
            whole: Path | None = path
            for key, values in list(zip(self._space.keys, self._space.values, strict=True))[len(path) :]:
                whole = self._next(whole, key, values, liked) if whole else None
            if whole:
                yield whole

    def _next(
        self, path: Path, key: str, values: Sequence[object], liked: Mapping[str, tuple[object, ...]]
    ) -> Path | None:
        first = [values.index(one) for one in liked.get(key, ()) if one in values]
        places = [*first, *range(len(values))]
        if key == 'micro_batches':
            pipeline = self._space.plan(path).pipeline
            places.sort(key=lambda place: abs(int(str(values[place])) - 8 * pipeline))
        return next(((*path, place) for place in places if refused(self._space, (*path, place)) is None), None)

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

    def _near(self, path: Path, *, pairs: bool, among: Sequence[tuple[str, ...]] = PAIRS) -> Iterator[Path]:
        keys = self._space.keys
        numbers = [number for number, values in enumerate(self._space.values) if len(values) > 1]
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
