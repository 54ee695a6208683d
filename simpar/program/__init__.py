"""Program: the hardware-free list of what every rank does, which the simulator and the executor both interpret."""

from simpar.program.collectives import COLLECTIVES
from simpar.program.csr import Csr, ranges
from simpar.program.needs import Instance, derive, instance, named_by, touches_of
from simpar.program.op import OP_KINDS, Attribute, OpClass, OpKind, Phase, computes, receives, transfers
from simpar.program.program import Program, ProgramBuilder
from simpar.program.role import Role, Slots, Template, plain_slots
from simpar.program.tensor import (
    BYTES,
    KINDS,
    PER_RANK,
    Partition,
    Split,
    Tensor,
    TensorKind,
    grid,
    is_batched,
    kind_number,
)
from simpar.program.turns import NONE, Kind, Turns, unlike
