"""Network namespaces: real links between ranks on one machine, which the kernel shapes and which end with the run.

Every rank enters a network namespace of its own. A hub process has one too, with a bridge in it, and puts a veth cable
between the bridge and each rank. What a rank sends is shaped by HTB, small packets (acknowledgements) first, and its
connections share the link alike, as the queue pairs of a network card do. The namespaces have no names and no files:
they, the bridge and the cables are gone when the last process in them is, and hub and ranks go when the parent does,
however it ends. No other interface, bridge or namespace is touched.
"""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from simpar.errors import RunFailed

CLONE_NEWNET: Final = 0x40000000
DEVICE: Final = 'eth0'
NETWORK: Final = '10.77.0'
MAX_RANKS: Final = 250
BURST: Final = 0.25e-3
"""Seconds of the link that may pass at once: what a class that was idle sends first goes for nothing."""
HELP: Final = 'run it as root, or under `unshare -Urn`, or take --net paced:RATE,LATENCY'
FLOWS: Final = 256
"""Queues that the connections of a rank are spread over; those in one queue go first in, first out."""
FIRST_FLOW: Final = 0x10100
LEAST, MOST = 3028, 16384
"""Bytes of a quantum: two frames of Ethernet at least; small packets cost cores more than links of 0.5 Gbit/s gain."""
LENT: Final = 8
"""Bits/s that a flow has of its own, the least that HTB takes: what it has goes beside the link's rate, so all that it
sends is borrowed from there."""
FLOW_OF_PORTS: Final = (
    '40 0 0 34',  # source port, behind 14 bytes of Ethernet and 20 of IP
    '7 0 0 0',
    '40 0 0 36',  # target port
    '172 0 0 0',  # their exclusive or
    f'84 0 0 {FLOWS - 1}',
    f'4 0 0 {FIRST_FLOW}',
    '22 0 0 0',
)
"""Classic BPF that gives a packet's class: FIRST_FLOW + a hash of its ports."""
SETTINGS: Final = {'tcp_congestion_control': 'reno', 'tcp_slow_start_after_idle': '0'}
"""Of the namespace, whatever the host has: no congestion control that paces itself, no slow start behind a pause."""


def address(rank: int) -> str:
    """A rank's address in the network of namespaces."""
    return f'{NETWORK}.{rank + 1}'


def lacking() -> str:
    """Why this machine cannot build network namespaces; empty where it can."""
    if sys.platform != 'linux':
        return 'network namespaces are a feature of Linux'
    missing = [tool for tool in ('ip', 'tc', 'unshare') if shutil.which(tool) is None]
    if missing:
        return f'{" and ".join(missing)} not found; install iproute2 and util-linux'
    steps = (
        'ip link add b0 type bridge && ip link add a0 type veth peer name a1 && tc qdisc add dev lo root handle 1: htb'
    )
    # Everything that a run will use is tried in a throw-away namespace: kernels lack single features (HTB, BPF).
    steps += f' && {_by_flow("lo")}'
    probe = subprocess.run(['unshare', '-n', 'sh', '-c', steps], capture_output=True, text=True, check=False)
    return probe.stderr.strip().replace('\n', '; ') if probe.returncode else ''


def require() -> None:
    """Raise ``RunFailed`` where this machine cannot build network namespaces."""
    if reason := lacking():
        raise RunFailed(f'no network namespaces on this machine: {reason}; {HELP}')


def enter() -> None:
    """Put the calling process into a new network namespace."""
    # ``os.unshare`` exists only from Python 3.12 on.
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNET):
        raise RunFailed(f'no network namespace: {os.strerror(ctypes.get_errno())}; {HELP}')


def quantum(rate: float) -> int:
    """Bytes that a queue sends before it is the turn of the next, and the most that the kernel hands over at once.

    A queue sends one packet at least, so that larger ones would take more than their turn; and a link that was idle
    lets its first packet pass for nothing. Arguments: ``rate`` of the link in bytes/s.
    """
    return int(min(max(rate * BURST, LEAST), MOST))


