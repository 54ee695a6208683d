"""Pydantic's reader of a class, made once; pydantic is imported when a file is read, not before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def _new_adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(_new_adapter)
