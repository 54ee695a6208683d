"""Who started this process as which rank: torchrun, msrun, an MPI, Slurm or Kubernetes, told by the variables they set.

A launcher that is recognised in part is refused: else every process of its would run the whole job by itself.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from simpar.errors import RunFailed
from simpar.files import read_csv
from simpar.hardware import Placement

MOST: Final = 100_000
"""Hosts of a list that are read; a name is wanted for a message, and nobody has more."""


def nodes_of(variables: Mapping[str, str]) -> str:
    """The list of hosts; empty outside of Slurm."""
    return variables.get('SLURM_STEP_NODELIST') or variables.get('SLURM_JOB_NODELIST', '')


def first_host(nodes: str) -> str:
    """The first host of a list, e.g. ``node01`` of ``node[01-04,07],other``."""
    return next(_hosts(nodes), nodes)


def hosts_of_ranks(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The host of each task of a step, rank by rank; empty where the variables do not tell."""
    counts = variables.get('SLURM_STEP_TASKS_PER_NODE') or variables.get('SLURM_TASKS_PER_NODE', '')
    # Else ranks go round the hosts; then no name is better than a wrong one.
    if not variables.get('SLURM_DISTRIBUTION', 'block').startswith('block') or not re.fullmatch(_COUNTS, counts):
        return ()
    many: list[int] = []
    for count, times in re.findall(r'(\d+)(?:\(x(\d+)\))?', counts):
        many += [int(count)] * min(int(times or 1), MOST - len(many))
    hosts = list(_hosts(nodes_of(variables)))
    if len(hosts) != len(many) or sum(many) > MOST:
        return ()
    return tuple(host for host, count in zip(hosts, many, strict=True) for _ in range(count))


_COUNTS: Final = r'\d{1,6}(\(x\d{1,6}\))?(,\d{1,6}(\(x\d{1,6}\))?)*'
_ITEM: Final = re.compile(r'(?:[^,\[]|\[[^\]]*\])+')
_BRACKET: Final = re.compile(r'\[([^\]]*)\]')


def _hosts(nodes: str) -> Iterator[str]:
    """All hosts of a list, in its order."""
    count = 0
    for item in _ITEM.findall(nodes):
        parts = _BRACKET.split(item)
        # Text and what stands in brackets take turns.
        choices = [_numbers(part) if index % 2 else iter([part]) for index, part in enumerate(parts)]
        # ``product`` reads its arguments to the end, so that large ranges are cut before.
        for words in product(*choices):
            yield ''.join(words)
            count += 1
            if count >= MOST:
                return


def _numbers(text: str) -> Iterator[str]:
    """``01``, ``02``, ``07`` of ``01-02,07``."""
    for part in text.split(','):
        first, _, last = part.partition('-')
        if not last:
            yield first
        elif first.isdigit() and last.isdigit():
            for number in range(int(first), min(int(last), int(first) + MOST) + 1):
                yield f'{number:0{len(first)}}'


# Who started this process as which rank: torchrun, msrun, an MPI, Slurm or Kubernetes, told by the variables they
# set.

