"""What partitions are called: by the degrees whose ranks they are, by axes of a device matrix, or by their axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpar.layout import Axis
from simpar.layout.axis import axes_name, merged, size_of
from simpar.lower.mesh import CONTEXT, CONTEXT_TENSOR, DATA, EXPERT, EXPERT_DATA, STAGE, TENSOR

if TYPE_CHECKING:
    from simpar.lower.tape import Tape


def partition_name(tape: Tape, axes: tuple[Axis, ...]) -> str:
    """The name of the partition into groups along axes."""
    name = _of_degrees(tape).get(axes, '') if tape.degrees else _alias(tape, axes)
    if name:
        return name
    if size_of(axes) < tape.world:
        return axes_name(tape.world, axes)
    # All ranks in another order are another partition: positions in its group differ.
    if list(axes) != sorted(axes, key=lambda axis: -axis.stride):
        return '+'.join(map(str, axes))
    return STAGE if tape.degrees or tape.mesh.pipeline > 1 else axes_name(tape.world, axes)


def _of_degrees(tape: Tape) -> dict[tuple[Axis, ...], str]:
    """By axes; where degrees have the same ranks, the last one counts."""
    known = {tape.data_axes: DATA, tape.tensor_axes: TENSOR}
    if tape.expert_axes and tape.expert_data_axes:
        known |= {tape.expert_axes: EXPERT, tape.expert_data_axes: EXPERT_DATA}
    if tape.context_axes:
        both = merged([*tape.context_axes, *tape.tensor_axes])
        known |= {both: CONTEXT_TENSOR} if size_of(both) < tape.world else {}
        known |= {tape.replica_axes: tape.mesh.summed, tape.context_axes: CONTEXT}
    return known


def _alias(tape: Tape, axes: tuple[Axis, ...]) -> str:
    if tape.names is None:
        return ''
    known = {tape.names.axis(alias): alias for alias in tape.names.aliases}
    return '+'.join(known[axis] for axis in axes) if all(axis in known for axis in axes) else ''
