"""Which rank this process is, by the variables of torchrun, msrun, mpirun and Slurm."""

import pytest
from tables import load_table

from executor.cluster import Launch, detect, first_host, hosts_of_ranks
from simpar.errors import RunFailed

TORCHRUN = load_table(__file__, 'TORCHRUN')
MPICH = {'PMI_RANK': '1', 'PMI_SIZE': '2', 'PMI_FD': '6', 'MPI_LOCALRANKID': '1', 'MPI_LOCALNRANKS': '2'}
PMI_2 = {'PMI_RANK': '2', 'PMI_SIZE': '4', 'PMI_FD': '7'}
MVAPICH = {'MV2_COMM_WORLD_RANK': '0', 'MV2_COMM_WORLD_SIZE': '2', 'MV2_COMM_WORLD_LOCAL_SIZE': '2'}
INTEL = {'I_MPI_INFO_NUMA_NODE_NUM': '2', 'I_MPI_HYDRA_BOOTSTRAP': 'ssh'}
MSRUN = load_table(__file__, 'MSRUN')
MPIRUN = {'OMPI_COMM_WORLD_RANK': '1', 'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_LOCAL_SIZE': '2'}
SRUN = load_table(__file__, 'SRUN')
VOLCANO = {'VC_TASK_INDEX': '1', 'VC_WORKER_HOSTS': 'job-worker-0.job,job-worker-1.job', 'VC_WORKER_NUM': '2'}
INDEXED = {'JOB_COMPLETION_INDEX': '1', 'WORLD_SIZE': '2', 'MASTER_ADDR': 'job-0.job'}


LAUNCHES = {
    'by hand': ({}, None),
    'torchrun': (TORCHRUN, Launch('torchrun', 3, 8, 'node0', 29400, served=True)),
    'plain': ({'RANK': '0', 'WORLD_SIZE': '2'}, Launch('RANK and WORLD_SIZE', 0, 2, 'localhost', 29500)),
    'msrun': (MSRUN, Launch('msrun', 5, 8, '127.0.0.1', 8118)),
    'mpirun': (MPIRUN, Launch('mpirun', 1, 2, 'localhost', 29500)),
    'mpirun with address': ({**MPIRUN, 'MASTER_ADDR': 'a', 'MASTER_PORT': '7'}, Launch('mpirun', 1, 2, 'a', 7)),
    'MPICH': (MPICH, Launch('mpiexec', 1, 2, 'localhost', 29500)),
    'MPICH with address': ({**MPICH, 'MPI_LOCALNRANKS': '1', 'MASTER_ADDR': 'a'}, Launch('mpiexec', 1, 2, 'a', 29500)),
    'Intel MPI': ({**MPICH, **INTEL}, Launch('mpiexec', 1, 2, 'localhost', 29500)),
    'srun with PMI-2': ({**SRUN, **PMI_2}, Launch('mpiexec', 2, 4, 'gpu07', 29542)),
    'MVAPICH2': (MVAPICH, Launch('mpiexec', 0, 2, 'localhost', 29500)),
    'srun': (SRUN, Launch('srun', 2, 4, 'gpu07', 29542)),
    'Volcano': (VOLCANO, Launch('Volcano', 1, 2, 'job-worker-0.job', 29500)),
    'torchrun in a pod of Volcano': ({**VOLCANO, **TORCHRUN}, Launch('torchrun', 3, 8, 'node0', 29400, served=True)),
    'indexed job': (INDEXED, Launch('an indexed job', 1, 2, 'job-0.job', 29500)),
}  # fmt: skip


@pytest.mark.parametrize('name', LAUNCHES)
def test_launchers_are_recognised(name):
    variables, launch = LAUNCHES[name]
    assert detect(variables) == launch


def test_the_scheduler_that_msrun_also_starts_is_no_rank():
    launch = detect({**MSRUN, 'MS_ROLE': 'MS_SCHED'})
    assert launch is not None
    assert launch.idle


def test_a_batch_script_of_slurm_without_srun_starts_its_own_ranks():
    assert detect({name: value for name, value in SRUN.items() if name != 'SLURM_STEP_ID'}) is None


@pytest.mark.parametrize(('variables', 'what'), load_table(__file__, 'test_variables_that_do_not_say_enough_are_named'))
def test_variables_that_do_not_say_enough_are_named(variables, what):
    with pytest.raises(RunFailed) as error:
        detect(variables)
    assert what in str(error.value)


@pytest.mark.parametrize(('nodes', 'host'), load_table(__file__, 'test_the_first_host_of_a_list_of_slurms'))
def test_the_first_host_of_a_list_of_slurms(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize('variables', load_table(__file__, 'test_a_launcher_that_is_recognised_in_part_is_refused'))
def test_a_launcher_that_is_recognised_in_part_is_refused(variables):
    """Else each of its processes would run the whole job by itself, and end with 0."""
    with pytest.raises(RunFailed) as error:
        detect(variables)
    assert next(iter(variables)) in str(error.value)
    assert '--nproc' in str(error.value)


@pytest.mark.parametrize(('nodes', 'counts', 'hosts'), load_table(__file__, 'test_hosts_of_ranks_by_slurms_lists'))
def test_hosts_of_ranks_by_slurms_lists(nodes, counts, hosts):
    """Where list and counts do not fit, no host is named rather than a wrong one."""
    assert hosts_of_ranks({'SLURM_STEP_NODELIST': nodes, 'SLURM_STEP_TASKS_PER_NODE': counts}) == hosts


def test_ranks_that_go_round_the_hosts_are_not_told_by_blocks():
    variables = {'SLURM_STEP_NODELIST': 'a,b', 'SLURM_STEP_TASKS_PER_NODE': '2(x2)'}
    assert hosts_of_ranks(variables) == ('a', 'a', 'b', 'b')
    assert hosts_of_ranks({**variables, 'SLURM_DISTRIBUTION': 'cyclic'}) == ()