PORT: Final = 29500
"""Where rank 0's store is when nobody says: torch.distributed's own choice."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One rank of a world that somebody else has started.

    Arguments:
        by: who started it.
        host, port: where the store is at which all ranks meet.
        served: whether the launcher itself serves that store, else rank 0 does.
        idle: whether this process is no rank and should end at once.
        hosts: the names of the hosts, rank by rank, where the launcher tells them.
        per_host: how many ranks it has started on each host, 0 where it does not tell.
        noun: what meets, ranks or hosts.
        started: the launcher's own number of this rank, where a placement gives it another.
    """

    by: str
    rank: int
    world: int
    host: str
    port: int
    served: bool = False
    idle: bool = False
    hosts: tuple[str, ...] = field(default=(), compare=False)
    per_host: int = field(default=0, compare=False)
    noun: str = field(default='rank', compare=False)
    started: int | None = field(default=None, compare=False)

    def placed(self, placement: Placement | None) -> 'Launch':
        """The same process as the rank of a plan that is on its device: a launcher numbers devices, host by host."""
        if placement is None:
            return self
        devices = placement.devices(np.arange(self.world))
        hosts = tuple([self.where(device) for device in devices.tolist()])
        rank = int(np.argsort(devices)[self.rank])
        return replace(self, rank=rank, started=self.rank, hosts=hosts, per_host=0)

    def where(self, rank: int) -> str:
        """What a rank's host is called; empty where nobody knows."""
        if rank < len(self.hosts):
            return self.hosts[rank]
        return f'host {rank // self.per_host}' if 0 < self.per_host < self.world else ''

    def __str__(self) -> str:
        return f'rank {self.rank} of {self.world}, started by {self.by}; all meet at {self.host}:{self.port}'


MARKS: Final = {row['variable']: row['launcher'] for row in read_csv(Path(__file__).with_name('launchers.csv'))}
"""Variables that only a launcher sets, and who that is."""


def is_launched(variables: Mapping[str, str]) -> bool:
    """Whether a launcher seems to have started this process as a rank."""
    return not MARKS.keys().isdisjoint(variables) or 'SLURM_PROCID' in variables


