"""The journal of a bench: every finished run in a file of its own, so that a bench that broke goes on where it was.

A bench is started again with the same flags, builds the same programs in the same orders, and gets the runs that it has
had from here: what it decides by times, it decides as before.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from executor.assemble import assemble_run
from executor.bench.ranks import Timed, Timer
from executor.ranks.request import Outcome
from simpar.cost.costs import Costs
from simpar.errors import Problem, ScheduleError
from simpar.files import read_regular, write_atomically
from simpar.hardware.net import Net
from simpar.program import Program

HEAD: Final = 'bench.json'
MOST: Final = 2**32
"""Bytes of a run, at most."""


class Journal:
    """Ranks whose runs are kept in a folder.

    Arguments:
        of: topic → what the bench is, in words: runs of another bench are of no use.
    Raises ``ScheduleError`` where the folder holds another bench, or cannot be written.
    """

    def __init__(self, folder: Path, of: Mapping[str, str]) -> None:
        self.folder = folder
        self._timer: Timer | None = None
        self._next = 0
        head = folder / HEAD
        try:
            folder.mkdir(exist_ok=True)
            if head.exists():
                _require_same(folder, json.loads(read_regular(head, MOST)), of)
            # Also where it is there already: what cannot be written now cannot be written later.
            write_atomically(head, json.dumps(dict(of)) + '\n')
        except OSError as error:
            what = f'cannot be written: {error.strerror or error}'
            raise ScheduleError(Problem(str(folder), what, 'name a folder by --journal DIR')) from error
        except ValueError as error:
            raise ScheduleError(Problem(str(head), 'is no head of a journal', 'delete the folder')) from error
        self.kept = _kept(folder)
        """Runs that are there already."""

    def over(self, timer: Timer) -> Journal:
        """Have these ranks run what is not there yet."""
        self._timer, self._next = timer, 0
        return self

    @property
    def world(self) -> int:
        """How many ranks."""
        return self._ranks.world

    @property
    def net(self) -> Net:
        """What joins them."""
        return self._ranks.net

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the times must know."""
        again = (f'the first {self.kept} runs are of an earlier start, which broke off',) if self.kept else ()
        return (*self._ranks.notes, *again)

    @property
    def _ranks(self) -> Timer:
        assert self._timer is not None
        return self._timer

    def timed(self, program: Program, steps: int, costs: Costs | None = None, issue: str = 'eager') -> Timed:
        """The run, from the journal where it is there; else made now, and kept."""
        path = _path(self.folder, self._next)
        what = f'{program.hash} {steps} {issue}'
        if self._next < self.kept:
            found = _read(path, program, what)
            if found is not None:
                self._next += 1
                return found
            # Times before it decided otherwise this time, or the file is not whole: from here on all is measured anew.
            self.kept = self._next
        run = self._ranks.timed(program, steps, costs, issue)
        write_atomically(path, _written(run, what))
        self._next += 1
        return run

    def remove(self) -> None:
        """The bench is over, and its record written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def leave(self) -> None:
        """The bench broke: keep what there is; of nothing at all, nothing stays."""
        if not _kept(self.folder):
            self.remove()


def _require_same(folder: Path, found: Mapping[str, str], of: Mapping[str, str]) -> None:
    topics = [topic for topic in {**found, **of} if found.get(topic) != of.get(topic)]
    if topics:
        told = ', '.join(f'{topic} ({found.get(topic, "none")}, now {of.get(topic, "none")})' for topic in topics)
        what = f'holds the runs of another bench: {told}'
        raise ScheduleError(Problem(str(folder), what, 'delete the folder, or give the flags of then'))


def _path(folder: Path, number: int) -> Path:
    return folder / f'{number:05}.npz'


def _kept(folder: Path) -> int:
    number = 0
    while _path(folder, number).exists():
        number += 1
    return number


def _written(run: Timed, what: str) -> bytes:
    arrays: dict[str, Any] = {'what': np.array(what), 'thread': run.thread_RKS, 'process': run.process_RKS}
    for rank in range(run.trace.program.world):
        times = run.trace.times_of(rank)
        arrays |= {f'arrive{rank}': times.arrive_KS, f'end{rank}': times.end_KS}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _read(path: Path, program: Program, what: str) -> Timed | None:
    """A run; None where the file is not whole, or is of something else."""
    try:
        with np.load(io.BytesIO(read_regular(path, MOST)), allow_pickle=False) as found:
            if str(found['what']) != what:
                return None
            take: Callable[[str, int], Any] = lambda name, rank: found[f'{name}{rank}']  # noqa: E731
            outcomes = [Outcome(take('arrive', rank), take('end', rank)) for rank in range(program.world)]
            return Timed(assemble_run(program, outcomes, 'real').trace, found['thread'], found['process'])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
