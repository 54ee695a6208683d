"""What one rank holds: parameters and states from the start, gradients and activations as ops write and free them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from executor.pieces import kept
from executor.tensors import initial, inputs
from simpar.errors import ProgramError
from simpar.program import OpClass, Program
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
