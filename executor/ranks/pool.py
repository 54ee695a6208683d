"""The pool: ranks that are started once and run program after program, watched by the process that started them.

A rank's process does what the parent says through a pipe, and goes when the parent has gone.
"""

import datetime
import fcntl
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import torch
import torch.distributed as dist

from executor import netns
from executor.host import Clock, Process, memory_variables, pin, sharpen_sleep, this_process
from executor.ranks.rank import Machines, Rank, Watched
from executor.ranks.watchdog import BusyThreads, Failure, Seen, Status, death, explain
from executor.state import INIT_TIMEOUT, Execution, Finish, Outcome, Request, assemble_run
from executor.validate import validate
from simpar.cost.costs import Costs
from simpar.errors import RunFailed, SimparError
from simpar.files import remove_at_the_end
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


def serve(setup: Setup, pipe: Connection, lifeline: Connection) -> NoReturn:
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
    own = setup.net.kind == 'netns'
    if own:
        # Before any socket is opened, since sockets stay in the namespace where they were made.
        netns.enter()
    talk.say('hello', os.getpid())
    talk.expect('attached')
    if own:
        netns.shape(setup.rank, setup.net.rate)
    # Loopback: the ranks are on this machine, and other interfaces may go through a firewall.
    loopback = 'lo0' if os.uname().sysname == 'Darwin' else 'lo'
    os.environ['GLOO_SOCKET_IFNAME'] = netns.DEVICE if own else loopback
    return netns.address(0) if own else LOOPBACK


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


# The pool: ranks that are started once and run program after program, watched by the process that started them.


