"""``train``: train a schedule, with the user's own module and data, and keep what came of it, by one call."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from executor import checkpoint as checkpoints
from executor import draws, state, tensors, validate
from executor.checkpoint import Contents, Trained, write_rank
from executor.cluster import Launch, detect, external
from executor.inprocess import InProcess
from executor.options import in_one_process, run_options
from executor.ranks.pool import Pool
from executor.ranks.real import Start
from executor.state import Request, Stretch
from executor.virtual.transport import VirtualWorld
from simpar.case import Case, load_case
from simpar.errors import Problem, ScheduleError, refusal, refuse
from simpar.hardware.net import Net
from simpar.model.model import AHEAD
from simpar.program import Program, Tensor
from simpar.torch_module import Imported

Given: TypeAlias = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
_ORDER: Final = 'a tensor, a tuple in this order, or a dict by these names'


def inputs_of(program: Program) -> dict[str, Tensor]:
    """The inputs of a step, by name, in the order in which the model reads them."""
    inputs = {tensor.name: tensor for tensor in program.tensors if tensor.kind == 'input' and not tensor.like}
    # Tokens further on are made of those.
    return {name: tensor for name, tensor in inputs.items() if AHEAD not in name}


def checked(program: Program, step: int, user_batch: Any) -> draws.Batch:
    """A batch by the names of the program's inputs.

    Raises ``ScheduleError`` with everything that does not fit.
    """
    wanted = inputs_of(program)
    several = (
        [user_batch]
        if isinstance(user_batch, torch.Tensor) or not isinstance(user_batch, Sequence | Mapping)
        else user_batch
    )
    batch = several if isinstance(several, Mapping) else dict(zip(wanted, several, strict=False))
    shapes = ', '.join(f'{name} {list(tensors.shape_of_step(program, tensor))}' for name, tensor in wanted.items())
    where = f'data, batch {step}'
    problems = [
        Problem(where, f'has no input {name!r}', f'give {_ORDER}: {shapes}') for name in wanted if name not in batch
    ]
    problems += [Problem(where, f'has {name!r}, which the model does not read', f'give {shapes}') for name in batch
                 if name not in wanted]  # fmt: skip
    if len(several) > len(wanted) and not isinstance(user_batch, Mapping):
        what = f'has {len(several)} tensors, the model reads {len(wanted)}'
        problems.append(Problem(where, what, f'give {_ORDER}: {shapes}'))
    for name, tensor in wanted.items():
        if name in batch and (what := _unfit(program, tensor, batch[name])):
            problems.append(Problem(f'{where}, {name}', what, f'the schedule asks for {shapes}'))
    refuse(problems)
    return {name: batch[name].detach().cpu() for name in wanted}


def _unfit(program: Program, tensor: Tensor, value: Any) -> str:
    """What is wrong with the value of an input; empty where nothing is."""
    if not isinstance(value, torch.Tensor):
        return f'is {type(value).__name__}, not a tensor'
    if tuple(value.shape) != tensors.shape_of_step(program, tensor):
        return f'has shape {list(value.shape)}, not {list(tensors.shape_of_step(program, tensor))}'
    if value.is_floating_point() != tensors.TORCH[tensor.dtype].is_floating_point:
        return f'is {str(value.dtype).removeprefix("torch.")}, not {tensor.dtype}'
    how, _, number = tensor.initial.partition('@')[0].partition(':')
    # Beyond the vocabulary, kernels would read other memory.
    if (
        how in ('tokens', 'classes')
        and value.numel()
        and not (int(value.min()) >= 0 and int(value.max()) < int(number))
    ):
        return f'has values from {int(value.min())} to {int(value.max())}, not from 0 to {int(number) - 1}'
    return ''


def skipped(data: Iterable[Given], count: int) -> Iterator[Given]:
    """The batches behind those that earlier runs have trained.

    Raises ``ScheduleError`` where there are fewer.
    """
    batches = iter(data)
    for step in range(count):
        if next(batches, None) is None:
            raise ended(step, count)
    return batches


def ended(step: int, steps: int) -> ScheduleError:
    """The error that data end too early."""
    return refusal('data', f'ends after {step} batches, {steps} steps are asked for', 'give more, or fewer steps')


# What runs the stretches of a training: all ranks in this process, a pool of them, or one that a launcher started.

Perform = Callable[[Request], state.Result]
Runner = AbstractContextManager[Perform]


@contextmanager
def in_process(program: Program, *, virtual: bool) -> Iterator[Perform]:
    """All ranks in this process, or on virtual accelerators of it."""
    held: list[dict[str, torch.Tensor]] | None = None

    def perform(request: Request) -> state.Result:
        nonlocal held
        result: state.Result
        if virtual:
            world = VirtualWorld(program, request, held=held)
            result, held = world.run(keep=request.keep), [one.held() for one in world.ranks]
        else:
            starts = [Start.of(program, rank, request, held[rank] if held else None) for rank in range(program.world)]
            machine = InProcess(program, starts=starts)
            result, held = machine.run(request.steps), machine.held
        folder = Path(request.stretch.save if request.stretch else '')
        _join(program, request, result, (write_rank(folder, program, rank, own) for rank, own in enumerate(held)))
        return result

    yield perform


@contextmanager
def of_pool(pool: Pool, program: Program) -> Iterator[Perform]:
    """A process a rank, which the pool has started."""
    with pool:
        yield lambda request: pool.perform(program, request, _finish_of(program, request))


@contextmanager
def of_launch(launch: Launch, program: Program, timeout: float) -> Iterator[Perform]:
    """The one rank that this process is; the ranks that are not 0 get empty results."""
    with external.launched(launch, program, Net(), timeout) as perform:
        yield lambda request: perform(request, _finish_of(program, request)) or state.Result((), {}, {})


def _finish_of(program: Program, request: Request) -> state.Finish:
    """What makes the checkpoint of a stretch whole, if one is due."""
    return lambda result, ranks: _join(program, request, result, (one.written for one in ranks))


def _join(program: Program, request: Request, result: state.Result, written: Iterable[str]) -> None:
    stretch = request.stretch
    if stretch and stretch.save:
        done, losses = stretch.first + request.steps, (*stretch.losses, *result.losses)
        contents = Contents(
            step=done, seed=request.seed, program=program.hash, losses=losses, tensors={}, trained=stretch.trained
        )
        checkpoints.finish(Path(stretch.save), written, contents)


# ``train``: train a schedule, with the user's own module and data, and keep what came of it, by one call.

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
) -> state.Result:
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
        raise refusal('steps' if steps < 1 else 'every', f'is {min(steps, every)}', 'write at least 1')
    if module is not None:
        draws.keep(module.weights, module.own)
    case = _case(file, overrides, module)
    program = case.program
    root = None if checkpoint is None else Path(checkpoint)
    launch = detect(os.environ) if processes else None
    launch = launch and launch.placed(case.cluster.placement)
    options = run_options(device, transport, launch.by if launch else '', processes=processes)
    runner = _runner(program, launch, timeout, virtual=in_one_process(options), processes=processes)
    request = Request(steps=steps, seed=seed, dtype=dtype, device=device, transport=transport)
    training = _Training(case, request, root, every)
    first = not launch or launch.rank == 0
    try:
        with checkpoints.locked(root) if root and first else nullcontext():
            result = training.run(runner, data, first=first)
    except ScheduleError as error:
        # The other ranks wait for this one.
        if launch is not None:
            external.refuse_external(launch, str(error))
        raise
    return state.by_module(result) if module else result


def _case(file: str | os.PathLike[str] | Case, overrides: Sequence[str], module: Imported | None) -> Case:
    if not isinstance(file, Case):
        return load_case(file, overrides, module=module.model.graph_text if module else '')
    if overrides or module is not None:
        what = 'a case has all its values already'
        raise refusal('overrides' if overrides else 'module', what, 'give the file, or load_case with it')
    return file


def _runner(program: Program, launch: Launch | None, timeout: float, *, virtual: bool, processes: bool) -> Runner:
    validate.validate(program)
    if virtual or not processes:
        return in_process(program, virtual=virtual)
    if launch is not None:
        return of_launch(launch, program, timeout)
    return of_pool(Pool(program.world, timeout=timeout), program)


@dataclass(frozen=True, slots=True)
class _Training:
    """A training from one checkpoint to the next; ``request`` is for all of its steps."""

    case: Case
    request: Request
    root: Path | None
    every: int

    def run(self, runner: Runner, data: Iterable[Given] | None, *, first: bool) -> state.Result:
        """Train. Arguments: ``first``, whether this process speaks for the run."""
        steps, trained = self.request.steps, Trained.of(self.case, self.request.dtype, own=data is not None)
        begun = self._begun(trained, first=first)
        # Of the ranks that a launcher has started, the first alone knows losses.
        losses = begun.losses if begun and first else ()
        done = begun.step if begun else 0
        batches = None if data is None else skipped(data, done)
        source = str(checkpoints.folder_of(self.root, done)) if self.root and begun else ''
        if begun and done >= steps:
            whole = checkpoints.parameters_of(Path(source), begun, self.case.program)
            return state.Result(losses[:steps], whole if first else {}, {})
        last = state.Result((), {}, {})
        with runner as perform:
            while done < steps:
                count = min(self._length(done, data is not None), steps - done)
                until = done + count
                save = str(checkpoints.folder_of(self.root, until)) if self.root else ''
                own = () if batches is None else self._batches(batches, done, count)
                stretch = Stretch(done, source, save, own, losses, trained)
                last = perform(replace(self.request, steps=count, keep=until == steps, stretch=stretch))
                losses, done, source = losses + last.losses, until, ''
        return state.Result(losses, last.parameters, last.gradients)

    def _begun(self, trained: Trained, *, first: bool) -> Contents | None:
        """What the last checkpoint holds; None where there is none."""
        if self.root is None:
            return None
        if first:
            checkpoints.clear(self.root)
        folder = checkpoints.latest(self.root)
        if folder is None:
            return None
        contents = checkpoints.contents_of(folder)
        if contents.seed != self.request.seed:
            what = f'was trained with seed {contents.seed}, not {self.request.seed}'
            raise refusal(folder, what, 'give the same seed, or another folder')
        if contents.trained is not None:
            trained.check(contents.trained, self.case.schedule, folder)
        elif first:
            lacks = 'without digests and without what was trained, neither damage nor another model is noticed'
            print(f'Note: {folder} is of an older simpar: {lacks}', file=sys.stderr, flush=True)
        checkpoints.check_names(folder, contents, self.case.program)
        return contents

    def _length(self, done: int, given: bool) -> int:
        """Steps until the next checkpoint, or until more data are read."""
        if self.root is not None:
            return self.every - done % self.every
        return FEW if given else self.request.steps

    def _batches(self, data: Iterator[Given], done: int, count: int) -> tuple[draws.Batch, ...]:
        batches = tuple(checked(self.case.program, done + at, one) for at, one in enumerate(islice(data, count)))
        if len(batches) < count:
            raise ended(done + len(batches), self.request.steps)
        return batches
