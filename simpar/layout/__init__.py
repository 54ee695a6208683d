"""Layouts of tensors on ranks, rules by which operators may be sharded, and redistribution between layouts."""

from simpar.layout.layout import (
    Axis,
    Layout,
    State,
    Step,
    StepKind,
    TensorLayout,
    axes_name,
    group_of,
    mapped,
    matrix_axes,
    merged,
    minus,
    rank_groups,
    replicated,
    size_of,
    union,
)
from simpar.layout.operators import ONE, Placed, Rule, Strategy, reshape
from simpar.layout.redistribution import Method, Part, Redistribution, redistribute