class Child(Talk):
    """A process and our ends of its pipes; it goes when ``held`` is closed."""

    def __init__(self, process: Any, pipe: Connection, held: Connection) -> None:
        super().__init__(pipe)
        self.process = process
        self.mute = False
        self._held = held

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def say(self, word: str, what: object = None) -> None:
        """Send a message, to whoever still hears it."""
        try:
            super().say(word, what)
        except OSError:
            self.mute = True

    def last_failures(self) -> list[Failure]:
        """Failures that the rank still reports."""
        try:
            word, what = self.hear()
        except (EOFError, OSError):
            self.mute = True
            return []
        return list(what) if word == 'failed' else []

    def end(self, until: float) -> None:
        """Wait for the process until then, and kill it if it is still there."""
        # Closing the lifeline makes the kernel signal a child that hangs in C++ code.
        self._held.close()
        self.process.join(max(0.0, until - time.perf_counter()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.process.close()


# The pool: ranks that are started once and run program after program, watched by the process that started them.


@contextmanager
def _variables(more: Mapping[str, str]) -> Iterator[None]:
    """Within it, programs are started with these variables, too."""
    os.environ.update(more)
    try:
        yield
    finally:
        for name in more:
            del os.environ[name]


GRACE: Final = 0.5
"""Seconds in which other ranks may still say what they know, once one has failed."""
HEAD_START: Final = 0.01
"""Seconds from the moment that all ranks are ready until the program begins."""


Own = TypeVar('Own', bound='Pool')


class Pool:
    """``world`` processes on this machine, one a rank, that keep their process groups from program to program.

    Arguments:
        net: the network that joins the ranks, see ``parse_net``.
        timeout: seconds without progress after which a run has failed.
        port: the port of rank 0's store, 0 for any free one. A taken port is replaced, and ``notes`` say so.
        pinned: whether every rank keeps to one core.
    After a failure the pool is closed and no process is left.
    Raises ``RunFailed`` where ranks cannot be started or the network cannot be built.
    """

    def __init__(
        self, world: int, *, net: Net | None = None, timeout: float = 30.0, port: int = 0, pinned: bool = False
    ) -> None:
        self.world = world
        self.net = net or Net()
        self.notes: tuple[str, ...] = ()
        self._timeout = timeout
        self._host = this_process().host
        self._folder = Path(tempfile.mkdtemp(prefix='simpar-'))
        # The fork server's folder, too: it is the process's, and the command ends without Python's own clearing up.
        for folder in (self._folder, Path(get_temp_dir())):
            remove_at_the_end(folder)
        self._status = Status(world, self._folder / 'status')
        # A fork of this process would copy its threads' locks, and a spawn would import torch anew in every rank.
        self._context = multiprocessing.get_context('forkserver')
        # The server imports torch once; ranks are forked from it in milliseconds.
        self._context.set_forkserver_preload(['executor.ranks.pool'])
        with _variables(memory_variables()):
            forkserver.ensure_running()
        self._children: list[Child] = []
        self._hub: Child | None = None
        self._loaded: set[str] = set()
        # Ranks share the cores: more OpenMP threads than cores would spin against one another.
        threads = 1 if pinned else max(1, (os.cpu_count() or 1) // world)
        try:
            # The hub comes first: it holds the bridge to which every rank's cable goes.
            if self.net.kind == 'netns':
                self._hub = self._start_hub()
            for rank in range(world):
                setup = Setup(
                    rank=rank,
                    world=world,
                    environment=dict(os.environ),
                    directory=os.getcwd(),
                    folder=self._folder,
                    net=self.net,
                    timeout=timeout,
                    port=port,
                    threads=threads,
                    pinned=pinned,
                    machines=self._machines(rank),
                )
                self._children.append(self._start(serve, setup))
            self._connect(port)
        # Also on Ctrl-C in the middle: no process may be left behind.
        except BaseException:
            self.close(grace=0.0)
            raise

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def processes(self) -> tuple[int, ...]:
        """The process ids of the ranks."""
        return tuple(child.pid for child in self._children)

    def run(self, program: Program, costs: Costs | None = None, **wanted: Any) -> Execution:
        """Run a program for some steps, back to back.

        Arguments: ``costs``, seconds of every op, for ``compute='emulated'``; all others as of ``Request``.
        Raises ``ProgramError`` where the program is not valid, ``RunFailed`` naming rank, op and peer where it broke.
        """
        return self.perform(program, Request(costs=costs, **wanted))

    def perform(self, program: Program, request: Request, finish: Finish | None = None) -> Execution:
        """Run a program as a request says; see ``run``.

        Arguments: ``finish``, what is done with the outcomes of all ranks.
        """
        if not self._children:
            raise RunFailed('the pool is closed')
        if program.world > self.world:
            raise RunFailed(f'the program is for {program.world} ranks, the pool has {self.world}')
        # Programs are equal if their hashes are, so each is validated and loaded once for a pool.
        if program.hash not in self._loaded:
            validate(program)
        try:
            self._load(program)
            outcomes = self._run(program, request)
        except BaseException:
            self.close(grace=0.0)
            raise
        execution = assemble_run(program, outcomes, request.compute, self.notes)
        if finish is not None:
            finish(execution, outcomes)
        return execution

    def cut(self, rank: int) -> None:
        """Take a rank's cable out (namespaces only); the run in progress then fails."""
        if self._hub is not None:
            self._ask_hub('cut', rank, 0)

    def close(self, grace: float = GRACE) -> None:
        """End all processes; those that have not gone by themselves within ``grace`` seconds are killed."""
        for child in self._children:
            # Asked first: a rank that ends by itself closes its sockets, and its peers see no broken connection.
            child.say('stop')
        # One deadline for all children, not one for each, so that closing takes no longer with more ranks.
        until = time.perf_counter() + grace
        for child in (*self._children, *([self._hub] if self._hub else [])):
            child.end(until)
        self._children, self._hub = [], None
        shutil.rmtree(self._folder, ignore_errors=True)

    # starting

    def _machines(self, rank: int) -> Machines:
        """What runs the ops of a rank's streams."""
        return Machines()

    def _start(self, target: Callable[..., object], *arguments: object) -> Child:
        ours, theirs = self._context.Pipe()
        # Nothing is ever written to this pipe. Its end tells the child that the parent is gone, whatever killed the
        # parent.
        lifeline, held = self._context.Pipe(duplex=False)
        process = self._context.Process(target=target, args=(*arguments, theirs, lifeline), daemon=True)
        process.start()
        # The child has copies; were ours open, a dead child's pipe would never report its end.
        theirs.close()
        lifeline.close()
        return Child(process, ours, held)

    def _start_hub(self) -> Child:
        netns.require()
        if self.world > netns.MAX_RANKS:
            raise RunFailed(f'a network of namespaces has room for {netns.MAX_RANKS} ranks, not for {self.world}')
        child = self._start(netns.hub)
        if problem := child.pipe.recv():
            child.end(0.0)
            raise RunFailed(problem)
        return child

    def _ask_hub(self, word: str, rank: int, process: int) -> None:
        if self._hub is None:
            raise RunFailed('the pool is closed, and its network with it')
        self._hub.pipe.send((word, rank, process))
        if problem := self._hub.pipe.recv():
            raise RunFailed(problem)

    def _connect(self, port: int) -> None:
        """Put the ranks into their network, start rank 0's store, and connect all ranks to it."""
        pids = self._gather('hello', INIT_TIMEOUT)
        for rank, child in enumerate(self._children):
            if self.net.kind == 'netns':
                self._ask_hub('attach', rank, pids[rank])
            child.say('attached')
        # Rank 0 opens the store and reports its port before any other rank is told where to connect.
        (store_port,) = self._gather('port', INIT_TIMEOUT, self._children[:1])
        # A taken port is no failure: the ranks are ours and learn the new one. The user is told, for a firewall may
        # matter.
        if port and store_port != port:
            self.notes += (f'port {port} was taken; took {store_port}',)
        for child in self._children:
            child.say('port', store_port)

    # running

    def _load(self, program: Program) -> None:
        """Have the ranks open the channels that a program needs, unless they have done so."""
        if program.hash not in self._loaded:
            for child in self._children:
                child.say('load', program)
            self._gather('loaded', INIT_TIMEOUT + self._timeout)
            self._loaded.add(program.hash)

    def _run(self, program: Program, request: Request) -> list[Outcome]:
        self._status.clear()
        children = self._children[: program.world]
        for child in children:
            child.say('run', (program.hash, request))
        self._gather('ready', INIT_TIMEOUT + self._timeout, children)
        # All ranks get one moment in the future instead of a signal, so that the order of wake-ups does not skew the
        # start.
        begin = time.perf_counter() + HEAD_START
        for child in children:
            child.say('go', begin)
        outcomes: list[Outcome] = self._gather('done', self._timeout, children, program)
        return outcomes

    def _gather(
        self, word: str, timeout: float, children: Sequence[Child] | None = None, program: Program | None = None
    ) -> list[Any]:
        """Collect what every rank answers to ``word``.

        Raises ``RunFailed`` where one fails or dies, or where for ``timeout`` seconds nobody says anything and, while
        a program runs, no op finishes.
        """
        children = self._children if children is None else children
        said: dict[int, Any] = {}
        moved, finished = time.perf_counter(), -1
        while len(said) < len(children):
            # Ranks that have answered may rightly be quiet; only the others are watched.
            silent = [rank for rank in range(len(children)) if rank not in said]
            pairs = ((children[rank].pipe, children[rank].process.sentinel) for rank in silent)
            ready = wait([*chain.from_iterable(pairs)], timeout=0.1)
            for rank in silent:
                # The pipe before the sentinel: a rank that failed has often said why before it ended.
                if children[rank].pipe in ready:
                    said[rank] = self._hear(children[rank], word, program)
                # It died without a word (killed, or aborted in C++).
                elif children[rank].process.sentinel in ready:
                    self._fail(program, [])
            # Progress anywhere counts as a sign of life: a rank may rightly wait long for a slow peer.
            now = self._status.finished()
            if now != finished or any(rank in said for rank in silent):
                moved, finished = time.perf_counter(), now
            if time.perf_counter() - moved > timeout:
                self._fail(program, [])
        return [said[rank] for rank in range(len(children))]

    def _hear(self, child: Child, word: str, program: Program | None) -> Any:
        try:
            heard, what = child.hear()
        except EOFError:
            self._fail(program, [])
        if heard == 'failed':
            self._fail(program, what)
        if heard != word:
            raise what if isinstance(what, SimparError) else RunFailed(f'rank {self._children.index(child)}: {what}')
        return what

    def _fail(self, program: Program | None, failures: list[Failure]) -> None:
        """Hear what the other ranks report, then raise ``RunFailed``."""
        until = time.perf_counter() + GRACE
        failures = list(failures)
        busy = BusyThreads(self._status, {rank: child.pid for rank, child in enumerate(self._children)})
        # The first report is often a mere consequence (a lost peer); the cause may come a moment later.
        while (left := until - time.perf_counter()) > 0:
            for child in self._speaking(left):
                failures += child.last_failures()
        dead = {rank: self._death(rank, child) for rank, child in enumerate(self._children) if child.process.exitcode}
        if program is not None:
            seen = Seen(dead, self._stopped(), busy.found())
            raise RunFailed(explain(program, self._status, seen, failures, self._timeout))
        how = '; '.join(f'rank {rank} {reason}' for rank, reason in dead.items())
        how = how or '; '.join(f'rank {rank} is stopped' for rank in sorted(self._stopped()))
        slow = f'the {len(self._children)} ranks did not come up in {INIT_TIMEOUT:g} s on {os.cpu_count()} cores'
        advice = 'let other work on this machine end, or take fewer ranks (of simpar calibrate: --ranks 2)'
        raise RunFailed(how or f'{slow}: each is a process that imports torch; {advice}')

    def _stopped(self) -> frozenset[int]:
        """Ranks whose processes somebody has stopped."""
        states = [Process(self._host, child.pid).state for child in self._children]
        return frozenset(rank for rank, state in enumerate(states) if state == 'stopped')

    def _speaking(self, seconds: float) -> list[Child]:
        """Return the ranks that speak within some seconds; a pipe that has ended speaks once."""
        able = [child for child in self._children if not child.mute]
        # ``wait`` returns at once for an empty list, and the caller would spin.
        if not able:
            time.sleep(min(seconds, 0.05))
            return []
        ready = wait([child.pipe for child in able], timeout=seconds)
        return [child for child in able if child.pipe in ready]

    def _death(self, rank: int, child: Child) -> str:
        stderr = self._folder / f'stderr{rank}'
        return death(child.process.exitcode or 0, stderr.read_text(errors='replace') if stderr.exists() else '')
