"""Beside: how fast kernels are beside a running collective, by the units of the device that it takes.

A kernel of vector units has the cores and the bandwidth that collectives leave; the scarcer counts. Products and
attention, on cube units, keep their speed in every mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from simpar.hardware import Cluster
from simpar.program import Program

Speeds = tuple[float, float, float]


def speeds_beside(cluster: Cluster, program: Program) -> Speeds:
    """Of matrix kernels and of others beside a collective, and of a collective beside compute.

    A kernel has one speed whatever runs beside it. So of the program's collectives the one that takes most counts, and
    where a message between stages runs alone this is too slow.
    """
    slow_down = cluster.profile.slow_down
    return slow_down.matrix.value, _vector(cluster, program), slow_down.collective.value


def cores_taken(cluster: Cluster, program: Program) -> int:
    """Vector cores that the program's collectives take at most; one is always left."""
    has, taken = cluster.profile.expansion, cluster.taken
    if has is None or has.vector_cores is None or taken is None or not taken.cores:
        return 0
    most = max((taken.cores_of(*found) for found in _collectives(program)), default=0)
    return min(most, int(has.vector_cores.value) - 1)


def mode_notes(cluster: Cluster, program: Program) -> Iterator[str]:
    """What a mode of the library other than the profile's default makes of the answer."""
    has = cluster.profile.expansion
    if has is None or cluster.mode == has.default:
        return
    cores, vector = cores_taken(cluster, program), _vector(cluster, program)
    takes = f'take up to {cores} of {has.vector_cores.value:g} vector cores' if cores and has.vector_cores else ''
    yield (
        f'{cluster.profile.library.name} expands collectives by {cluster.mode}, not {has.default}: they '
        f'{takes or "take no vector core"}, and kernels that are no products run at {vector:.2f} beside them; '
        f'by themselves they last as with {has.default}'
    )


def _vector(cluster: Cluster, program: Program) -> float:
    has, taken = cluster.profile.expansion, cluster.taken
    speed = cluster.profile.slow_down.memory.value
    if taken and taken.bandwidth:
        speed = 1 - taken.bandwidth.value
    cores = cores_taken(cluster, program)
    return min(speed, 1 - cores / has.vector_cores.value) if cores and has and has.vector_cores else speed


def _collectives(program: Program) -> set[tuple[str, int]]:
    """Operators of collectives, and of how many ranks."""
    return {
        (op.operator, program.partitions[op.partition].size) for op in program.op_classes if op.kind == 'collective'
    }
