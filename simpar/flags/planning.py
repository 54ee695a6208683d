"""The flags of ``simpar plan``."""

from __future__ import annotations

import argparse
from pathlib import Path

from simpar.flags.types import percent, positive, training


def plan(verb: argparse.ArgumentParser) -> None:
    """Of ``simpar plan``."""
    verb.add_argument('--save', type=Path, metavar='YAML', help='write the schedule of the best plan')
    verb.add_argument('--plot', type=Path, metavar='PNG', help='draw the front of step and memory, or of cost and time')
    verb.add_argument('--seconds', type=positive, metavar='N', help='end after so many seconds with what is known')
    verb.add_argument('--gap', type=percent, metavar='PERCENT', help='end when no plan can be faster by more, e.g. 5%%')
    verb.add_argument(
        '--devices', type=_counts, metavar='N,N', help='plan on each of these numbers of devices; compare cost and time'
    )
    verb.add_argument(
        '--train', action='append', default=[], type=training, metavar='KEY=VALUE',
        help='with --devices, the training that cost and time are of, e.g. tokens=15T, price=2.5; may be repeated',
    )  # fmt: skip
    verb.add_argument(
        '--brief', action='store_true', help='leave out why the runner-up loses, and what happens if something is worse'
    )
    verb.add_argument('--jobs', type=positive, metavar='N', help='processes at once (default: all cores, if it pays)')
    verb.add_argument('--scheduler', metavar='ADDRESS', help='predict on a Dask cluster, e.g. tcp://host:8786')
    verb.add_argument('--journal', type=Path, metavar='FILE', help='keep predicted plans here and go on from them')


def _counts(text: str) -> tuple[int, ...]:
    """Numbers of devices, each once."""
    try:
        counts = tuple(int(one) for one in text.split(','))
    except ValueError:
        counts = (0,)
    if min(counts) < 1 or len(set(counts)) < len(counts):
        raise argparse.ArgumentTypeError(f'{text} are not numbers of devices, each once; write e.g. 64,128,256')
    return counts
