"""Who started this process as which rank: torchrun, msrun, an MPI's mpirun or Slurm, told by the variables they set.

A launcher that is recognised in part is refused: else every process of its would run the whole job by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simpar.errors import RunFailed

PORT: Final = 29500
"""Where rank 0's store is when nobody says: torch.distributed's own choice."""
LOCAL: Final = ('localhost', '127.0.0.1', '::1')


@dataclass(frozen=True, slots=True)
class Launch:
    """One rank of a world that somebody else has started.

    Arguments:
        by: who started it.
        host, port: where the store is at which all ranks meet.
        served: whether the launcher itself serves that store, else rank 0 does.
        idle: whether this process is no rank and should end at once.
    """

    by: str
    rank: int
    world: int
    host: str
    port: int
    served: bool = False
    idle: bool = False

    @property
    def local(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.host in LOCAL

    def __str__(self) -> str:
        return f'rank {self.rank} of {self.world}, started by {self.by}; all meet at {self.host}:{self.port}'


MARKS: Final = {
    'RANK': 'torchrun',
    'WORLD_SIZE': 'torchrun',
    'LOCAL_RANK': 'torchrun',
    'TORCHELASTIC_RUN_ID': 'torchrun',
    'MS_NODE_ID': 'msrun',
    'MS_WORKER_NUM': 'msrun',
    'OMPI_COMM_WORLD_RANK': "Open MPI's mpirun",
    'OMPI_COMM_WORLD_SIZE': "Open MPI's mpirun",
    'PMIX_RANK': 'a launcher with PMIx',
    'PMI_RANK': 'a launcher with PMI (MPICH, Intel MPI)',
    'PMI_SIZE': 'a launcher with PMI (MPICH, Intel MPI)',
    'PMI_FD': 'a launcher with PMI (MPICH, Intel MPI)',
    'PMI_PORT': 'a launcher with PMI (MPICH, Intel MPI)',
    'MPI_LOCALRANKID': 'a launcher with PMI (MPICH, Intel MPI)',
    'MV2_COMM_WORLD_RANK': 'a launcher with PMI (MVAPICH2)',
}
"""Variables that only a launcher sets, and who that is."""


def detect(variables: Mapping[str, str]) -> Launch | None:
    """The launch that the environment tells of; None where this process was started by hand.

    Raises ``RunFailed`` where variables are there but do not say enough.
    """
    # Slurm last: the others are often started inside of a Slurm job, whose variables are there too.
    for launcher in (_torchrun, _msrun, _open_mpi, _pmi, _slurm):
        if (launch := launcher(variables)) is not None:
            return _checked(launch)
    found = [name for name in MARKS if name in variables]
    if found:
        raise RunFailed(
            f'{MARKS[found[0]]} seems to have started this process ({", ".join(found)} set), but rank and number of '
            'ranks are not both told; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in every process, or give '
            '--nproc N to start all ranks from here'
        )
    return None


def _checked(launch: Launch) -> Launch:
    """The launch, if its rank is one of its ranks."""
    if not launch.idle and not 0 <= launch.rank < launch.world:
        raise RunFailed(
            f'{launch.by} says rank {launch.rank} of {launch.world}; ranks go from 0 to their number less 1'
        )
    if not 0 < launch.port < 65536:
        raise RunFailed(f'{launch.by} says port {launch.port}; ports go from 1 to 65535')
    return launch


def _torchrun(variables: Mapping[str, str]) -> Launch | None:
    if 'RANK' not in variables or 'WORLD_SIZE' not in variables:
        return None
    # torchrun's agent may serve the store already; a second one would find the port taken.
    served = variables.get('TORCHELASTIC_USE_AGENT_STORE', '').lower() == 'true'
    by = 'torchrun' if 'TORCHELASTIC_RUN_ID' in variables else 'RANK and WORLD_SIZE'
    host, port = _meeting(variables, 'localhost')
    return Launch(by, _number(variables, 'RANK'), _number(variables, 'WORLD_SIZE'), host, port, served)


def _msrun(variables: Mapping[str, str]) -> Launch | None:
    """MindSpore's dynamic cluster; it also starts a scheduler, which has nothing to do here."""
    if 'MS_WORKER_NUM' not in variables:
        return None
    host = variables.get('MS_SCHED_HOST', 'localhost')
    port = _number(variables, 'MS_SCHED_PORT') if 'MS_SCHED_PORT' in variables else PORT
    world = _number(variables, 'MS_WORKER_NUM')
    if variables.get('MS_ROLE') == 'MS_SCHED':
        return Launch('msrun', -1, world, host, port, idle=True)
    if 'MS_NODE_ID' not in variables:
        raise RunFailed('msrun gave no MS_NODE_ID; give it --node_rank, so that it numbers the workers')
    return Launch('msrun', _number(variables, 'MS_NODE_ID'), world, host, port)