def shape(rank: int, rate: float) -> None:
    """Give this namespace's end of the cable its address, and shape what it sends.

    Arguments: ``rate`` in bytes/s, headers included.
    """
    bits, size = int(rate * 8), quantum(rate)
    # ``cburst`` bounds bursts at the ceiling as ``burst`` does at the rate.
    limit = f'rate {bits}bit ceil {bits}bit burst {size}b cburst {size}b quantum 60000'
    _do(f'ip addr add {address(rank)}/24 dev {DEVICE}')
    _do('ip link set lo up')
    # Larger packets than a queue's turn would let one connection take more than its share.
    _do(f'ip link set {DEVICE} gso_max_size {size} up')
    # Unclassified packets (ARP) go with the small ones.
    _do(f'tc qdisc add dev {DEVICE} root handle 1: htb default 10 r2q 1000')
    _do(f'tc class add dev {DEVICE} parent 1: classid 1:1 htb {limit}')
    _do(f'tc class add dev {DEVICE} parent 1:1 classid 1:10 htb {limit} prio 0')
    _do(f'tc qdisc add dev {DEVICE} parent 1:10 pfifo limit 1000')
    # Hundreds of classes; one process instead of hundreds.
    _do('tc -batch -', '\n'.join(_flows(bits, size)) + '\n')
    # IP length below 128 bytes: acknowledgements, which must not queue behind data of the other direction.
    small = 'match u16 0x0000 0xff80 at 2'
    _do(f'tc filter add dev {DEVICE} parent 1: protocol ip prio 1 u32 {small} flowid 1:10')
    _do(_by_flow(DEVICE))
    # They belong to the namespace, so the host keeps its own.
    for name, value in SETTINGS.items():
        Path(f'/proc/sys/net/ipv4/{name}').write_text(value, encoding='utf-8')


def _flows(bits: int, size: int) -> Iterator[str]:
    """A class and its queue for every flow: an equal share of the link, and all of it where no other wants it."""
    # The ceiling lets a single flow have all of the link.
    limit = f'rate {LENT}bit ceil {bits}bit burst {size}b cburst {size}b quantum {size} prio 1'
    for flow in range(FLOWS):
        minor = f'1:{(FIRST_FLOW & 0xFFFF) + flow:x}'
        yield f'class add dev {DEVICE} parent 1:1 classid {minor} htb {limit}'
        yield f'qdisc add dev {DEVICE} parent {minor} pfifo limit 10000'


def _by_flow(device: str) -> str:
    """The command that sends each packet of a device to its flow's class."""
    code = ','.join((str(len(FLOW_OF_PORTS)), *FLOW_OF_PORTS))
    return f"tc filter add dev {device} parent 1: protocol ip prio 2 bpf bytecode '{code}' flowid 1:10"


def _do(command: str, stdin: str = '') -> None:
    done = subprocess.run(shlex.split(command), input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().replace('\n', '; ')
        raise RunFailed(f'the network namespaces cannot be built: `{command}`: {reason}')


def hub(pipe: Connection, lifeline: Connection) -> None:
    """The process that holds the bridge: does what the parent says, and goes when it has gone.

    It hears ('attach', rank, process) and ('cut', rank, 0), and answers with an empty text or with what went wrong.
    """
    # Ctrl-C goes to the whole process group; the parent decides when the hub ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # The bridge lives in the hub's own namespace, so it needs no rights on the host's network and vanishes with the
        # hub.
        enter()
        _do('ip link add bridge type bridge')
        _do('ip link set bridge up')
        pipe.send('')
        while True:
            word, rank, process = pipe.recv()
            pipe.send(_obey(word, rank, process))
    except RunFailed as error:
        pipe.send(str(error))
    except (EOFError, OSError):
        pass
    finally:
        with suppress(OSError):
            lifeline.close()
    os._exit(0)


def _obey(word: str, rank: int, process: int) -> str:
    try:
        if word == 'attach':
            _do(f'ip link add rank{rank} type veth peer name {DEVICE} netns {process}')
            _do(f'ip link set rank{rank} master bridge')
            _do(f'ip link set rank{rank} up')
        elif word == 'cut':
            _do(f'ip link set rank{rank} down')
    except RunFailed as error:
        return str(error)
    return ''
