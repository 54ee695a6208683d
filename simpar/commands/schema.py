"""``simpar schema``: JSON Schema of schedule files, for completion in editors."""

from __future__ import annotations

import argparse
import json

from simpar.schedule import schedule_schema


def command(options: argparse.Namespace) -> int:
    """Print the schema."""
    del options
    print(json.dumps(schedule_schema(), indent=2))
    return 0
