"""Program: the hardware-free list of what every rank does, which the simulator and the executor both interpret."""

from simpar.program.collectives import COLLECTIVES, COPY
from simpar.program.op import (
    BYTES,
    KINDS,
    OP_KINDS,
    PER_RANK,
    Attribute,
    OpClass,
    OpKind,
    Partition,
    Phase,
    Split,
    Tensor,
    TensorKind,
    computes,
    grid,
    is_batched,
    kind_number,
    receives,
    transfers,
)
from simpar.program.program import NONE, Kind, Program, ProgramBuilder, Turns, unlike
from simpar.program.role import (
    Csr,
    Instance,
    Role,
    Slots,
    derive,
    instance,
    named_by,
    ranges,
)
