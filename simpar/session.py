"""A session: what the rows of a sweep, the plans of a search or the questions of a notebook have in common.

Whoever asks many times makes one and passes it on. No result depends on it, and two of them share nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from simpar.plans import Plan

Made = TypeVar('Made')


class _Result(NamedTuple):
    """What a function gave for arguments, and for all plans with these values of the keys that it read."""

    arguments: dict[str, object]
    read: dict[str, object]
    made: object


class Session:
    """The last few results of each function that it was asked to call.

    Arguments: ``most``, how many results of a function are kept; what was asked for longest ago goes first.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._results: dict[Callable[..., Any], list[_Result]] = {}

    def once(self, function: Callable[..., Made], **arguments: object) -> Made:
        """What a function gives for arguments, or gave before for equal ones; nobody may change it."""
        return self._result_of(function, arguments, None)

    def of_plan(self, function: Callable[..., Made], plan: Plan, **arguments: object) -> Made:
        """The same of a function that also takes a ``plan``: it gave this for a plan that is equal as far as it looked.

        Which keys of a plan it reads is noted while it runs, so that no list of them can be wrong.
        """
        return self._result_of(function, arguments, plan)

    def _result_of(self, function: Callable[..., Made], arguments: dict[str, object], plan: Plan | None) -> Made:
        # A new list each time, so that threads never see one that is half changed.
        results = self._results.get(function, [])
        equal = (one for one in reversed(results) if one.arguments == arguments and _is_equal(plan, one.read))
        entry = next(equal, None)
        if entry is None:
            noted = _Noted(plan)
            plan_argument = {} if plan is None else {'plan': cast('Plan', noted)}
            entry = _Result(arguments, vars(noted)['_read'], function(**plan_argument, **arguments))
        self._results[function] = [*(one for one in results if one is not entry), entry][-self._most :]
        return cast('Made', entry.made)


def _is_equal(plan: Plan | None, read: dict[str, object]) -> bool:
    return all(getattr(plan, key) == value for key, value in read.items())


class _Noted:
    """A plan that notes which of its keys are read."""

    def __init__(self, plan: Plan | None) -> None:
        vars(self).update(_plan=plan, _read={})

    def __getattr__(self, key: str) -> object:
        value = vars(self)['_read'][key] = getattr(vars(self)['_plan'], key)
        return value
