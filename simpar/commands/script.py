"""``simpar script LAUNCHER FILE``: the job that a launcher takes, for the hosts and devices of a schedule, as text."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simpar.case import cluster_of
from simpar.hardware import Cluster
from simpar.schedule import load_schedule

STORE, MEETING = 29500, 29400
"""Ports on the first host: of the ranks' store, and of the preflight before it."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a script is written for.

    Arguments:
        name: of the job, as Kubernetes allows it: small letters, digits and dashes.
        target: file, settings and device, as a shell reads them.
        each: ranks on a host.
        devices: what they run on, by the collectives' library: NCCL, HCCL or gloo.
    """

    name: str
    target: str
    steps: int
    hosts: int
    each: int
    devices: str

    @property
    def ranks(self) -> int:
        return self.hosts * self.each

    @property
    def run(self) -> str:
        """What every rank runs, behind ``python`` or a launcher."""
        return f'-m executor {self.target} --steps {self.steps}'

    @property
    def sizes(self) -> str:
        """``2 hosts with 4 ranks each``."""
        return (
            f'{self.hosts} host{"s" if self.hosts > 1 else ""} with {self.each} rank{"s" if self.each > 1 else ""} each'
        )

    @property
    def example(self) -> str:
        """Names of hosts that stand for the user's."""
        shown = [f'node{index}' for index in range(min(self.hosts, 3))]
        return ','.join([*shown, *(['...'] if self.hosts > 3 else [])])


def command(options: argparse.Namespace) -> int:
    """Print the script."""
    schedule = load_schedule(options.file, options.set)
    job = _job(options, cluster_of(schedule))
    text = KINDS[options.launcher](job)
    if options.json:
        print(json.dumps({'launcher': options.launcher, 'hosts': job.hosts, 'ranks': job.ranks, 'script': text}))
    else:
        sys.stdout.write(text)
    return 0


def _job(options: argparse.Namespace, on: Cluster) -> Job:
    words = [str(options.file), *(word for one in options.set for word in ('--set', one))]
    # The preflight looks for the same devices as the ranks.
    words += [] if options.device == 'cpu' else ['--device', options.device]
    name = re.sub(r'[^a-z0-9]+', '-', options.file.stem.lower()).strip('-')[:50] or 'simpar'
    return Job(name, shlex.join(words), options.steps, on.nodes, on.devices, on.profile.library.name)


def _slurm(job: Job) -> str:
    ask = {'NCCL': f'#SBATCH --gpus-per-node={job.each}\n', 'HCCL': f'#SBATCH --gres=npu:{job.each}\n'}
    return f"""\
#!/bin/bash
# Submit it by: sbatch FILE. Slurm starts one task a rank; rank, size and address come from its variables.
#SBATCH --job-name={job.name}
#SBATCH --nodes={job.hosts}
#SBATCH --ntasks-per-node={job.each}
{ask.get(job.devices, '')}#SBATCH --time=01:00:00
export OMP_NUM_THREADS=${{SLURM_CPUS_PER_TASK:-1}}
# A rank that fails says why; then the others need not wait.
srun --kill-on-bad-exit=1 python {job.run}
"""


def _torchrun(job: Job) -> str:
    if job.hosts == 1:
        return f"""\
#!/bin/bash
# {job.sizes}.
exec torchrun --standalone --nproc-per-node {job.each} {job.run}
"""
    return f"""\
{_head(job)}
{_own_number(job)}
# One process a host: who is missing, what hosts lack, and who does not reach whom is named before a rank is started.
python -m executor preflight {job.target} --hosts "$HOSTS" --node-rank "$NODE_RANK" --port {MEETING}
exec torchrun --nnodes {job.hosts} --nproc-per-node {job.each} --node-rank "$NODE_RANK" \\
  --master-addr "${{NAMES[0]}}" --master-port {STORE} \\
  {job.run}
"""


