"""What runs the stretches of a training: all ranks in this process, a pool of them, or one that a launcher started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from executor.backend import Pool
from executor.batches import fed
from executor.checkpoint import contents_of, finish, read_rank, write_rank
from executor.contents import Contents, Written
from executor.external import External, of_rank
from executor.handshake import asked
from executor.inprocess import InProcess
from executor.launch import Launch
from executor.memory import Memory
from executor.preflight import bytes_of_ranks
from executor.rank import INIT_TIMEOUT, Outcome, Request
from executor.result import Result
from executor.stretch import Stretch
from executor.tensors import TORCH
from simpar.errors import RunFailed
from simpar.hardware.net import Net
from simpar.program import Program

Perform = Callable[[Request], Result]
Runner = AbstractContextManager[Perform]


def in_process(program: Program) -> Runner:
    """All ranks in this process."""

    @contextmanager
    def runner() -> Iterator[Perform]:
        machine: InProcess | None = None

        def perform(request: Request) -> Result:
            nonlocal machine
            stretch = request.stretch or Stretch()
            if machine is None:
                dtype = TORCH[request.dtype] if request.dtype else None
                machine = InProcess(program, request.seed, dtype, first=stretch.first)
                if stretch.source:
                    folder = Path(stretch.source)
                    contents = contents_of(folder)
                    for rank, held in enumerate(machine.held):
                        read_rank(folder, contents, program, rank, held)
            with fed(stretch.first, stretch.batches):
                result = machine.run(request.steps)
            if stretch.save:
                folder = Path(stretch.save)
                written = [write_rank(folder, program, rank, held) for rank, held in enumerate(machine.held)]
                _finish(program, request, result.losses, written)
            return result

        yield perform

    return runner()


def on_virtual(program: Program) -> Runner:
    """All ranks on virtual accelerators of this process."""

    @contextmanager
    def runner() -> Iterator[Perform]:
        held: list[dict[str, torch.Tensor]] | None = None

        def perform(request: Request) -> Result:
            nonlocal held
            # It makes a device module known to torch, which others do not need.
            from executor.virtual.world import VirtualWorld

            stretch = request.stretch or Stretch()
            if stretch.source:
                folder, dtype = Path(stretch.source), TORCH[request.dtype] if request.dtype else None
                contents = contents_of(folder)
                held = [Memory(program, rank, request.seed, dtype).held for rank in range(program.world)]
                for rank, own in enumerate(held):
                    read_rank(folder, contents, program, rank, own)
            with fed(stretch.first, stretch.batches):
                world = VirtualWorld.of(program, request, held=held)
                result = world.run(keep=request.keep)
            held = [one.held() for one in world.ranks]
            if stretch.save:
                written = [write_rank(Path(stretch.save), program, rank, own) for rank, own in enumerate(held)]
                _finish(program, request, result.losses, written)
            return result

        yield perform

    return runner()


def of_pool(pool: Pool, program: Program) -> Runner:
    """A process a rank, which the pool has started."""

    @contextmanager
    def runner() -> Iterator[Perform]:
        def finished(request: Request, result: Result, outcomes: Sequence[Outcome]) -> None:
            if request.stretch and request.stretch.save:
                _finish(program, request, result.losses, [Written.read(one.written) for one in outcomes])

        with pool:
            yield lambda request: pool.perform(program, request, lambda *found: finished(request, *found))

    return runner()


def of_launch(launch: Launch, program: Program, timeout: float, meet: float = INIT_TIMEOUT) -> Runner:
    """The one rank that this process is; the ranks that are not 0 get empty results."""
    if launch.world != program.world:
        raise RunFailed(f'the job is for {program.world} ranks, but {launch.by} has started {launch.world}')

    @contextmanager
    def runner() -> Iterator[Perform]:
        external: External | None = None

        def perform(request: Request) -> Result:
            nonlocal external
            if external is None:
                external = External(launch, program, timeout, asked(program, request, Net()), meet)
                external.preflight(bytes_of_ranks(program, request.dtype))

            def finished(result: Result, outcomes: Sequence[Outcome]) -> None:
                if request.stretch and request.stretch.save:
                    _finish(program, request, result.losses, [Written.read(one.written) for one in outcomes])

            return external.run(request, Net(), finished) or Result((), {}, {})

        try:
            yield perform
        except RuntimeError as error:
            raise of_rank(launch, error) from error

    return runner()


def _finish(program: Program, request: Request, losses: tuple[float, ...], written: Sequence[Written]) -> None:
    """Make the checkpoint of a stretch whole."""
    stretch = request.stretch or Stretch()
    contents = Contents(
        step=stretch.first + request.steps,
        seed=request.seed,
        program=program.hash,
        losses=(*stretch.losses, *losses),
        tensors={},
        trained=stretch.trained,
    )
    finish(Path(stretch.save), written, contents)
