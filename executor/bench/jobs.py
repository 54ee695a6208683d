"""The programs of a schedule file whose exact ops are measured: its own, its baseline's, and those of other copies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simpar.case import load_case
from simpar.errors import SimparError
from simpar.program import Program

COPIES: Final = (1, 2, 4)


def schedule_programs(path: Path) -> list[Program]:
    """Programs of a schedule; copies that the batch cannot be split into are left out.

    Raises ``ScheduleError`` where the file is wrong.
    """
    case = load_case(path)
    programs = [case.program, *([case.baseline.program] if case.baseline else [])]
    programs += [program for copies in COPIES if (program := _with_copies(path, copies))]
    # The file's own copies are often among COPIES; equal programs are measured once.
    return list({program.hash: program for program in programs}.values())


def _with_copies(path: Path, copies: int) -> Program | None:
    try:
        return load_case(path, [f'plan.copies={copies}']).program
    # The file itself was read before, so what fails here is this number of copies, which the bench can do without.
    except SimparError:
        return None
