"""Over which ranks optimizer parallelism shards a parameter: those that hold the same slice of it."""

from __future__ import annotations

from simpar.errors import Infeasible
from simpar.layout.axis import minus
from simpar.lower.tape import Tape
from simpar.program import Partition


def partial_gradients(tape: Tape) -> set[str]:
    """Parameters whose gradients are also to be summed over the tensor ranks, where these shard nothing."""
    if not tape.degrees or not tape.tensor_axes:
        return set()
    copies, tensor = tape.replica_axes, tape.tensor_axes
    return {name for name, axes in tape.pending.items() if minus(axes, copies) or axes == tensor}


def sharding(tape: Tape, parameter: str) -> tuple[str, str]:
    """The partition that a parameter can be sharded over, and the one over which shards are replicated.

    Empty: none. Raises ``Infeasible`` where the group does not divide the ranks with the same slice.
    """
    if tape.degrees and not _holds_experts(tape, parameter):
        return tape.mesh.sharding
    mirror = tape.groups(tape.expert_data_axes if tape.degrees else tape.layouts[parameter].unsharded_axes)
    size = min(tape.shard_group or mirror.size, mirror.size)
    if mirror.size % size:
        raise Infeasible(
            f'plan.shard_group: {size} does not divide the {mirror.size} ranks with the same slice of {parameter}; '
            'choose a divisor, or 0 for all'
        )
    if size in (1, mirror.size):
        return (tape.registered(mirror) if size > 1 else ''), ''
    groups = mirror.groups_GP.reshape(-1, mirror.size // size, size)
    # Neighbours shard, those at equal places replicate, as in ``Mesh.partitions``.
    near = Partition(f'{mirror.name}.shard', groups.reshape(-1, size))
    far = Partition(f'{mirror.name}.replica', groups.swapaxes(1, 2).reshape(-1, mirror.size // size))
    return tape.registered(near), tape.registered(far)


def _holds_experts(tape: Tape, parameter: str) -> bool:
    """Whether the data ranks that share experts hold different ones of a parameter."""
    return bool(tape.expert_axes) and tape.expert_axes in tape.layouts[parameter].dims