def _open_mpi(variables: Mapping[str, str]) -> Launch | None:
    if 'OMPI_COMM_WORLD_RANK' not in variables:
        return None
    world, local = _number(variables, 'OMPI_COMM_WORLD_SIZE'), variables.get('OMPI_COMM_WORLD_LOCAL_SIZE', '')
    return _of_mpi('mpirun', _number(variables, 'OMPI_COMM_WORLD_RANK'), world, local, variables)


def _pmi(variables: Mapping[str, str]) -> Launch | None:
    """MPICH and Intel MPI (hydra), MVAPICH2, and Slurm where it is asked for PMI-2."""
    for rank, size, local in (
        ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALNRANKS'),
        ('MV2_COMM_WORLD_RANK', 'MV2_COMM_WORLD_SIZE', 'MV2_COMM_WORLD_LOCAL_SIZE'),
    ):
        if rank in variables and size in variables:
            world = _number(variables, size)
            return _of_mpi('mpiexec', _number(variables, rank), world, variables.get(local, ''), variables)
    return None


def _of_mpi(by: str, rank: int, world: int, local: str, variables: Mapping[str, str]) -> Launch:
    """The launch of an MPI, which does not tell the host of rank 0.

    Arguments: ``local``, ranks on this host, as the launcher tells it.
    """
    host, port = 'localhost', PORT
    # The host matters only if there are several.
    if local != str(world) and 'MASTER_ADDR' not in variables:
        nodes = _nodes(variables)
        if not nodes:
            several = f'{by} on several hosts' if local else f'{by} that does not tell how many ranks are on a host'
            raise RunFailed(
                f'{several}: set MASTER_ADDR to the host of rank 0 ({by} '
                f'{"-x MASTER_ADDR=..." if by == "mpirun" else "-genv MASTER_ADDR ..."})'
            )
        host, port = first_host(nodes), _port_of_job(variables)
    host, port = _meeting(variables, host, port)
    return Launch(by, rank, world, host, port)


def _slurm(variables: Mapping[str, str]) -> Launch | None:
    """A task of srun; a batch script alone has no step, and starts ranks of its own."""
    if 'SLURM_PROCID' not in variables or not {'SLURM_STEP_ID', 'SLURM_STEPID'} & variables.keys():
        return None
    host, port = _meeting(variables, first_host(_nodes(variables) or 'localhost'), _port_of_job(variables))
    world = 'SLURM_STEP_NUM_TASKS' if 'SLURM_STEP_NUM_TASKS' in variables else 'SLURM_NTASKS'
    return Launch('srun', _number(variables, 'SLURM_PROCID'), _number(variables, world), host, port)


def _nodes(variables: Mapping[str, str]) -> str:
    """Slurm's list of hosts; empty outside of Slurm."""
    return variables.get('SLURM_STEP_NODELIST') or variables.get('SLURM_JOB_NODELIST', '')


def _port_of_job(variables: Mapping[str, str]) -> int:
    """Jobs that share a node should not meet at one port."""
    return PORT + (_number(variables, 'SLURM_JOB_ID') % 1000 if 'SLURM_JOB_ID' in variables else 0)


def first_host(nodes: str) -> str:
    """The first host of Slurm's list, e.g. ``node01`` of ``node[01-04,07],other``."""
    # Slurm writes lists of hosts in brackets; only the first host is needed.
    match = re.match(r'([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?', nodes)
    return f'{match[1]}{match[2] or ""}{match[3] or ""}' if match else nodes


def _meeting(variables: Mapping[str, str], host: str, port: int = PORT) -> tuple[str, int]:
    if 'MASTER_PORT' in variables:
        port = _number(variables, 'MASTER_PORT')
    return variables.get('MASTER_ADDR', host), port


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except (KeyError, ValueError):
        found = f'is {variables[name]!r}' if name in variables else 'is missing'
        raise RunFailed(f'the environment variable {name} {found}; it must be a whole number') from None
