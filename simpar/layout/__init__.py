"""Layouts of tensors on ranks, rules by which operators may be sharded, and redistribution between layouts."""

from simpar.layout.frame import Step as Step
from simpar.layout.layout import Axis as Axis
from simpar.layout.layout import Layout as Layout
from simpar.layout.layout import TensorLayout as TensorLayout
from simpar.layout.layout import mapped as mapped
from simpar.layout.layout import replicated as replicated
from simpar.layout.redistribution import Redistribution as Redistribution
from simpar.layout.redistribution import redistribute as redistribute

__all__ = ['Axis', 'Layout', 'Redistribution', 'Step', 'TensorLayout', 'mapped', 'redistribute', 'replicated']
