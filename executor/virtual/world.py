"""All ranks of a program on virtual accelerators of this process, each issued by a host of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from executor.assemble import Execution, assemble_run
from executor.devices.graph import ISSUERS
from executor.devices.issue import Slot
from executor.devices.open import open_device
from executor.rank import Outcome, Request
from executor.single_thread import single_thread
from executor.stretch import Stretch
from executor.tensors import TORCH
from executor.transport import Transport
from executor.validate import communicators
from executor.virtual import state
from executor.virtual.engine import Touch
from executor.virtual.transport import Communicator, VirtualTransport, lanes
from simpar.program import Program
from simpar.program.touches import instance


class VirtualWorld:
    """A program on virtual accelerators.

    Arguments:
        seed: of weights and inputs.
        dtype: takes the place of every floating dtype.
        order: a seed for the order in which streams run; None: they take turns.
        begin: the number that the first step has in the whole training.
        held: of each rank, parameters and states before it; None, as the seed draws them.
        issue: ``eager``, op by op, or ``graph``.
    """

    def __init__(
        self,
        program: Program,
        *,
        steps: int,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        order: int | None = None,
        begin: int = 0,
        held: Sequence[Mapping[str, torch.Tensor]] | None = None,
        issue: str = 'eager',
    ) -> None:
        open_device('virtual')
        self.engine = state.reset(order)
        lanes.clear()
        self._program = program
        self._steps = steps
        transports = _transports(program)
        with single_thread():
            self.ranks = [
                ISSUERS[issue](
                    program,
                    rank,
                    open_device('virtual', rank),
                    transports[rank],
                    steps=steps,
                    seed=seed,
                    dtype=dtype,
                    first=begin,
                    held=held[rank] if held else None,
                    watch=self._touch(rank),
                )
                for rank in range(program.world)
            ]
        for rank in self.ranks:
            for stream, name in zip(rank.streams, program.role(rank.rank).streams, strict=True):
                stream.queue.name = f'{name} of rank {rank.rank}'

    @classmethod
    def of(
        cls,
        program: Program,
        request: Request,
        order: int | None = None,
        held: Sequence[Mapping[str, torch.Tensor]] | None = None,
    ) -> VirtualWorld:
        """What a request asks for."""
        dtype = TORCH[request.dtype] if request.dtype else None
        begin = (request.stretch or Stretch()).first
        steps, seed = request.steps, request.seed
        return cls(
            program, steps=steps, seed=seed, dtype=dtype, order=order, begin=begin, held=held, issue=request.issue
        )

    def run(self, *, keep: bool = True) -> Execution:
        """Train all steps.

        Arguments: ``keep``, whether parameters and gradients come back.

        Raises ``Race`` where memory or a tensor was used without the events that this needs, ``Deadlock`` where no
        stream could go on, ``ProgramError`` where ranks met in different collectives.
        """
        return self.train(0, self._steps, keep=keep)

    def train(self, first: int, count: int, *, keep: bool = True) -> Execution:
        """Train some steps from number ``first`` on; see ``run``."""
        steps = range(first, first + count)
        with single_thread():
            for rank in self.ranks:
                rank.begin(self.engine.now, steps[-1])
            zero = self.engine.now()
            for step in steps:
                self._issue(step)
            for rank in self.ranks:
                rank.finish()
            self.engine.races.check()
            outcomes = [
                Outcome(
                    arrive_KS=rank.arrive_KS[first : steps.stop] - zero,
                    end_KS=rank.end_KS[first : steps.stop] - zero,
                    losses=rank.losses[first : steps.stop],
                    parameters=rank.parameters() if keep else {},
                    gradients=rank.gradients if keep else {},
                )
                for rank in self.ranks
            ]
        return assemble_run(self._program, outcomes, 'real')

    def _issue(self, step: int) -> None:
        """Every host issues the step, none of them waiting for anything in it."""
        for rank in self.ranks:
            rank.keep_near(step)
            state.issuing = True
            rank.issue(step)
            state.issuing = False

    def _touch(self, rank: int) -> Any:
        """What the program's tensors are used for, held against the events as memory is."""
        program = self._program

        def watch(slot: Slot, step: int, stream: Any) -> None:
            op, touches = slot.op, []
            for name in dict.fromkeys((*op.reads, *op.writes, *op.accumulates, *op.frees)):
                tensor = program.tensor[name]
                writes = name in op.writes or name in op.accumulates or name in op.frees
                place = (rank, *instance(tensor, *slot.part))
                touches.append(Touch(place, 0, 1, writes))
            what = f'the tensors of {op.name}'
            stream.queue.whenever(lambda queue: queue.touch_all(touches, what))

        return watch


def _transports(program: Program) -> list[dict[tuple[str, str], Transport]]:
    """For each rank its end of every communicator."""
    found: list[dict[tuple[str, str], Transport]] = [{} for _ in range(program.world)]
    for partition, stream in communicators(program):
        for members in partition.groups_GP.tolist():
            shared = Communicator(f'{partition.name} on {stream}, ranks {members}', len(members))
            for position, rank in enumerate(members):
                found[rank][partition.name, stream] = VirtualTransport(shared, position, rank)
    return found
