"""Runs of the tutorial on two hosts (namespaces of this machine) under real launchers, and hosts that fail.

    python -m tests.prove_cluster namespaces|slurm|mpi|bench [--write]

Needs root and the launchers of Debian; says what is missing, and installs nothing. --write puts what was seen into
docs/proofs/cluster_proof.md.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from simpar.profiles import load_profile
from tests.hosts import ONE_THREAD, Hosts, address, lacking
from tests.proof import ROOT, arguments, commit, line, table, until

PAGE = ROOT / 'docs' / 'proofs' / 'cluster_proof.md'
BIN = Path(sys.executable).parent
SEED = 2026
MEET, QUIET = 6, 8
JOB = ['examples/multi_copy.yaml', '--set', 'cluster.profile=cpu-gloo', '--set', 'cluster.devices=2', '--set',
       'cluster.nodes=2', '--set', 'plan.tensor=2']  # fmt: skip
SAID = 'starts no process|did not come|said nothing|was killed|died|lost|another run|reset by peer|closed by peer'
NAMED = re.compile(rf'^.*(?:node1|ranks? [23]\b|ranks 1, [23]).*(?:{SAID}).*$|^.*Remote daemon.*node1$', re.MULTILINE)
MARK = re.compile(r'-m executor|torchrun|mpirun|mpiexec|orted|hydra_pmi|srun')
CARD = 200
"""Mbit/s of the card of each host."""
NEAR = 0.1
"""How far the bandwidth that a bench finds may be from that which was set."""
LOST = re.compile(r'^.*(?:node[01]|rank [0-3]).*(?:said nothing|died|lost|reached).*$', re.MULTILINE)
PARTS = {
    'namespaces': ('torchrun over two hosts', [], 'iproute2 util-linux'),
    'slurm': ("Debian's Slurm, two slurmd", ['slurmctld', 'slurmd', 'srun', 'sbatch', 'munged'],
              'slurmctld slurmd slurm-client munge'),
    'mpi': ("Debian's Open MPI and MPICH", ['mpirun.openmpi', 'mpiexec.hydra'], 'openmpi-bin mpich'),
    'bench': ('Calibration over two hosts, by torchrun', ['tc'], 'iproute2'),
}  # fmt: skip


class Job:
    """A job under one launcher; ``scenario`` says what goes wrong on node1."""

    def __init__(self, hosts, scenario, steps):
        self.hosts, self.scenario, self.steps = hosts, scenario, steps
        self.folder = hosts.folder
        self.log = f'{type(self).__name__.lower()}-{scenario}'
        other = self.folder / 'other' / 'sitecustomize.py'
        other.parent.mkdir(exist_ok=True)
        other.write_text("import simpar\n\nsimpar.__version__ = '9.9'\n")
        cause = {
            'never': '[ "$(hostname)" = node1 ] && exec sleep 60',
            'version': f'[ "$(hostname)" = node1 ] && export PYTHONPATH={other.parent}:$PYTHONPATH',
        }
        rank = self.folder / f'rank-{self.log}'
        rank.write_text(f'#!/bin/bash\n{cause.get(scenario, "true")}\nexec python "$@"\n')
        rank.chmod(0o755)
        self.rank = str(rank)

    def script(self, launcher):
        """What `simpar script` prints, with the rank's wrapper in place of python."""
        done = subprocess.run(
            [sys.executable, '-m', 'simpar', 'script', launcher, *JOB, '--steps', str(self.steps)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        flags = f'--steps {self.steps} --json --seed {SEED} --meet {MEET}s --timeout {QUIET}s'
        return done.stdout.replace(f'--steps {self.steps}', flags)

    def environment(self):
        return {'PATH': f'{BIN}:{os.environ["PATH"]}', 'PYTHONPATH': str(ROOT), **ONE_THREAD}

    def said(self):
        return self.hosts.said(log=self.log)

    def wait(self, seconds, found=None):
        """Wait for the end, or until something has been said; returns whether that was."""
        if found:
            return until(seconds, lambda: found(self.said()))
        end, quiet = time.monotonic() + seconds, 0
        while time.monotonic() < end and quiet <= 10:
            # sbatch leaves its job behind, so the end is when nothing runs.
            busy = any(one.poll() is None for one in self.started) or self.left() or not self.said()
            quiet = 0 if busy else quiet + 1
            time.sleep(0.1)
        return quiet > 10

    def left(self):
        """Processes of the job: ranks, and what started them."""
        return [line for host in range(self.hosts.count) for line in self.hosts.commands(host) if MARK.search(line)]


class Torchrun(Job):
    def start(self):
        text = self.script('torchrun').replace('--port 29400', f'--port 29400 --meet {MEET}s')
        text = text.replace('  -m executor', f'  --no-python {self.rank} -m executor')
        if self.scenario == 'version':
            text = text.replace('python -m executor preflight', f'{self.rank} -m executor preflight')
        path = self.folder / f'{self.log}.sh'
        path.write_text(text)
        which = [0] if self.scenario == 'never' else [0, 1]
        self.started = [
            self.hosts.start(host, ['bash', str(path), 'node0,node1'], log=self.log, **self.environment())
            for host in which
        ]


class Srun(Job):
    def start(self):
        path = self.folder / f'{self.log}.sh'
        path.write_text(self.script('slurm').replace('python -m executor', f'{self.rank} -m executor'))
        words = ['sbatch', f'--output={self.folder / self.log}', str(path)]
        self.started = [self.hosts.start(0, words, log='sbatch', **self.environment())]

    def environment(self):
        return {**super().environment(), 'SLURM_CONF': str(self.folder / 'slurm.conf')}


class OpenMpi(Job):
    mpirun, agent = 'mpirun.openmpi', 'mpirun --mca plm_rsh_agent AGENT'

    def start(self):
        path = self.folder / f'{self.log}.sh'
        text = self.script('mpirun').replace('python -m executor', f'{self.rank} -m executor')
        for word, here in (
            ('mpirun -n', self.agent),
            ('mpiexec -n', 'mpiexec.hydra -launcher ssh -launcher-exec AGENT'),
        ):
            text = text.replace(word, f'{here} -n'.replace('AGENT', str(self.folder / 'agent')))
        (self.folder / 'bin' / self.log).mkdir(parents=True)
        (self.folder / 'bin' / self.log / 'mpirun').symlink_to(shutil.which(self.mpirun))
        path.write_text(text)
        self.started = [self.hosts.start(0, ['bash', str(path), 'node0,node1'], log=self.log, **self.environment())]

    def environment(self):
        found = super().environment()
        root = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
        return {**found, **root, 'PATH': f'{self.folder}/bin/{self.log}:{found["PATH"]}'}


class Mpich(OpenMpi):
    mpirun = 'mpiexec.hydra'


def agent(hosts):
    """What MPI starts its daemons by, in place of ssh: HOST COMMAND..."""
    cases = ' '.join(f'node{host}) pid={hosts.process(host)};;' for host in range(hosts.count))
    path = hosts.folder / 'agent'
    # Where a host is dead, it ends as ssh does.
    path.write_text(
        f'#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nhost=$1; shift\ncase $host in {cases} esac\n'
        f'[ -e {hosts.folder}/dead-$host ] && exit 255\n'
        f'exec nsenter -t $pid --net --uts --mount --wd={os.getcwd()} -- /bin/bash -c "$*"\n'
    )
    path.chmod(0o755)


def slurm(hosts):
    """Start munge, slurmctld and two slurmd; wait until the nodes are idle."""
    folder = hosts.folder
    (folder / 'munge.key').write_bytes(os.urandom(128))
    (folder / 'munge.key').chmod(0o400)
    (folder / 'state').mkdir()
    files = {'socket': 'socket', 'key-file': 'key', 'pid-file': 'pid', 'seed-file': 'seed', 'log-file': 'log'}
    flags = [f'--{flag}={folder}/munge.{end}' for flag, end in files.items()]
    hosts.start(0, ['munged', '--foreground', '--force', *flags], log='munged')
    nodes = ''.join(f'NodeName=node{host} NodeAddr={address(host)} CPUs=2\n' for host in range(hosts.count))
    (folder / 'slurm.conf').write_text(
        f'ClusterName=proof\nSlurmctldHost=node0({address(0)})\nSlurmUser=root\nSlurmdUser=root\n'
        f'AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket\nCredType=cred/munge\n'
        'ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n'
        'SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n'
        'SlurmdTimeout=10\nKillWait=5\nInactiveLimit=20\n'
        f'StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\nSlurmctldPidFile={folder}/ctld.pid\n'
        f'SlurmdPidFile={folder}/slurmd-%n.pid\nSlurmctldLogFile={folder}/ctld.log\n'
        f'SlurmdLogFile={folder}/slurmd-%n.log\n{nodes}PartitionName=all Nodes=ALL Default=YES State=UP\n'
    )
    set_up = {'SLURM_CONF': str(folder / 'slurm.conf'), 'PATH': f'{BIN}:{os.environ["PATH"]}'}
    time.sleep(1)
    hosts.start(0, ['slurmctld', '-D'], log='ctld', **set_up)
    for host in range(hosts.count):
        hosts.start(host, ['slurmd', '-D', '-N', f'node{host}'], log=f'slurmd{host}', **set_up)
    for _ in range(30):
        hosts.start(0, ['sinfo', '-h', '-o', '%t %D'], log='sinfo', **set_up).wait()
        if 'idle 2' in hosts.said(log='sinfo'):
            return
        time.sleep(1)
    raise RuntimeError(hosts.said(log='ctld')[-2000:])


def losses_of(text):
    found = [json.loads(line)['losses'] for line in text.splitlines() if line.startswith('{')]
    return found[-1] if found else None


def plain():
    """Losses of the same job on this machine, without a launcher."""
    words = [sys.executable, '-m', 'executor', *JOB, '--steps', '5', '--seed', str(SEED), '--json']
    return losses_of(subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout)


def scenarios(kind, hosts_of, same):
    """Run all; yields (what, seconds, what was said, good)."""
    for scenario in ('good', 'never', 'dies', 'cut', 'version'):
        with hosts_of() as hosts:
            job = kind(hosts, scenario, 3_000 if scenario in ('dies', 'cut') else 5)
            begin = time.monotonic()
            job.start()
            if scenario in ('never', 'version'):
                # What takes until the first process waits for others does not count.
                job.wait(60, lambda text: 'all meet' in text)
                begin = time.monotonic()
            if scenario == 'dies':
                job.wait(60, lambda text: 'all meet' in text)
                time.sleep(20)
                begin = time.monotonic()
                (hosts.folder / 'dead-node1').touch()
                hosts.kill(1)
            if scenario == 'cut':
                job.wait(60, lambda text: 'all meet' in text)
                time.sleep(20)
                begin = time.monotonic()
                hosts.cut(1)
            if scenario != 'good':
                named = job.wait(90, NAMED.search)
                seconds = time.monotonic() - begin
            # Daemons of MPI stay behind a cut for as long as TCP does.
            job.wait(20 if scenario == 'cut' else 90)
            if scenario == 'good':
                seconds = time.monotonic() - begin
                # Also not a word of trouble.
                named = losses_of(job.said()) == same and not re.search(r'^rank', job.said(), re.MULTILINE)
            time.sleep(0.5)
            left = job.left()
            line = NAMED.search(job.said())
            told = line[0] if line and scenario != 'good' else f'losses {losses_of(job.said())}'
            limit = {'good': 90, 'never': MEET + 10, 'dies': QUIET + 10, 'cut': QUIET + 10, 'version': 30}[scenario]
            good = bool(named) and seconds <= limit and not left
            if not good:
                print(job.said()[-3000:], left, file=sys.stderr)
            yield scenario, seconds, told, good


WORDS = {
    'good': 'both hosts come: losses equal those of one machine, to the bit',
    'never': f'node1 never comes (timeout {MEET} s)',
    'dies': f'node1 dies while it trains (timeout {QUIET} s)',
    'cut': f'the cable of node1 is cut while it trains (timeout {QUIET} s)',
    'version': 'node1 has another version of simpar',
}


def prove(part):
    """The cells of a part's table, and whether all went well."""
    if part == 'bench':
        for what, proof in BENCHES.items():
            with Hosts(2) as hosts:
                yield what, *proof(hosts)
        return
    same = plain()
    if part == 'namespaces':
        kinds = {'torchrun': (Torchrun, lambda: Hosts(2))}
    elif part == 'slurm':
        kinds = {'sbatch, srun': (Srun, lambda: _with(Hosts(2), slurm))}
    else:
        shared = lambda: _with(Hosts(2, own_processes=False), agent)  # noqa: E731
        kinds = {"Open MPI's mpirun": (OpenMpi, shared), "MPICH's mpiexec": (Mpich, shared)}
    for name, (kind, hosts_of) in kinds.items():
        for scenario, seconds, told, good in scenarios(kind, hosts_of, same):
            yield f'{name} | {WORDS[scenario]}', seconds, good, told[:220]


class Bench:
    """A bench of two ranks on each of two hosts."""

    def __init__(self, hosts, log):
        self.hosts, self.log = hosts, log
        self.profile = hosts.folder / 'mine.yaml'
        words = f'-m executor.bench --sizes tiny --profile {self.profile} --timeout {QUIET}s'
        self.started = hosts.torchrun(words, 2, log=log)

    def said(self):
        return self.hosts.said(log=self.log)

    def over(self):
        """Whether all that was started has ended, and nothing is left."""
        return all(one.poll() is not None for one in self.started) and not any(map(self.hosts.commands, range(2)))


def finds(hosts):
    """Seconds, whether the cards' rate is found, and what was."""
    hosts.shape(CARD)
    begin, bench = time.monotonic(), Bench(hosts, 'good')
    over = until(200, bench.over)
    seconds = time.monotonic() - begin
    if not over or not bench.profile.exists():
        return seconds, False, bench.said()[-300:]
    near, far = load_profile(bench.profile).links
    rate = far.rate * 8 / 1e6
    told = f'network {rate:.0f} Mbit/s, a card for each {far.per}; inside {near.rate * 8 / 1e6:.0f} Mbit/s'
    return seconds, abs(rate / CARD - 1) < NEAR and far.per == 'node' and near.rate > far.rate, told


def breaks(how, again, hosts):
    """A host is lost in mid-run; returns as ``finds``. Arguments: ``again``, whether the same command follows."""
    bench = Bench(hosts, 'broken')
    until(90, lambda: 'both at once' in bench.said())
    time.sleep(2)
    begin = time.monotonic()
    how(hosts, 1)
    named = until(60, lambda: LOST.search(bench.said()))
    seconds = time.monotonic() - begin
    gone = until(30, bench.over)
    told = LOST.search(bench.said())[0][:160] if named else bench.said()[-300:]
    if again:
        kept = len(list(Path(f'{bench.profile}.journal').glob('*.npz')))
        bench = Bench(hosts, 'again')
        gone = until(200, bench.over) and bench.profile.exists() and gone
        told = f'{told}; again: goes on behind {kept} runs'
        gone = gone and f'the first {kept} runs are of an earlier start' in bench.profile.read_text()
    return seconds, named and gone and seconds <= QUIET + 10, told


BENCHES = {
    f'cards of {CARD} Mbit/s are found, within {NEAR:.0%}': finds,
    'node1 dies, and the same command is given again': partial(breaks, Hosts.kill, True),
    f'the cable of node1 is cut (timeout {QUIET} s)': partial(breaks, Hosts.cut, False),
}


class _with:
    """Hosts on which something is set up when they are entered."""

    def __init__(self, hosts, set_up):
        self.hosts, self.set_up = hosts, set_up

    def __enter__(self):
        hosts = self.hosts.__enter__()
        self.set_up(hosts)
        return hosts

    def __exit__(self, *error):
        return self.hosts.__exit__(*error)


TORCH = [[str(BIN / 'python'), '-c', 'import torch; print("torch", torch.__version__)']]
ASKED = {
    'namespaces': TORCH,
    'bench': TORCH,
    'slurm': [['slurmd', '-V']],
    'mpi': [['mpirun.openmpi', '--version'], ['mpiexec.hydra', '--version']],
}
"""What tells the versions of a part's launchers."""


def versions(part):
    """Of the launchers that were used: the first lines with a digit."""
    told = []
    for words in ASKED[part]:
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        told.append(' '.join(next(line for line in lines if re.search(r'\d', line)).split()))
    return ', '.join(told)


def write(part, lines):
    """Put a part's table into the page, in the place of what it was."""
    command = f'`make prove-{"cluster" if part == "namespaces" else part}`'
    told = f'{command} at commit {commit()}, {f"seed {SEED}; " * (part != "bench")}{versions(part)}.'
    section = f'<!-- {part} -->\n## {PARTS[part][0]}\n\n{told}\n\n{lines}\n<!-- /{part} -->\n'
    text = PAGE.read_text()
    found = re.search(rf'<!-- {part} -->.*?<!-- /{part} -->\n', text, re.DOTALL)
    PAGE.write_text(text.replace(found[0], section) if found else f'{text.rstrip()}\n\n{section}')


def main():
    options = arguments(__doc__, {'name': 'part', 'choices': PARTS}, write=False)
    _, tools, packages = PARTS[options.part]
    if missing := lacking(*tools):
        print(f'not run: {missing}; apt-get install {packages}')
        return 3
    rows, well = [], True
    for what, seconds, good, told in prove(options.part):
        rows.append((what, f'{seconds:.1f}', 'yes' if good else '**no**', f'`{told.strip()}`'))
        print(line(rows[-1]), flush=True)
        well = well and good
    found = 'found, or ' * (options.part == 'bench')
    heads = f'what happens | seconds | good, nothing left | what was {found}said first'
    heads = heads if options.part == 'bench' else f'launcher | {heads}'
    if options.write:
        write(options.part, '\n'.join(table(heads, rows)))
    return 0 if well else 1


if __name__ == '__main__':
    sys.exit(main())
