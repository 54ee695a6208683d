"""Kept: the last few results of what takes long, each found again by what it was made of; facts of single objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Generic, TypeVar

Key = TypeVar('Key')
Value = TypeVar('Value')


class Kept(Generic[Key, Value]):
    """The last few results; what was asked for longest ago goes first.

    Keys are told by equality, since plans and workloads hold mappings, which have no hash.
    Arguments: ``most``, how many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: list[tuple[Key, Value]] = []

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The result that is kept for an equal key, else what ``make`` returns, which is kept then."""
        # One list, whatever other threads put in its place. The last one first: neighbours in a sweep ask for the same.
        known = self._known
        if known and known[-1][0] == key:
            return known[-1][1]
        found = next((pair for pair in reversed(known[:-1]) if pair[0] == key), None)
        pair = (key, make()) if found is None else found
        # A new list each time, so that threads never see one that is half changed.
        self._known = [*(one for one in self._known if one is not pair), pair][-self._most :]
        return pair[1]

    def clear(self) -> None:
        """Forget all."""
        self._known = []


class Same:
    """Objects as a key: equal to others where each is the very same one."""

    def __init__(self, *objects: object) -> None:
        self._objects = objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and all(map(is_, self._objects, other._objects))

    __hash__ = None  # type: ignore[assignment]


class Facts(Generic[Key, Value]):
    """What was worked out of objects that never change, found again by the very object; all is forgotten when full.

    Arguments: ``of``, what works it out; ``most``, of how many objects it is kept.
    """

    def __init__(self, of: Callable[[Key], Value], most: int) -> None:
        self._of = of
        self._most = most
        self._known: dict[int, tuple[Key, Value]] = {}

    def __call__(self, one: Key) -> Value:
        """The fact of an object."""
        # The object is kept, too, so that no other can have its id.
        known = self._known.get(id(one))
        if known is None:
            if len(self._known) >= self._most:
                self._known = {}
            known = self._known[id(one)] = (one, self._of(one))
        return known[1]

    def each(self, many: Sequence[Key]) -> list[Value]:
        """The facts of many objects; those that are known take a third of the time that they take one by one."""
        known = [self._known.get(id(one)) for one in many]
        return [pair[1] if pair else self(one) for pair, one in zip(known, many, strict=True)]

    def clear(self) -> None:
        """Forget all."""
        self._known = {}
