"""How verbs answer: one JSON object, or text. Schedules take long to import: none is here."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any


def print_json(value: object) -> None:
    """One JSON object and nothing else; numbers that are not finite are a mistake of ours."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_answer(options: argparse.Namespace, as_dict: Callable[[], Any], as_text: Callable[[], str]) -> None:
    """An answer for programs with ``--json``, or for a person."""
    if options.json:
        print_json(as_dict())
    else:
        sys.stdout.write(as_text())