def detect(variables: Mapping[str, str]) -> Launch | None:
    """The launch that the environment tells of; None where this process was started by hand.

    Raises ``RunFailed`` where variables are there but do not say enough.
    """
    # Slurm last: the others are often started inside of a Slurm job, whose variables are there too.
    for launcher in (_torchrun, _msrun, _mpi, _slurm, _volcano, _indexed_job):
        if (launch := launcher(variables)) is not None:
            return _checked(launch)
    names = [name for name in MARKS if name in variables]
    if names:
        raise RunFailed(
            f'{MARKS[names[0]]} seems to have started this process ({", ".join(names)} set), but rank and number of '
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
    _refuse_a_pod(variables)
    # torchrun's agent may serve the store already; a second one would find the port taken.
    served = variables.get('TORCHELASTIC_USE_AGENT_STORE', '').lower() == 'true'
    by = 'torchrun' if 'TORCHELASTIC_RUN_ID' in variables else 'RANK and WORLD_SIZE'
    host, port = _meeting(variables, 'localhost')
    rank, world = _number(variables, 'RANK'), _number(variables, 'WORLD_SIZE')
    return Launch(by, rank, world, host, port, served, per_host=_several(variables, 'LOCAL_WORLD_SIZE'))


def _refuse_a_pod(variables: Mapping[str, str]) -> None:
    """Kubeflow's RANK is that of the pod; where a pod is to have several ranks, torchrun must start them."""
    if _several(variables, 'PET_NPROC_PER_NODE') > 1 and 'TORCHELASTIC_RUN_ID' not in variables:
        raise RunFailed(
            f'PyTorchJob asks for {variables["PET_NPROC_PER_NODE"]} ranks in each pod, but started one; write torchrun '
            'before -m executor, which reads the variables PET_...'
        )


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


def _mpi(variables: Mapping[str, str]) -> Launch | None:
    """Open MPI; MPICH and Intel MPI (hydra), MVAPICH2, and Slurm where it is asked for PMI-2."""
    for by, rank, size, local in (
        ('mpirun', 'OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE'),
        ('mpiexec', 'PMI_RANK', 'PMI_SIZE', 'MPI_LOCALNRANKS'),
        ('mpiexec', 'MV2_COMM_WORLD_RANK', 'MV2_COMM_WORLD_SIZE', 'MV2_COMM_WORLD_LOCAL_SIZE'),
    ):
        if rank in variables and (size in variables or by == 'mpirun'):
            world = _number(variables, size)
            return _of_mpi(by, _number(variables, rank), world, variables.get(local, ''), variables)
    return None


def _volcano(variables: Mapping[str, str]) -> Launch | None:
    """A pod of a Volcano job with the plugins env and svc, one rank a pod."""
    lists = [name for name in variables if re.fullmatch(r'VC_\w+_HOSTS', name)]
    index = next((name for name in ('VC_TASK_INDEX', 'VK_TASK_INDEX') if name in variables), '')
    # Of several tasks, none says which is ours: then the plugin pytorch, which sets RANK, is needed.
    if not index or len(lists) != 1:
        return None
    hosts = tuple(variables[lists[0]].split(','))
    host, port = _meeting(variables, hosts[0])
    return Launch('Volcano', _number(variables, index), len(hosts), host, port, hosts=hosts)


def _indexed_job(variables: Mapping[str, str]) -> Launch | None:
    """A pod of an indexed job of Kubernetes, one rank a pod; the job's file tells size and address."""
    if not {'JOB_COMPLETION_INDEX', 'WORLD_SIZE', 'MASTER_ADDR'} <= variables.keys():
        return None
    host, port = _meeting(variables, '')
    world = _number(variables, 'WORLD_SIZE')
    return Launch('an indexed job', _number(variables, 'JOB_COMPLETION_INDEX'), world, host, port)


def _of_mpi(by: str, rank: int, world: int, local: str, variables: Mapping[str, str]) -> Launch:
    """The launch of an MPI, which does not tell the host of rank 0.

    Arguments: ``local``, ranks on this host, as the launcher tells it.
    """
    host, port = 'localhost', PORT
    # The host matters only if there are several.
    if local != str(world) and 'MASTER_ADDR' not in variables:
        nodes = nodes_of(variables)
        if not nodes:
            several = f'{by} on several hosts' if local else f'{by} that does not tell how many ranks are on a host'
            raise RunFailed(
                f'{several}: set MASTER_ADDR to the host of rank 0 ({by} '
                f'{"-x MASTER_ADDR=..." if by == "mpirun" else "-genv MASTER_ADDR ..."})'
            )
        host, port = first_host(nodes), _port_of_job(variables)
    host, port = _meeting(variables, host, port)
    return Launch(by, rank, world, host, port, per_host=int(local) if local.isdigit() else 0)


def _slurm(variables: Mapping[str, str]) -> Launch | None:
    """A task of srun; a batch script alone has no step, and starts ranks of its own."""
    if 'SLURM_PROCID' not in variables or not {'SLURM_STEP_ID', 'SLURM_STEPID'} & variables.keys():
        return None
    host, port = _meeting(variables, first_host(nodes_of(variables) or 'localhost'), _port_of_job(variables))
    world = _number(variables, 'SLURM_STEP_NUM_TASKS' if 'SLURM_STEP_NUM_TASKS' in variables else 'SLURM_NTASKS')
    return Launch('srun', _number(variables, 'SLURM_PROCID'), world, host, port, hosts=hosts_of_ranks(variables))


def _port_of_job(variables: Mapping[str, str]) -> int:
    """Jobs that share a node should not meet at one port."""
    return PORT + (_number(variables, 'SLURM_JOB_ID') % 1000 if 'SLURM_JOB_ID' in variables else 0)


def _meeting(variables: Mapping[str, str], host: str, port: int = PORT) -> tuple[str, int]:
    if 'MASTER_PORT' in variables:
        port = _number(variables, 'MASTER_PORT')
    return variables.get('MASTER_ADDR', host), port


def _several(variables: Mapping[str, str], name: str) -> int:
    """A count that a launcher may tell; 0 where it does not."""
    return int(variables[name]) if variables.get(name, '').isdigit() else 0


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except (KeyError, ValueError):
        problem = f'is {variables[name]!r}' if name in variables else 'is missing'
        raise RunFailed(f'the environment variable {name} {problem}; it must be a whole number') from None
