"""A rank's process in a pool: does what the parent says through a pipe, and goes when the parent has gone."""

from __future__ import annotations

import datetime
import fcntl
import os
import pickle
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist

from executor import netns
from executor.host import Clock, pin, sharpen_sleep
from executor.ranks.rank import Machines, Rank, Watched
from executor.ranks.request import INIT_TIMEOUT
from executor.ranks.watchdog import Failure, Status
from simpar.errors import SimparError
from simpar.hardware.net import Net
from simpar.program import Program

LOOPBACK: Final = '127.0.0.1'


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a rank must know before anything else.

    Arguments:
        environment, directory: those of the parent.
        folder: the pool's folder, for what outlives a rank.
        port: the port of rank 0's store, 0 for any.
        threads: how many threads a kernel uses.
        pinned: whether the rank keeps to one core.
        machines: what runs the ops of streams that are threads.
    """

    rank: int
    world: int
    environment: dict[str, str]
    directory: str
    folder: Path
    net: Net
    timeout: float
    port: int
    threads: int
    pinned: bool
    machines: Machines


class _Broken(Exception):
    """Streams of this rank have failed."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__()
        self.failures = failures


def main(setup: Setup, pipe: Connection, lifeline: Connection) -> NoReturn:
    """Serve the parent until it says stop or dies; never returns."""
    _isolate(setup)
    _die_with_parent(lifeline)
    talk = Talk(pipe)
    try:
        host = _join_network(setup, talk)
        # SIGIO comes only for a change; a parent that died earlier is found by reading.
        threading.Thread(target=_watch_parent, args=(lifeline,), daemon=True).start()
        sharpen_sleep()
        # Before any kernel runs, so that none takes all cores.
        torch.set_num_threads(setup.threads)
        if setup.pinned:
            pin(setup.rank)
        _serve(setup, talk, host)
    # The parent closed the pipe, which is how it says that it is done or gone.
    except EOFError:
        pass
    except _Broken as broken:
        talk.say('failed', broken.failures)
        # An exit now would look like a second failure to the peers.
        _wait_for_the_end()
    except BaseException as error:
        talk.say('error', error if isinstance(error, SimparError) else f'{type(error).__name__}: {error}')
        _wait_for_the_end()
    # Destructors of process groups whose peers are gone abort.
    os._exit(0)


class Talk:
    """Messages between a rank's process and its parent: pickles, for the pipe is ours at both ends."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def say(self, word: str, what: object = None) -> None:
        """Send a message; it is pickled here, so that an object that cannot be pickled raises in the caller."""
        self.pipe.send_bytes(pickle.dumps((word, what)))

    def hear(self) -> tuple[str, Any]:
        """Receive the next message."""
        word, what = pickle.loads(self.pipe.recv_bytes())
        return word, what

    def expect(self, word: str) -> Any:
        """What comes with a word; another one ends the talk."""
        heard, what = self.hear()
        if heard != word:
            raise EOFError(heard)
        return what


def _isolate(setup: Setup) -> None:
    """The parent's environment, not that of the server that forks; Ctrl-C is the parent's to deal with; what C++
    libraries print goes to a file that the parent can read."""
    # The fork server was started with another environment, perhaps by an earlier pool.
    os.environ.clear()
    os.environ.update(setup.environment)
    os.chdir(setup.directory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stderr = os.open(setup.folder / f'stderr{setup.rank}', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # At the level of the descriptor: C++ code does not know Python's ``sys.stderr``.
    os.dup2(stderr, 2)


def _die_with_parent(lifeline: Connection) -> None:
    """Have the kernel end this process by SIGIO when the parent's end is closed, whatever C++ code it is in then."""
    flags = fcntl.fcntl(lifeline.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(lifeline.fileno(), fcntl.F_SETOWN, os.getpid())
    # SIGIO ends a process by default, also one that is blocked in C++ code.
    fcntl.fcntl(lifeline.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)


def _watch_parent(lifeline: Connection) -> None:
    """End this process when the parent has gone: it never writes, and the read returns when its end is closed."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _wait_for_the_end() -> None:
    """Stay alive while the parent hears what the other ranks say."""
    time.sleep(INIT_TIMEOUT)


def _join_network(setup: Setup, talk: Talk) -> str:
    """Enter a network namespace of its own, if asked; returns the address of rank 0."""
    if setup.net.kind != 'netns':
        # Loopback: the ranks are on this machine, and other interfaces may go through a firewall.
        os.environ['GLOO_SOCKET_IFNAME'] = 'lo0' if os.uname().sysname == 'Darwin' else 'lo'
        talk.say('hello', os.getpid())
        talk.expect('attached')
        return LOOPBACK
    # Before any socket is opened, since sockets stay in the namespace where they were made.
    netns.enter()
    talk.say('hello', os.getpid())
    talk.expect('attached')
    netns.shape(setup.rank, setup.net.rate)
    os.environ['GLOO_SOCKET_IFNAME'] = netns.DEVICE
    return netns.address(0)


def _serve(setup: Setup, talk: Talk, host: str) -> None:
    store = _store(setup, talk, host)
    status = Status(setup.world, setup.folder / 'status')
    rank = Rank(setup.rank, setup.world, store, setup.net, status, setup.timeout, Clock(), setup.machines)
    programs: dict[str, Program] = {}

    def agree() -> float:
        talk.say('ready')
        begin: float = talk.expect('go')
        return begin

    while True:
        word, what = talk.hear()
        if word == 'load':
            programs[what.hash] = what
            rank.load(what)
            talk.say('loaded')
        elif word == 'run':
            digest, request = what
            talk.say('done', rank.run(programs[digest], request, agree, _watch))
        else:
            return


def _watch(streams: Watched) -> None:
    """The parent watches the clock; here only failures count."""
    while not streams.wait(1.0):
        pass
    if streams.failures:
        raise _Broken(streams.failures)


def _store(setup: Setup, talk: Talk, host: str) -> dist.Store:
    """Open the store: rank 0 serves it and tells the parent where; the parent tells the others."""
    timeout = datetime.timedelta(seconds=INIT_TIMEOUT)
    if setup.rank == 0:
        try:
            store = dist.TCPStore(host, setup.port, is_master=True, timeout=timeout, wait_for_workers=False)
        except (RuntimeError, OSError) as error:
            # Only a taken port has a remedy: any free one. The parent tells it to the others.
            if not setup.port or 'EADDRINUSE' not in str(error):
                raise
            store = dist.TCPStore(host, 0, is_master=True, timeout=timeout, wait_for_workers=False)
        talk.say('port', store.port)
        talk.expect('port')
        return store
    port: int = talk.expect('port')
    return dist.TCPStore(host, port, is_master=False, timeout=timeout)
