"""What has been measured at this commit, kept on the disk: a benchmark that was interrupted goes on from there."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.report import own_commit

FOLDER: Final = Path(__file__).parent.parent / 'out' / 'benchmarks'
T = TypeVar('T')


def kept(name: str, rounds: int, measure: Callable[[], T]) -> T:
    """What ``measure`` gives, or gave at this commit in so many rounds.

    Arguments: ``name``, of what is measured; it is told as soon as it begins.
    """
    place = f'{own_commit()} {rounds} {name}'
    path = FOLDER / (''.join(sign if sign.isalnum() else '_' for sign in place) + '.pickle')
    if path.exists():
        print(f'... {name}: kept from an earlier run', file=sys.stderr, flush=True)
        found: T = pickle.loads(path.read_bytes())
        return found
    print(f'... {name}', file=sys.stderr, flush=True)
    found = measure()
    FOLDER.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(found))
    return found
