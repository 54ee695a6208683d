"""Conditions of a shell script: ``[ … ]`` and ``[[ … ]]`` as true, false, or not known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from simpar.importing.shell_values import UNKNOWN

_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    '-eq': lambda a, b: a == b, '-ne': lambda a, b: a != b, '-lt': lambda a, b: a < b, '-le': lambda a, b: a <= b,
    '-gt': lambda a, b: a > b, '-ge': lambda a, b: a >= b,
}  # fmt: skip
Answer = bool | None


def told(words: Sequence[str]) -> Answer:
    """What a test says; None where it asks for files or for what is not known.

    A variable that nobody assigns is empty, as it is for bash; the result of a command is not known.
    Arguments: ``words``, without the brackets.
    """
    for sign, join in (('||', _any), ('-o', _any), ('&&', _all), ('-a', _all)):
        if sign in words[1:]:
            place = words.index(sign, 1)
            return join(told(words[:place]), told(words[place + 1 :]))
    if words and words[0] == '!':
        answer = told(words[1:])
        return None if answer is None else not answer
    return _single([_emptied(word) for word in words])


def _emptied(word: str) -> str | None:
    """A word with what is not set left out; None where it holds the result of a command."""
    if any(name.startswith('$(') for name in UNKNOWN.findall(word)):
        return None
    return UNKNOWN.sub('', word)


def _single(words: list[str | None]) -> Answer:
    if not words:
        return False
    if None in words:
        return None
    first, *rest = [word or '' for word in words]
    if len(words) == 1:
        return bool(first)
    if first in ('-z', '-n') and len(rest) <= 1:
        empty = not (rest and rest[0])
        return empty if first == '-z' else not empty
    if len(rest) != 2:
        return None
    return _compared(first, *rest)


def _compared(left: str, sign: str, right: str) -> Answer:
    if sign in ('=', '=='):
        return fnmatchcase(left, right)
    if sign == '!=':
        return not fnmatchcase(left, right)
    if sign in _NUMBERS and re.fullmatch(r'-?[0-9]{1,18}', left) and re.fullmatch(r'-?[0-9]{1,18}', right):
        return _NUMBERS[sign](int(left), int(right))
    # An empty number is an error in bash, and the condition does not hold.
    return False if sign in _NUMBERS and '' in (left, right) else None


def _any(left: Answer, right: Answer) -> Answer:
    if left or right:
        return True
    return None if left is None or right is None else False


def _all(left: Answer, right: Answer) -> Answer:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True
