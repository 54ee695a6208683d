"""The in-process machine: all ranks of a program in one process, collectives as tensor arithmetic.

It keeps the semantics of every machine, time aside: streams are in order, an op starts when its needs have finished, a
collective when its last participant has arrived, and steps follow one another without a barrier.
"""

from collections.abc import Sequence

import torch

from executor import draws, state, validate, walk
from executor.ranks.real import Computation, Memory, Start
from executor.tensors import all_gather, all_reduce, all_to_all, reduce_scatter
from simpar.errors import Deadlock, ProgramError
from simpar.program import COLLECTIVES, COPY, OpClass, Program

Messages = Sequence[list[torch.Tensor]]


def communicate(ops: Sequence[OpClass], messages: Messages) -> list[list[torch.Tensor]]:
    """Carry out a communication; return what every participant gets, by seat.

    Raises: ProgramError where the participants are in different collectives or bring tensors of different shapes.
    """
    op = ops[0]
    if op.kind == 'send':
        # A copy: ranks of this process must not share memory, as ranks of two processes do not.
        return [[], [tensor.clone() for tensor in messages[0]]]
    for other, message in zip(ops, messages, strict=True):
        # Real ranks would hang or get wrong numbers here without any error.
        if _form(other, message) != _form(op, messages[0]):
            raise ProgramError(
                f'ranks meet in different collectives: {op.name} {_form(op, messages[0])} and '
                f'{other.name} {_form(other, message)}'
            )
    if op.operator == COPY:
        return [[tensor.clone() for tensor in message] for message in messages]
    if op.operator == 'all_reduce':
        return all_reduce(messages, op.reduce)
    if op.operator == 'all_to_all':
        return _by_seat([all_to_all(tensors, *validate.exchange_of(op)) for tensors in zip(*messages, strict=True)])
    if op.operator == 'send_recv':
        # From the one before; a copy, as of a send.
        return [[tensor.clone() for tensor in messages[seat - 1]] for seat in range(len(messages))]
    several = list(zip(zip(*messages, strict=True), validate.dims_of(op), strict=True))
    if op.operator == 'all_gather':
        return _by_seat([all_gather(shards, dim) for shards, dim in several])
    if op.operator == 'reduce_scatter':
        return _by_seat([reduce_scatter(fulls, dim, op.reduce) for fulls, dim in several])
    raise ProgramError(f'{op.name}: no collective is called {op.operator!r}; there are {", ".join(COLLECTIVES)}')


def _by_seat(results: Sequence[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Results by tensor and seat as results by seat and tensor."""
    return [list(tensors) for tensors in zip(*results, strict=True)]


def _form(op: OpClass, message: list[torch.Tensor]) -> tuple[object, ...]:
    """What all participants must agree on."""
    return (op.operator, op.reduce, validate.along(op), *(tuple(tensor.shape) for tensor in message))


class InProcess(walk.Walk):
    """Runs a program with real tensors.

    Arguments:
        seed: the seed of weights and inputs.
        dtype: takes the place of every floating dtype; None keeps the program's own.
        room: bytes that each device has; 0: as many as it needs.
        starts: what each rank begins with, in place of all these.
    """

    def __init__(
        self, program: Program, seed: int = 0, dtype: torch.dtype | None = torch.float64, *, room: int = 0,
        starts: Sequence[Start] = (),
    ) -> None:  # fmt: skip
        super().__init__(program)
        starts = starts or [Start(program, rank, seed, dtype, room=room) for rank in range(program.world)]
        self._ranks = [Computation(start, Memory(start)) for start in starts]
        self._done = 0

    def run(self, steps: int = 1) -> state.Result:
        """Train ``steps`` more steps.

        Raises: Deadlock where no stream can go on; ProgramError where an op reads what is not there or ranks meet in
        different collectives; NumericsWrong where replicas of a tensor differ.
        """
        first, self._done = self._done, self._done + steps
        for rank in self._ranks:
            rank.remembered = self._done - 1
        # Backward ops are part of the program, so autograd would only hold memory.
        with torch.no_grad(), draws.single_thread():
            if left := self.walk(self._done):
                raise Deadlock('\n  '.join(['no stream can go on:', *self.draw(left)]))
        losses = [[rank.losses.pop(step, {}) for step in range(first, self._done)] for rank in self._ranks]
        parameters = [rank.parameters() for rank in self._ranks]
        return state.full_result(self._program, losses, parameters, [rank.gradients for rank in self._ranks])

    @property
    def held(self) -> list[dict[str, torch.Tensor]]:
        """Parameters and states of every rank, the very tensors."""
        return [rank.memory.held for rank in self._ranks]

    def perform(self, together: Sequence[walk.Stream]) -> None:
        """Run a kernel, or carry out a communication for all its participants."""
        if together[0].head.op.kind == 'compute':
            (stream,) = together
            self._ranks[stream.rank].compute(stream.head, stream.step)
            return
        reads = [self._ranks[stream.rank].reads(stream.head, stream.step) for stream in together]
        results = communicate([stream.head.op for stream in together], reads)
        for stream, result in zip(together, results, strict=True):
            self._ranks[stream.rank].keep(stream.head, result)
