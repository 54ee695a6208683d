"""Every way in which simpar says no, with the exit code that the command line gives it.

SimparError
├── ScheduleError     2  the user's file is wrong: a list of problems, each with file:line
│   └── ProfileError  2  a hardware profile is wrong
├── Infeasible        3  the plan cannot be on this cluster, or its prediction is over the limit
├── Deadlock          3  the program cannot finish; draws what every stream waits for
├── OutsideTolerance  4  prediction and measurement differ by more than asked
├── RunFailed         5  a real run broke: rank, op and peer named
└── NumericsWrong     6  losses, gradients or parameters differ from the reference
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike


class SimparError(Exception):
    """Root of all errors that a user can cause or meet."""

    exit_code = 1


Key = tuple[str | int, ...]
"""Where a value is in a file: keys of mappings (always text, as in JSON) and places in lists."""


def dotted(key: Key) -> str:
    """A key as one writes it in `--set`, e.g. ``workload.network.0.dense``; parts are shortened to 40 characters."""
    return '.'.join(shown_part(part) for part in key)


def shown_part(part: str | int) -> str:
    """One part of a key, so that it cannot harm the terminal."""
    text = str(part)
    label = text if text.isprintable() and ' ' not in text else repr(text)
    return label if len(label) <= 40 else f'{label[:39]}…'


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, what, and what to write instead.

    Arguments: ``where``, the place as file:line; where no file is at hand, the key, until ``at`` says its place.
    """

    where: str | Key
    what: str
    instead: str = ''

    @property
    def place(self) -> str:
        """Where, as text."""
        return self.where if isinstance(self.where, str) else dotted(self.where)

    @property
    def key(self) -> Key:
        """The key; empty where the place is known."""
        return () if isinstance(self.where, str) else self.where

    def at(self, place: str, key: Key | None = None) -> Problem:
        """The same, told of a key at its place. Arguments: ``key``, as the user wrote it, where that differs."""
        label = dotted(self.key if key is None else key)
        return Problem(place, f'{label}: {self.what}' if label else self.what, self.instead)

    def __str__(self) -> str:
        tail = f'; {self.instead}' if self.instead else ''
        return f'{self.place}: {self.what}{tail}'


class ScheduleError(SimparError):
    """A file of the user's is wrong; carries every problem found in it."""

    exit_code = 2

    def __init__(self, problems: list[Problem] | Problem) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__('\n'.join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ScheduleError], tuple[list[Problem]]]:
        # From a process to the one that started it; by default, the text would be taken for the problems.
        return type(self), (self.problems,)


def refusal(where: str | PathLike[str], what: str, instead: str = '') -> ScheduleError:
    """The error of one problem: where, what is wrong, and what to write instead."""
    return ScheduleError(Problem(str(where), what, instead))


def refuse(problems: Iterable[Problem]) -> None:
    """Raise ``ScheduleError`` with all problems that were found; nothing where there is none."""
    if problem_list := list(problems):
        raise ScheduleError(problem_list)


class ProfileError(ScheduleError):
    """A hardware profile is wrong; carries every problem found in it."""


class Infeasible(SimparError):
    """The plan cannot be on this cluster, or predicting it takes more than the limit."""

    exit_code = 3


class Deadlock(SimparError):
    """A program that cannot finish; the message draws each stream's stuck head."""

    exit_code = 3


class ProgramError(SimparError):
    """A program breaks a rule that all machines rely on, e.g. two ranks of a group in different orders."""

    exit_code = 3


class OutsideTolerance(SimparError):
    """A measurement and its prediction differ by more than the tolerance."""

    exit_code = 4


class RunFailed(SimparError):
    """A real run stopped; the message names rank, op and peer."""

    exit_code = 5


class NumericsWrong(SimparError):
    """Losses, gradients or parameters differ from the reference."""

    exit_code = 6


def divisors(number: int, near: int, most: int = 8) -> str:
    """The divisors of a number that are nearest to another one, as text."""
    # Up to 4096, for advice on a size of millions must not take seconds.
    numbers = [divisor for divisor in range(1, min(number, 4096) + 1) if number % divisor == 0]
    nearest = sorted(numbers, key=lambda divisor: abs(divisor - near))[:most]
    return ', '.join(map(str, sorted(nearest)))


def multiple(number: int, of: int) -> str:
    """The nearest multiple of a number, as advice."""
    return f'write a multiple of {of}, e.g. {max(1, round(number / of)) * of}'
