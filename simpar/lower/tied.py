"""A tied embedding: the first stage embeds with the weight that the last stage's head multiplies with.

Where both stages are on one rank, it is one parameter. Else each has a copy, and both send their gradients to each
other and add them, so that both copies are updated alike. One end sends first and the other receives first, so that
they do not wait for each other where all is on one stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simpar.lower.by_chunk import of_any_chunk
from simpar.lower.mesh import PIPELINE
from simpar.lower.optimizer_parallel import Shards
from simpar.lower.tape import Tape
from simpar.lower.update_shards import local_elements
from simpar.program import OpClass
from simpar.program.tensor import BYTES


@dataclass(frozen=True, slots=True)
class Exchange:
    """The ops of each end: ``ends``, what the end's own ops accumulate by → its send, receive and addition.

    Arguments: ``gradient``, its name; empty: nothing is held twice.
    """

    gradient: str = ''
    ends: tuple[tuple[str, tuple[OpClass, ...]], ...] = ()

    def ops(self, held: set[str], issued: Iterable[OpClass]) -> tuple[OpClass, ...]:
        """What a pipeline rank issues behind its own sum of the gradient.

        Arguments: ``held``, gradients that the rank adds to; ``issued``, its ops so far.
        """
        if self.gradient not in held:
            return ()
        # In a split backward the op that adds may have a name of its own, and so has that of a chunk.
        names = {of_any_chunk(op.name.removesuffix('.split')) for op in issued}
        return next((ops for adder, ops in self.ends if adder in names), ())


def exchange(tape: Tape, shards: Shards) -> Exchange:
    """The exchange of the gradient, or of its shard, that two pipeline ranks accumulate, if there is one."""
    adders: dict[str, list[OpClass]] = {}
    for op in tape.ops:
        for name in op.accumulates:
            adders.setdefault(name, []).append(op)
    for gradient, ops in adders.items():
        places = [tape.mesh.pipeline_rank(op.stage) for op in ops]
        # On one pipeline rank both stages add to one gradient, and nothing has to travel.
        if len(set(places)) == 2:
            (shard,) = shards.held([gradient])
            ends = [
                (op.name, _end(tape, shard, index, places[1 - index] - place, op.stage))
                for index, (op, place) in enumerate(zip(ops, places, strict=True))
            ]
            return Exchange(shard, tuple(ends))
    return Exchange()


def _end(tape: Tape, gradient: str, index: int, offset: int, stage: int) -> tuple[OpClass, ...]:
    tensor = tape.tensors[gradient]
    other = f'{gradient}.other{index}'
    # An activation, so that it is freed by the addition; batch_dim None, as it is one for the whole step.
    tape.tensors[other] = replace(tensor, name=other, kind='activation', like='', batch_dim=None, members=())
    size = float(local_elements(tape, tensor) * BYTES[tensor.dtype])
    send = OpClass(
        name=f'{gradient}.send{index}.W',
        kind='send',
        operator='send',
        phase='W',
        bytes=size,
        dtype=tensor.dtype,
        partition=PIPELINE,
        peer=offset,
        reads=(gradient,),
        stage=stage,
    )
    receive = replace(send, name=f'{gradient}.recv{index}.W', kind='recv', operator='recv', reads=(), writes=(other,))
    add = OpClass(
        name=f'{gradient}.add{index}.W',
        kind='compute',
        operator='add',
        phase='W',
        flops=float(local_elements(tape, tensor)),
        bytes=3 * size,
        dtype=tensor.dtype,
        reads=(gradient, other),
        writes=(gradient,),
        frees=(other,),
        stage=stage,
    )
    # One end receives first: on a single stream two blocking sends would wait for each other for ever.
    return (receive, send, add) if index else (send, receive, add)
