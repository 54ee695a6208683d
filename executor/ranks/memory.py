"""What one rank holds: parameters and states from the start, gradients and activations as ops write and free them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final

import torch

from executor.checkpoint import contents_of, read_rank
from executor.draws import Batch
from executor.ranks.request import Part, Request, Stretch
from executor.tensors import TORCH, initial, inputs, kept
from simpar.errors import ProgramError
from simpar.program import OpClass, Program, Tensor
from simpar.program.needs import Instance, instance

FEED_LIMIT: Final = 256 * 2**20
"""Bytes of inputs that are drawn before the first step, so that no op is held up by it."""


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What a rank of a run begins with.

    Arguments:
        seed: of weights and inputs.
        dtype: takes the place of every floating dtype of the program; None keeps the program's own.
        steps: how many will run.
        first: the number that the first of them has in the whole training.
        held: parameters and states before it; None, as the seed draws them.
        batches: the user's own, by step, in place of drawn ones.
    """

    program: Program
    rank: int
    seed: int = 0
    dtype: torch.dtype | None = None
    steps: int = 1
    first: int = 0
    held: Mapping[str, torch.Tensor] | None = None
    batches: Mapping[int, Batch] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, rank: int, request: Request, held: Mapping[str, torch.Tensor] | None = None) -> Start:
        """What a request says.

        Arguments: ``held``, what the stretch before has left; a checkpoint takes its place.
        """
        stretch, dtype = request.stretch or Stretch(), TORCH[request.dtype] if request.dtype else None
        if stretch.source:
            folder, held = Path(stretch.source), Memory(cls(program, rank, request.seed, dtype)).held
            read_rank(folder, contents_of(folder), program, rank, held)
        elif not stretch.first:
            held = None
        batches = dict(enumerate(stretch.batches, stretch.first))
        return cls(program, rank, request.seed, dtype, request.steps, stretch.first, held, batches)

    def shard(self, tensor: Tensor, step: int, micro_batch: int, copy: int) -> torch.Tensor:
        """The rank's shard of an input."""
        return inputs(self.program, tensor, self.rank, step, micro_batch, copy, self.seed, self.dtype, self.batches)


class Memory:
    """The tensors of one rank, by name and, where they belong to one, by micro-batch and copy.

    Inputs are drawn when they are first read in a step.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._program = program = start.program
        self._rank = rank = start.rank
        self._tensors: dict[Instance, torch.Tensor] = {
            instance(tensor, 0, 0): initial(program, tensor, rank, start.seed, start.dtype)
            if start.held is None
            else start.held[tensor.name]
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
            self._tensors[key] = self._start.shard(tensor, step, micro_batch, copy)
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


class FedMemory(Memory):
    """A rank's memory that has its inputs drawn before the run starts, as far as they take no more than FEED_LIMIT."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._feed: dict[tuple[Part, int], torch.Tensor] = {}
        room = FEED_LIMIT
        for step in range(start.first, start.first + start.steps):
            for tensor, micro_batch, copy in self._inputs_of_step():
                shard = start.shard(tensor, step, micro_batch, copy)
                room -= shard.nbytes
                # What does not fit is drawn when it is read, a little later than planned but without running out of
                # memory.
                if room < 0:
                    return
                self._feed[(tensor.name, micro_batch, copy), step] = shard

    def _inputs_of_step(self) -> Iterator[tuple[Tensor, int, int]]:
        """The inputs that the rank's ops read, with micro-batch and copy; one of each where the input is a step's."""
        program, classes = self._program, set(self._program.role(self._rank).op_class.tolist())
        read = {name for index in classes for name in program.op_classes[index].reads}
        for tensor in program.tensors:
            if tensor.kind == 'input' and tensor.name in read:
                counts = (1, 1) if tensor.like else (program.micro_batches, program.copies)
                for micro_batch, copy in product(*map(range, counts)):
                    yield tensor, micro_batch, copy

    def _find(self, op: OpClass, name: str, micro_batch: int, copy: int, step: int) -> torch.Tensor:
        # Drawn before the run, so that drawing does not count as time of the op.
        fed = self._feed.get(((name, micro_batch, copy), step))
        return super()._find(op, name, micro_batch, copy, step) if fed is None else fed
