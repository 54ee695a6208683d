"""Hosts in namespaces of one machine: each with a network card, a name and, if wanted, process ids of its own.

Needs root, ``ip`` and ``unshare``. A bridge joins the cards; nothing is seen from outside, and all goes with the block.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
NETWORK = '10.78.0'
ONE_THREAD = {'OMP_NUM_THREADS': '1'}
TOOLS = ('ip', 'unshare', 'nsenter', 'setpriv')


def lacking(*more):
    """Why this machine has no such hosts; empty where it has. Arguments: ``more`` programs that are needed."""
    missing = [tool for tool in (*TOOLS, *more) if shutil.which(tool) is None]
    if missing:
        return f'{" and ".join(missing)} not found; install iproute2 and util-linux'
    return '' if os.geteuid() == 0 else 'network namespaces need root'


def address(index):
    return f'{NETWORK}.{index + 1}'


class Hosts:
    """``count`` hosts, called node0, node1, ...

    Arguments: ``own_processes``, whether each has process ids of its own, as containers have: then ranks of one host
    cannot look at those of another, and a host that is killed takes all that runs on it along.
    """

    def __init__(self, count, *, own_processes=True):
        self.count, self._own = count, own_processes
        self.folder = Path(tempfile.mkdtemp(prefix='simpar-hosts-'))
        self._started = []
        self._holders = []

    def __enter__(self):
        names = ''.join(f'{address(index)} node{index}\n' for index in range(self.count))
        (self.folder / 'hosts').write_text(f'127.0.0.1 localhost\n{names}')
        self._hub = self._hold('exec sleep 100000', [])
        self._in(self._hub, 'ip link add bridge type bridge')
        self._in(self._hub, 'ip link set bridge up')
        for index in range(self.count):
            self._add(index)
        return self

    def __exit__(self, *error):
        for process in self._started:
            if process.poll() is None:
                process.kill()
        for index in range(self.count):
            self.kill(index)
        for holder in [*self._holders, self._holder_of_hub]:
            holder.kill()
            holder.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, index, command, *, log='', **variables):
        """Start a command on a host; its output goes to a file of the folder, see ``said``."""
        flags = ['--net', '--uts', '--mount', *(['--pid'] if self._own else [])]
        settings = {**os.environ, **variables}
        words = command if isinstance(command, list) else shlex.split(command)
        with (self.folder / (log or f'node{index}.log')).open('ab') as output:
            process = subprocess.Popen(
                ['nsenter', '-t', str(self._inside[index]), *flags, f'--wd={os.getcwd()}', '--', *words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=settings, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def said(self, index=0, *, log=''):
        path = self.folder / (log or f'node{index}.log')
        return path.read_text(errors='replace') if path.exists() else ''

    def processes(self, index):
        """Ids of all processes on a host, but for the one that holds it."""
        net = os.readlink(f'/proc/{self._inside[index]}/ns/net')
        found = []
        for entry in Path('/proc').iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / 'ns' / 'net') == net:
                    found.append(int(entry.name))
        return [pid for pid in found if pid not in (self._inside[index], self._holders[index].pid)]

    def commands(self, index):
        """The command lines of all processes on a host."""
        found = []
        for pid in self.processes(index):
            with suppress(OSError):
                found.append(Path(f'/proc/{pid}/cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace'))
        return found

    def process(self, index):
        """The id of the process that holds a host."""
        return self._inside[index]

    def kill(self, index):
        """The host dies: every process on it is killed, and its card is gone."""
        for pid in self.processes(index) if Path(f'/proc/{self._inside[index]}').exists() else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def torchrun(self, words, each, *, log):
        """Start so many ranks of torchrun on every host; returns what was started."""
        flags = f'--nnodes {self.count} --nproc-per-node {each} --master-addr node0 --master-port 29500 --node-rank'
        start, around = f'{sys.executable} -m torch.distributed.run {flags}', {'PYTHONPATH': str(ROOT), **ONE_THREAD}
        return [self.start(host, f'{start} {host} {words}', log=log, **around) for host in range(self.count)]

    def shape(self, rate):
        """Let the card of each host carry so many Mbit/s, by the kernel's token bucket; its inside is not held back."""
        for pid in self._inside:
            self._in(pid, f'tc qdisc add dev eth0 root tbf rate {rate}mbit burst 16kb latency 500ms')

    def cut(self, index):
        """Take out the cable of a host."""
        self._in(self._hub, f'ip link set node{index} down')

    def _add(self, index):
        setup = f'hostname node{index} && mount --bind {self.folder}/hosts /etc/hosts && exec sleep 100000'
        pid = self._hold(setup, ['--pid', '--mount-proc'] if self._own else [])
        self._inside.append(pid)
        self._in(self._hub, f'ip link add node{index} type veth peer name eth0 netns {pid}')
        self._in(self._hub, f'ip link set node{index} master bridge')
        self._in(self._hub, f'ip link set node{index} up')
        self._in(pid, f'ip addr add {address(index)}/24 dev eth0')
        self._in(pid, 'ip link set eth0 up')
        self._in(pid, 'ip link set lo up')

    _inside: list

    def _hold(self, setup, flags):
        """A process that holds new namespaces; returns its id as it is seen from here."""
        if not hasattr(self, '_holder_of_hub'):
            self._inside = []
        # Also where this process is killed: the kernel then ends the holder, and what it has started.
        words = ['setpriv', '--pdeathsig', 'KILL', 'unshare', '--net', '--uts', '--mount', '--fork', '--kill-child']
        words += [*flags, 'sh', '-c', setup]
        holder = subprocess.Popen(words, start_new_session=True)
        if hasattr(self, '_holder_of_hub'):
            self._holders.append(holder)
        else:
            self._holder_of_hub = holder
        children = Path(f'/proc/{holder.pid}/task/{holder.pid}/children')
        until = time.monotonic() + 10
        while time.monotonic() < until:
            found = children.read_text().split()
            if found and os.path.basename(os.path.realpath(f'/proc/{found[0]}/exe')) == 'sleep':
                return int(found[0])
            time.sleep(0.01)
        raise RuntimeError('no namespaces')

    def _in(self, pid, command):
        subprocess.run(['nsenter', '-t', str(pid), '--net', '--', *shlex.split(command)], check=True)
