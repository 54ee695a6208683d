"""``train``: train a schedule, with the user's own module and data, and keep what came of it, by one call."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from executor import checkpoint as kept
from executor.backend import Pool
from executor.batches import Given, checked, ended, skipped
from executor.contents import Contents
from executor.devices.flags import Wanted
from executor.given import by_module, keep
from executor.launch import Launch, detect
from executor.rank import Request
from executor.result import Result
from executor.stretch import Batch, Stretch
from executor.stretches import Runner, in_process, of_launch, of_pool, on_virtual
from executor.trained import Trained
from executor.validate import validate
from simpar.case import Case, load_case
from simpar.errors import Problem, ScheduleError
from simpar.program import Program
from simpar.torch_module import Imported

FEW = 50
"""Steps whose batches are read from the user's data at once, where no checkpoint ends them."""


def train(
    file: str | os.PathLike[str] | Case,
    overrides: Sequence[str] = (),
    *,
    steps: int = 1,
    seed: int = 0,
    dtype: str = '',
    processes: bool = True,
    timeout: float = 30.0,
    module: Imported | None = None,
    data: Iterable[Given] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 10,
    device: str = 'cpu',
    transport: str = '',
) -> Result:
    """Train a schedule for some steps.

    Arguments:
        file: the schedule, or a case of one.
        overrides: ``a.b=value``, as of ``--set``.
        steps: of the whole training, those of earlier runs that ``checkpoint`` has kept included.
        seed: of weights and data.
        dtype: fp64, fp32, ...; takes the place of every floating dtype of the schedule.
        processes: True, one process a rank, joined by gloo; False, all ranks in this process. Where a launcher has
            started this process as a rank, it is that rank, and only rank 0 gets the result.
        timeout: seconds without progress after which processes have failed.
        module: what ``simpar.from_module`` made of a torch module: the file's model, with its weights. Parameters and
            gradients come back by the module's own names.
        data: batches of the whole step, in place of drawn ones: tensors, tuples or dicts of them by the names of the
            program's inputs. A training that goes on skips those that it has trained.
        checkpoint: a folder that all ranks reach. What it holds is gone on from, under any plan of the same model;
            else a checkpoint is written there whenever ``every`` steps are done, and behind the last.
        every: steps from one checkpoint to the next.
        device, transport: what computes and what carries messages, as ``--device`` and ``--transport`` of the command
            line. Virtual accelerators are all in this process, unless gloo carries their messages.
    Returns the loss of each step, the full parameters, and the full gradients of the last step; the gradient of
    ``NAME`` is called ``d:NAME``. As in every script
    that starts processes, the call stands under ``if __name__ == '__main__':``.
    Raises ``ScheduleError`` where file, data or checkpoint are wrong, ``RunFailed`` naming rank, op and peer where the
    run broke.

    >>> result = train('examples/multi_copy.yaml', steps=2)  # doctest: +SKIP
    >>> result.losses, result.parameters['dense0.weight'].shape  # doctest: +SKIP
    """
    if steps < 1 or every < 1:
        raise ScheduleError(Problem('steps' if steps < 1 else 'every', f'is {min(steps, every)}', 'write at least 1'))
    if module is not None:
        keep(module.weights)
    case = _case(file, overrides, module)
    program = case.program
    root = None if checkpoint is None else Path(checkpoint)
    launch = detect(os.environ) if processes else None
    wanted = Wanted(device, transport)
    wanted.check(launch.by if launch else '', processes=processes)
    runner = _runner(program, launch, timeout, wanted, processes=processes)
    training = _Training(case, steps, seed, dtype, root, every, wanted)
    result = training.run(runner, data, first=not launch or launch.rank == 0)
    return by_module(result) if module else result


def _case(file: str | os.PathLike[str] | Case, overrides: Sequence[str], module: Imported | None) -> Case:
    if not isinstance(file, Case):
        return load_case(file, overrides, module=module.model.graph_text if module else '')
    if overrides or module is not None:
        what = 'a case has all its values already'
        raise ScheduleError(
            Problem('overrides' if overrides else 'module', what, 'give the file, or load_case with it')
        )
    return file


def _runner(program: Program, launch: Launch | None, timeout: float, wanted: Wanted, *, processes: bool) -> Runner:
    validate(program)
    if wanted.in_one_process:
        return on_virtual(program)
    if launch is not None:
        return of_launch(launch, program, timeout)
    if processes:
        return of_pool(Pool(program.world, timeout=timeout), program)
    return in_process(program)


@dataclass(frozen=True, slots=True)
class _Training:
    """A training from one checkpoint to the next; arguments as of ``train``."""

    case: Case
    steps: int
    seed: int
    dtype: str
    root: Path | None
    every: int
    wanted: Wanted

    def run(self, runner: Runner, data: Iterable[Given] | None, *, first: bool) -> Result:
        """Train. Arguments: ``first``, whether this process speaks for the run."""
        trained = Trained.of(self.case, self.dtype, own=data is not None)
        begun = self._begun(trained, first=first)
        # Of the ranks that a launcher has started, the first alone knows losses.
        losses = begun.losses if begun and first else ()
        done = begun.step if begun else 0
        batches = None if data is None else skipped(data, done)
        source = str(kept.folder_of(self.root, done)) if self.root and begun else ''
        if begun and done >= self.steps:
            whole = kept.parameters_of(Path(source), begun, self.case.program)
            return Result(losses[: self.steps], whole if first else {}, {})
        last = Result((), {}, {})
        with runner as perform:
            while done < self.steps:
                count = min(self._length(done, data is not None), self.steps - done)
                until = done + count
                save = str(kept.folder_of(self.root, until)) if self.root else ''
                own = () if batches is None else self._batches(batches, done, count)
                request = Request(
                    steps=count, seed=self.seed, dtype=self.dtype, keep=until == self.steps,
                    stretch=Stretch(done, source, save, own, losses, trained),
                    device=self.wanted.device, transport=self.wanted.transport,
                )  # fmt: skip
                last = perform(request)
                losses, done, source = losses + last.losses, until, ''
        return Result(losses, last.parameters, last.gradients)

    def _begun(self, trained: Trained, *, first: bool) -> Contents | None:
        """What the last checkpoint holds; None where there is none."""
        if self.root is None:
            return None
        if first:
            self.root.mkdir(parents=True, exist_ok=True)
            kept.clear(self.root)
        folder = kept.latest(self.root)
        if folder is None:
            return None
        found = kept.contents_of(folder)
        if found.seed != self.seed:
            what = f'was trained with seed {found.seed}, not {self.seed}'
            raise ScheduleError(Problem(str(folder), what, 'give the same seed, or another folder'))
        if found.trained is not None:
            trained.check(found.trained, self.case.schedule, folder)
        elif first:
            lacks = 'without digests and without what was trained, neither damage nor another model is noticed'
            print(f'Note: {folder} is of an older simpar: {lacks}', file=sys.stderr, flush=True)
        kept.check_names(folder, found, self.case.program)
        return found

    def _length(self, done: int, given: bool) -> int:
        """Steps until the next checkpoint, or until more data are read."""
        if self.root is not None:
            return self.every - done % self.every
        return FEW if given else self.steps

    def _batches(self, data: Iterator[Given], done: int, count: int) -> tuple[Batch, ...]:
        found = tuple(checked(self.case.program, done + at, one) for at, one in enumerate(islice(data, count)))
        if len(found) < count:
            raise ended(done + len(found), self.steps)
        return found
