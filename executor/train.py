"""``train``: run a schedule file and get losses, parameters and gradients as tensors, by one call."""

from __future__ import annotations

import os
from collections.abc import Sequence

from executor.backend import Pool
from executor.given import by_module, keep
from executor.inprocess import InProcess
from executor.result import Result
from executor.tensors import TORCH
from simpar.case import load_case
from simpar.program import Program
from simpar.torch_module import Imported


def train(
    file: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    steps: int = 1,
    seed: int = 0,
    dtype: str = '',
    processes: bool = True,
    timeout: float = 30.0,
    module: Imported | None = None,
) -> Result:
    """Train a schedule for some steps on CPUs.

    Arguments:
        file: the schedule.
        overrides: ``a.b=value``, as of ``--set``.
        seed: of weights and data.
        dtype: fp64, fp32, ...; takes the place of every floating dtype of the schedule.
        processes: True, one process a rank, joined by gloo; False, all ranks in this process.
        timeout: seconds without progress after which processes have failed.
        module: what ``simpar.from_module`` made of a torch module: the file's model, with its weights. Parameters and
            gradients come back by the module's own names.
    Returns the loss of each step, the full parameters, and the full gradients of the last step; the gradient of
    ``NAME`` is called ``d:NAME``. As in every script
    that starts processes, the call stands under ``if __name__ == '__main__':``.
    Raises ``ScheduleError`` where the file is wrong, ``RunFailed`` naming rank, op and peer where the run broke.

    >>> result = train('examples/multi_copy.yaml', steps=2)  # doctest: +SKIP
    >>> result.losses, result.parameters['dense0.weight'].shape  # doctest: +SKIP
    """
    if module is not None:
        keep(module.weights)
    program = load_case(file, overrides, module=module.model.graph_text if module else '').program
    result = _trained(program, steps, seed, dtype, timeout, processes=processes)
    return by_module(result) if module else result


def _trained(program: Program, steps: int, seed: int, dtype: str, timeout: float, *, processes: bool) -> Result:
    if not processes:
        return InProcess(program, seed, TORCH[dtype] if dtype else None).run(steps)
    with Pool(program.world, timeout=timeout) as pool:
        return pool.run(program, steps=steps, seed=seed, dtype=dtype, keep=True)
