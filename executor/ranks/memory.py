"""What one rank holds: parameters and states from the start, gradients and activations as ops write and free them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import torch

from executor.ranks.request import Part
from executor.tensors import initial, inputs, kept
from simpar.errors import ProgramError
from simpar.program import OpClass, Program, Tensor
from simpar.program.touches import Instance, instance


class Memory:
    """The tensors of one rank, by name and, where they belong to one, by micro-batch and copy.

    Arguments:
        dtype: takes the place of every floating dtype of the program.
        held: parameters and states as they are; None, as the seed draws them.
    Inputs are drawn when they are first read in a step.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        held: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._program = program
        self._rank = rank
        self._seed = seed
        self._dtype = dtype
        self._tensors: dict[Instance, torch.Tensor] = {
            instance(tensor, 0, 0): initial(program, tensor, rank, seed, dtype) if held is None else held[tensor.name]
            for tensor in kept(program, rank)
        }
        self._drawn: dict[Instance, int] = {}

    def __getitem__(self, key: Instance) -> torch.Tensor:
        return self._tensors[key]

    @property
    def held(self) -> dict[str, torch.Tensor]:
        """Parameters and states, the very tensors."""
        return {tensor.name: self._tensors[tensor.name, -1, -1] for tensor in kept(self._program, self._rank)}

    def read(self, op: OpClass, micro_batch: int, copy: int, step: int) -> list[torch.Tensor]:
        """What an op reads, in order.

        Raises: ProgramError where something was freed or never written.
        """
        return [self._find(op, name, micro_batch, copy, step) for name in op.reads]

    def keep(self, op: OpClass, micro_batch: int, copy: int, results: Sequence[torch.Tensor]) -> None:
        """Store what an op gives: first what it writes, then what it adds to tensors or creates where there is none."""
        for index, (name, result) in enumerate(zip(op.writes + op.accumulates, results, strict=True)):
            key = instance(self._program.tensor[name], micro_batch, copy)
            # The first of several contributions creates the sum, so no op need set it to zero.
            if index >= len(op.writes) and key in self._tensors:
                self._tensors[key].add_(result)
            else:
                self._tensors[key] = result

    def free(self, op: OpClass, micro_batch: int, copy: int) -> None:
        """End what an op frees.

        Raises: ProgramError where it is not there.
        """
        for name in op.frees:
            key = instance(self._program.tensor[name], micro_batch, copy)
            if self._tensors.pop(key, None) is None:
                raise self._absent(op, 'frees', key)

    def _find(self, op: OpClass, name: str, micro_batch: int, copy: int, step: int) -> torch.Tensor:
        tensor = self._program.tensor[name]
        key = instance(tensor, micro_batch, copy)
        if tensor.kind == 'input' and self._drawn.get(key) != step:
            self._tensors[key] = inputs(
                self._program, tensor, self._rank, step, micro_batch, copy, self._seed, self._dtype
            )
            # Last, so that another stream's thread finds this step's tensor or draws the same itself.
            self._drawn[key] = step
        try:
            return self._tensors[key]
        except KeyError:
            raise self._absent(op, 'reads', key) from None

    def _absent(self, op: OpClass, does: str, key: Instance) -> ProgramError:
        name, micro_batch, copy = key
        of = '' if micro_batch < 0 else f' of micro-batch {micro_batch}, copy {copy}'
        return ProgramError(f'{op.name} on rank {self._rank} {does} {name}{of}, which was freed or never written')


FEED_LIMIT = 256 * 2**20
"""Bytes of inputs that are drawn before the first step, so that no op is held up by it."""


def parts(program: Program, tensor: Tensor) -> Iterator[tuple[int, int]]:
    """The micro-batches and copies of an input; one of each where the input is that of a whole step."""
    of_step = bool(tensor.like)
    return product(range(1 if of_step else program.micro_batches), range(1 if of_step else program.copies))


class FedMemory(Memory):
    """A rank's memory that has its inputs drawn before the run starts, as far as they take no more than FEED_LIMIT."""

    def __init__(
        self,
        program: Program,
        rank: int,
        steps: int,
        seed: int,
        dtype: torch.dtype | None,
        first: int = 0,
        held: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(program, rank, seed, dtype, held)
        self._feed: dict[tuple[Part, int], torch.Tensor] = {}
        role = program.role(rank)
        read = {name for index in set(role.op_class.tolist()) for name in program.op_classes[index].reads}
        wanted = [tensor for tensor in program.tensors if tensor.kind == 'input' and tensor.name in read]
        room = FEED_LIMIT
        for step in range(first, first + steps):
            for tensor, (micro_batch, copy) in ((one, part) for one in wanted for part in parts(program, one)):
                shard = inputs(program, tensor, rank, step, micro_batch, copy, seed, dtype)
                room -= shard.nbytes
                # What does not fit is drawn when it is read, a little later than planned but without running out of
                # memory.
                if room < 0:
                    return
                self._feed[(tensor.name, micro_batch, copy), step] = shard

    def _find(self, op: OpClass, name: str, micro_batch: int, copy: int, step: int) -> torch.Tensor:
        # Drawn before the run, so that drawing does not count as time of the op.
        fed = self._feed.get(((name, micro_batch, copy), step))
        return super()._find(op, name, micro_batch, copy, step) if fed is None else fed