def _mpirun(job: Job) -> str:
    if job.hosts == 1:
        return f"""\
#!/bin/bash
# {job.sizes}.
exec mpirun -n {job.ranks} python {job.run}
"""
    return f"""\
{_head(job, 'Run it on the first host')}
export MASTER_ADDR=${{NAMES[0]}} MASTER_PORT={STORE}
if mpirun --version | grep -q 'Open MPI'; then
  exec mpirun -n {job.ranks} --host "${{HOSTS//,/:{job.each},}}:{job.each}" \\
    --map-by ppr:{job.each}:node --bind-to none -x MASTER_ADDR -x MASTER_PORT -x PATH -x PYTHONPATH \\
    python {job.run}
fi
# MPICH and Intel MPI
code=0
mpiexec -n {job.ranks} -ppn {job.each} -hosts "$HOSTS" \\
  -genv MASTER_ADDR "$MASTER_ADDR" -genv MASTER_PORT "$MASTER_PORT" \\
  python {job.run} || code=$?
# Where a host dies, MPICH ends all ranks at once and says nothing.
for name in $([ "$code" = 0 ] || echo "${{NAMES[@]}}"); do
  timeout 5 mpiexec -n 1 -hosts "$name" true < /dev/null > /dev/null 2>&1 ||
    echo "mpiexec ended with $code, and $name starts no process any more: it died, or lost the network" >&2
done
exit "$code"
"""


def _msrun(job: Job) -> str:
    common = f'--worker_num {job.ranks} --local_worker_num {job.each} --join True --log_dir logs'
    if job.hosts == 1:
        return f"""\
#!/bin/bash
# {job.sizes}; what the ranks print is in logs/.
exec msrun {common} --node_rank 0 \\
  python {job.run}
"""
    return f"""\
{_head(job)}
{_own_number(job)}
python -m executor preflight {job.target} --hosts "$HOSTS" --node-rank "$NODE_RANK" --port {MEETING}
# What the ranks print is in logs/.
exec msrun {common} \\
  --master_addr "${{NAMES[0]}}" --master_port 8118 --node_rank "$NODE_RANK" \\
  python {job.run}
"""


def _k8s(job: Job) -> str:
    ask = {'NCCL': 'nvidia.com/gpu', 'HCCL': 'huawei.com/Ascend910'}.get(job.devices)
    resources = f'\n          resources: {{limits: {{{ask}: {job.each}}}}}' if ask else ''
    pods = [f'{job.name}-{index}.{job.name}' for index in range(job.hosts)]
    run = (
        f'torchrun --nnodes {job.hosts} --nproc-per-node {job.each} --node-rank $JOB_COMPLETION_INDEX '
        f'--master-addr {pods[0]} --master-port {STORE} {job.run}'
    )
    check = (
        f'python -m executor preflight {job.target} --hosts {",".join(pods)} '
        f'--node-rank $JOB_COMPLETION_INDEX --port {MEETING} --meet 300s && '
        if job.hosts > 1
        else ''
    )
    return f"""\
# {job.sizes}: a pod a host. Write an image that has simpar[torch] and the schedule in its working folder, then:
#   kubectl apply -f FILE
apiVersion: v1
kind: Service
metadata: {{name: {job.name}}}
# Names of pods must be known before the pods are ready, for they wait for one another.
spec: {{clusterIP: None, publishNotReadyAddresses: true, selector: {{job-name: {job.name}}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: {job.name}}}
spec:
  completions: {job.hosts}
  parallelism: {job.hosts}
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      subdomain: {job.name}
      restartPolicy: Never
      containers:
        - name: ranks
          image: IMAGE
          command: [bash, -c]
          args: [{json.dumps(check + run)}]{resources}
"""


def _head(job: Job, when: str = 'Run it on every host, at about the same time') -> str:
    return f"""\
#!/bin/bash
# {job.sizes}. {when}, with the names of all hosts, that of rank 0 first:
#   bash FILE {job.example}
set -euo pipefail
HOSTS=${{1:?name the {job.hosts} hosts, that of rank 0 first, as in: bash FILE {job.example}}}
IFS=, read -ra NAMES <<< "$HOSTS"
[ "${{#NAMES[@]}}" = {job.hosts} ] ||
  {{ echo "{job.hosts} hosts are needed, ${{#NAMES[@]}} were named" >&2; exit 2; }}"""


def _own_number(job: Job) -> str:
    return f"""\
# Which of them this is: told by its name, or by NODE_RANK.
for index in "${{!NAMES[@]}}"; do
  [ "${{NAMES[index]%%.*}}" != "$(hostname -s)" ] || NODE_RANK=${{NODE_RANK:-$index}}
done
: "${{NODE_RANK:?$(hostname -s) is none of $HOSTS; set NODE_RANK to 0 ... {job.hosts - 1}}}\""""


KINDS: Final[dict[str, Callable[[Job], str]]] = {
    'slurm': _slurm,
    'torchrun': _torchrun,
    'mpirun': _mpirun,
    'msrun': _msrun,
    'k8s': _k8s,
}
"""Launchers, and who writes their scripts."""
