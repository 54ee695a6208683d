"""``python -m executor.bench``: micro-benchmarks of this machine, written as JSON for ``simpar calibrate``."""

import argparse
import os
from collections.abc import Sequence

from executor import cluster, host
from executor.options import add_flags, guarded, leave


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog='python -m executor.bench', description=__doc__, allow_abbrev=False)
    add_flags(top, 'bench')
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; returns the exit code."""
    options = parser().parse_args(arguments)
    # Set before torch is imported, which reads it once. One rank has one core, as in `simpar measure`.
    os.environ['OMP_NUM_THREADS'] = '1'
    return guarded('executor.bench', 'file', lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    # ``--ranks`` says that ranks are started here, whatever a batch system has put into the environment.
    launch = None if options.ranks else cluster.detect(os.environ)
    if launch is None or not launch.idle:
        from executor.bench.bench import run

        run(options, launch)
    return 0


if __name__ == '__main__':
    if cluster.is_launched(os.environ):
        host.keep_memory()
    leave(main())
