"""``train``: run a schedule file and get losses, parameters and gradients as tensors, by one call."""

from __future__ import annotations

import os
from collections.abc import Sequence

from executor.backend import Pool
from executor.inprocess import InProcess
from executor.result import Result
from executor.tensors import TORCH
from simpar.case import load_case


def train(
    file: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    steps: int = 1,
    seed: int = 0,
    dtype: str = '',
    processes: bool = True,
    timeout: float = 30.0,
) -> Result:
    """Train a schedule for some steps on CPUs.

    Arguments:
        file: the schedule.
        overrides: ``a.b=value``, as of ``--set``.
        seed: of weights and data.
        dtype: fp64, fp32, ...; takes the place of every floating dtype of the schedule.
        processes: True, one process a rank, joined by gloo; False, all ranks in this process.
        timeout: seconds without progress after which processes have failed.
    Returns the loss of each step, the full parameters, and the full gradients of the last step; the gradient of
    ``NAME`` is called ``d:NAME``. As in every script
    that starts processes, the call stands under ``if __name__ == '__main__':``.
    Raises ``ScheduleError`` where the file is wrong, ``RunFailed`` naming rank, op and peer where the run broke.

    >>> result = train('examples/multi_copy.yaml', steps=2)  # doctest: +SKIP
    >>> result.losses, result.parameters['dense0.weight'].shape  # doctest: +SKIP
    """
    program = load_case(file, overrides).program
    if not processes:
        return InProcess(program, seed, TORCH[dtype] if dtype else None).run(steps)
    with Pool(program.world, timeout=timeout) as pool:
        return pool.run(program, steps=steps, seed=seed, dtype=dtype, keep=True)
