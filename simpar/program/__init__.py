"""Program: the hardware-free list of what every rank does, which the simulator and the executor both interpret."""

from simpar.program.csr import Csr as Csr
from simpar.program.op import OpClass as OpClass
from simpar.program.program import Program as Program
from simpar.program.program import ProgramBuilder as ProgramBuilder
from simpar.program.role import Role as Role
from simpar.program.tensor import Partition as Partition
from simpar.program.tensor import Split as Split
from simpar.program.tensor import Tensor as Tensor
from simpar.program.tensor import grid as grid

__all__ = ['Csr', 'OpClass', 'Partition', 'Program', 'ProgramBuilder', 'Role', 'Split', 'Tensor', 'grid']
