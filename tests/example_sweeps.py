"""The sweeps of the examples, each predicted once for all tests."""

from functools import cache
from pathlib import Path

from simpar.sweep import SweepAnswer, load_sweep

ROOT = Path(__file__).parent.parent


@cache
def answer(file: str, sweeps: tuple[str, ...], sets: tuple[str, ...] = ()) -> SweepAnswer:
    """Arguments: ``file`` from the project's folder; ``sweeps`` as of `--sweep`, ``sets`` of `--set`."""
    return load_sweep(ROOT / file, sets, sweeps).predict()
