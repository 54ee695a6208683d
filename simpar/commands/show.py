"""``simpar show FILE``: open a page that `simpar run --html` wrote."""

from __future__ import annotations

import argparse
import webbrowser

from simpar.errors import Problem, ScheduleError
from simpar.files import read_regular

MOST_BYTES = 2**26


def command(options: argparse.Namespace) -> int:
    """Open it in the user's browser; without one, say where it is."""
    try:
        text = read_regular(options.page, MOST_BYTES)[:200]
    except OSError as error:
        raise ScheduleError(Problem(str(options.page), error.strerror or str(error), 'name a page')) from None
    if not text.lstrip().lower().startswith(b'<!doctype html'):
        remedy = 'write one with `simpar run FILE --html PAGE.html`'
        raise ScheduleError(Problem(str(options.page), 'not a page', remedy))
    address = options.page.resolve().as_uri()
    opened = webbrowser.open(address)
    print(f'opened {address}' if opened else f'no browser was found here; open {address} in one')
    return 0
