"""How the texts of flags are read."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} is not a whole number from 1; write e.g. 8')
    return number


def ranks(text: str) -> tuple[int, ...]:
    """Ranks, each once."""
    if not all(part.isdecimal() for part in text.split(',')):
        raise argparse.ArgumentTypeError(f'{text} is not a list of ranks; write e.g. 0,8')
    return tuple(dict.fromkeys(map(int, text.split(','))))


def limit(text: str) -> str:
    """A size or a time, as it was written."""
    # Imported where it is needed: it knows schedules and programs.
    from simpar.size import parse_limit

    try:
        parse_limit([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def training(text: str) -> str:
    """One item of a training, as it was written."""
    from simpar.budget import parse_budget

    try:
        # Alone no item has to be all that is needed.
        parse_budget([text] if text.startswith('tokens=') else ['tokens=1', text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def percent(text: str) -> float:
    """A share."""
    try:
        value = float(text.removesuffix('%')) / 100
    except ValueError:
        value = -1.0
    if not text.endswith('%') or not 0 <= value < float('inf'):
        raise argparse.ArgumentTypeError(f'{text} is not a share; write e.g. 10%')
    return value
