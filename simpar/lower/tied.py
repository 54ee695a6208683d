"""A tied embedding: the first stage embeds with the weight that the last stage's head multiplies with.

Where both stages are on one rank, it is one parameter. Else each has a copy, and both send their gradients to each
other and add them, so that both copies are updated alike. One end sends first and the other receives first, so that
they do not wait for each other where all is on one stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from simpar.errors import Infeasible
from simpar.lower.by_chunk import of_any_chunk
from simpar.lower.mesh import PIPELINE
from simpar.lower.optimizer_parallel import Shards
from simpar.lower.tape import Tape
from simpar.lower.update_shards import local_elements
from simpar.program import OpClass
from simpar.program.tensor import BYTES


@dataclass(frozen=True, slots=True)
class End:
    """What a pipeline rank issues for a gradient that another one has, too.

    Arguments: ``gradient``, its name; ``adders``, the rank's own ops that add to it; ``ops``, send, receive and
    addition.
    """

    gradient: str
    adders: frozenset[str]
    ops: tuple[OpClass, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """All gradients that two pipeline ranks have, in an order that is the same on both."""

    ends: tuple[End, ...] = ()

    def ops(self, held: Collection[str], issued: Iterable[OpClass]) -> tuple[OpClass, ...]:
        """What a pipeline rank issues behind its own sums of the gradients.

        Arguments: ``held``, gradients that the rank adds to; ``issued``, its ops so far.
        """
        ends = [end for end in self.ends if end.gradient in held]
        # In a split backward the op that adds may have a name of its own, and so has that of a chunk.
        names = {of_any_chunk(op.name.removesuffix('.split')) for op in issued} if ends else set()
        return tuple(op for end in ends if not names.isdisjoint(end.adders) for op in end.ops)


def exchange(tape: Tape, shards: Shards) -> Exchange:
    """The exchange of every gradient, or of its shard, that two pipeline ranks accumulate.

    Raises ``Infeasible`` where more than two do.
    """
    adders: dict[str, list[OpClass]] = {}
    for op in tape.ops:
        for name in op.accumulates:
            adders.setdefault(name, []).append(op)
    ends: list[End] = []
    for gradient, ops in adders.items():
        places: dict[int, list[OpClass]] = {}
        for op in ops:
            places.setdefault(tape.mesh.pipeline_rank(op.stage), []).append(op)
        # On one pipeline rank all stages add to one gradient, and nothing has to travel.
        if len(places) == 1:
            continue
        if len(places) > 2:
            weight = gradient.removeprefix('d:')
            raise Infeasible(
                f'plan.pipeline: not yet: {weight} is read on {len(places)} pipeline ranks, and a weight is shared '
                f'by two at most; write a lower degree'
            )
        (shard,) = shards.held([gradient])
        one, other = places
        for index, (place, offset) in enumerate(((one, other - one), (other, one - other))):
            own = places[place]
            made = _end(tape, shard, index, offset, own[0].stage)
            ends.append(End(shard, frozenset(op.name for op in own), made))
    return Exchange(tuple(ends))


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
