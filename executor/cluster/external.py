"""One rank among ranks that somebody else has started: it meets the others at a store, and watches itself."""

import datetime
import io
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist

from executor.cluster import Launch, meeting
from executor.host import Clock, host_identity, offset_by_ping, sharpen_sleep
from executor.ranks import watchdog
from executor.ranks.rank import Machines, Rank, Watched
from executor.state import INIT_TIMEOUT, Execution, Finish, Outcome, Request, assemble_run
from simpar.errors import RunFailed, SimparError
from simpar.hardware.net import Net
from simpar.program import Program

# The store at which ranks meet that somebody else has started, and the clock that they agree on there.

PINGS: Final = 16


def common_clock(store: watchdog.Store, rank: int, world: int) -> tuple[Clock, tuple[str, ...]]:
    """Return rank 0's clock, and a note where ranks on other hosts estimate it by pings."""
    store.set(f'simpar/host/{rank}', host_identity().encode())
    # Only ranks away from rank 0 need pings: one host has one monotonic clock.
    hosts = [store.get(f'simpar/host/{other}') for other in range(world)]
    away = [other for other in range(world) if hosts[other] != hosts[0]]
    notes = (f'clocks of {len(away)} ranks on other hosts were aligned by pings',) if away else ()
    if rank == 0:
        for other in away:
            for turn in range(PINGS):
                # One ping at a time: two at once would queue, and bias the estimate.
                store.wait([f'simpar/ping/{other}/{turn}'])
                store.set(f'simpar/pong/{other}/{turn}', repr(time.perf_counter()))
    if rank not in away:
        return Clock(), notes
    turns = iter(range(PINGS))
    offset, _ = offset_by_ping(lambda: _ping(store, rank, next(turns)), PINGS)
    return Clock(offset), notes


def _ping(store: watchdog.Store, rank: int, turn: int) -> tuple[float, float, float]:
    sent = time.perf_counter()
    store.set(f'simpar/ping/{rank}/{turn}', b'1')
    stamped = float(store.get(f'simpar/pong/{rank}/{turn}'))
    return sent, stamped, time.perf_counter()


def wall_clocks(store: watchdog.Store, own: int, count: int, clock: Clock) -> list[float]:
    """The wall clock of each of those that meet at one moment, the zero of their common clock."""
    store.set(f'simpar/wall/{own}', repr(time.time() - clock.now()))
    return [float(store.get(f'simpar/wall/{index}')) for index in range(count)]


def store_of(launch: Launch, seconds: float = INIT_TIMEOUT) -> watchdog.Store:
    """The store at which all ranks meet. Arguments: ``seconds`` to wait for it."""
    noun, place = launch.noun, f'{launch.host}:{launch.port}'
    timeout = datetime.timedelta(seconds=seconds)
    serve = launch.rank == 0 and not launch.served
    try:
        # A name that nobody knows would be asked for again and again for a minute.
        socket.getaddrinfo(launch.host, launch.port)
        # torch waits twice as long as it is told to, and prints its C++ stack.
        if not serve and (reason := meeting.knock(launch.host, launch.port, seconds)):
            server = f'the launcher on {launch.host}' if launch.served else f'{noun} 0 (on {launch.host})'
            raise RunFailed(
                f'{noun} {launch.rank}: nothing answers at {place} ({reason}): {server} did not come within '
                f'{seconds:g} s, or a firewall keeps it away'
            )
        # Without waiting for workers: ranks arrive in any order, and the timeout belongs to what they wait for.
        store = dist.TCPStore(launch.host, launch.port, is_master=serve, timeout=timeout, wait_for_workers=False)
        # torchrun's own store outlives a restart of the ranks, with all that was written there before.
        return dist.PrefixStore(f'simpar/{os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")}', store)
    except (RuntimeError, OSError) as error:
        text = str(error).splitlines()[0]
        if serve and ('EADDRINUSE' in text or 'in use' in text):
            raise RunFailed(f'{noun} 0: port {launch.port} is taken; choose another by MASTER_PORT') from None
        raise RunFailed(f'{noun} {launch.rank}: no store at {place}: {text}') from None


# One rank among ranks that somebody else has started: it meets the others at a store, and watches itself.

UNANSWERED: Final = 5.0
"""Seconds without an answer of the store, after which it counts as lost."""
BEAT: Final = 0.25
"""Seconds between two reports of a rank to the others."""
SILENT: Final = 1.0
"""Seconds without a report after which a rank counts as gone, once something has failed."""
SOONER: Final = 16
"""The first look at the store comes so many times sooner than later ones follow one another."""
REFUSAL: Final = 10.0
"""Seconds for which a rank that will not run looks for the others."""
KILLED: Final = 'was killed, or has ended without a word'


@contextmanager
def launched(
    launch: Launch, program: Program, net: Net, timeout: float, meet: float = INIT_TIMEOUT, *, check: bool = True
) -> Iterator[Callable[[Request, Finish | None], Execution | None]]:
    """Within it, this process is one rank of ``launch``: what runs a request; rank 0 gets the Execution, others None.

    Arguments:
        timeout: seconds without progress after which the run has failed.
        meet: seconds in which all ranks must come.
        check: whether a preflight looks at memory and network before the run.
    Raises ``RunFailed`` naming rank, op and peer, or what keeps the ranks from meeting.
    """
    if net.kind == 'netns':
        raise RunFailed(f'--net netns needs ranks of its own, but {launch.by} has started them; leave it out')
    if launch.world != program.world:
        raise RunFailed(f'the job is for {program.world} ranks, but {launch.by} has started {launch.world}')
    sharpen_sleep()
    ranks: External | None = None

    def perform(request: Request, finish: Finish | None = None) -> Execution | None:
        nonlocal ranks
        if ranks is None:
            ranks = External(launch, program, timeout, meeting.asked(program, request, net), meet)
            if check:
                ranks.preflight(meeting.bytes_of_ranks(program, request.dtype))
        try:
            return ranks.run(request, net, finish)
        except SystemExit:
            # A launcher ends all ranks as soon as one has gone.
            if reason := ranks.missing():
                raise RunFailed(reason) from None
            raise

    # What an earlier run has left is not why this one fails.
    if launch.rank == 0:
        Path(watchdog.FAILED).unlink(missing_ok=True)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    with errors_of(launch):
        yield perform


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


@contextmanager
def errors_of(launch: Launch) -> Iterator[None]:
    """Within it, errors of torch's are those of a rank."""
    try:
        yield
    except RunFailed as error:
        watchdog.write_failure(str(error))
        raise
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        watchdog.write_failure(f'rank {launch.rank}: {reason}')
        raise RunFailed(f'rank {launch.rank}: {reason}') from error


def refuse_external(launch: Launch, reason: str) -> None:
    """Tell the other ranks of a launch why this one will not run, so that they do not wait for it."""
    # They have a timeout of their own where the store cannot be reached.
    with suppress(SimparError, RuntimeError):
        meeting.refuse(store_of(launch, REFUSAL), launch.rank, launch.world, reason.splitlines()[0])


def _set_interface(host: str, rank: int, cards: Sequence[meeting.Card]) -> None:
    """Let gloo talk over the interface that leads to the store, or to ranks on other hosts."""
    # gloo otherwise takes the interface of the host's own name, which often is the loopback's, also among hosts.
    if 'GLOO_SOCKET_IFNAME' in os.environ:
        return
    others = [card.address for card in cards if card.process.host != cards[rank].process.host]
    name = meeting.interface_to([host, *others])
    if not name and not others:
        name = 'lo0' if os.uname().sysname == 'Darwin' else 'lo'
    if name:
        os.environ['GLOO_SOCKET_IFNAME'] = name


class External:
    """What a rank knows of the others through the store."""

    def __init__(
        self, launch: Launch, program: Program, timeout: float, wanted: Mapping[str, str], meet: float
    ) -> None:
        self._launch = launch
        self._rank = launch.rank
        self._program = program
        self._timeout = timeout
        self._base = self._store = store_of(launch, meet)
        self._ready: Rank | None = None
        self._runs = 0
        # Where torchrun's agent serves the store, it outlives rank 0.
        self._served = launch.served
        # Before any group is made: ranks that want different runs would hang in different collectives.
        self._cards = meeting.shake_hands(self._store, launch, wanted, meet)
        # From here on ranks wait for work of one another, not for hosts that may not come.
        self._store.set_timeout(datetime.timedelta(seconds=max(meet, INIT_TIMEOUT)))
        _set_interface(launch.host, launch.rank, self._cards)
        self._status = watchdog.Status(launch.world)
        self._clock, self._notes = common_clock(self._store, self._rank, launch.world)
        # While ops may go on, the store is given as long as they are.
        self._waiting, self._guard = (watchdog.Guard(most, self._by_itself) for most in (timeout, UNANSWERED))

    def preflight(self, needs: Sequence[int]) -> None:
        """Check hosts and network. Arguments: ``needs``, bytes of each rank."""
        places = meeting.places_of(self._cards, [(rank,) for rank in range(len(self._cards))])
        self._notes += meeting.preflight(self._store, self._rank, self._cards, places, needs)
        walls = wall_clocks(self._store, self._rank, len(self._cards), self._clock)
        self._notes += meeting.clocks_apart(places, dict(enumerate(walls)))

    def run(self, request: Request, net: Net, finish: Finish | None = None) -> Execution | None:
        """Run once, or one stretch of a training, and go on together with the others.

        Arguments: ``finish``, what rank 0 does with the outcome before any rank goes on.
        """
        # Each run has keys of its own.
        self._store = dist.PrefixStore(f'run{self._runs}', self._base)
        self._runs += 1
        # Nobody else starts or watches this rank, so it agrees and watches by itself.
        with ExitStack() as preparing:
            preparing.enter_context(self._pulse('ready'))
            rank = self._loaded(net)

            def agree() -> float:
                begin = self._agree()
                preparing.close()
                return begin

            outcome = rank.run(self._program, request, agree, self._watch)
        with self._pulse('outcome'):
            execution = self._finish(outcome, request, finish)
        self._part()
        return execution

    def _part(self) -> None:
        """Let rank 0, which may serve the store, go last."""
        self._store.set(f'simpar/left/{self._rank}', b'1')
        if self._rank == 0:
            meeting.let_all_see(self._store, 0, range(self._program.world), 'left')

    def _finish(self, outcome: Outcome, request: Request, finish: Finish | None) -> Execution | None:
        world = self._program.world
        self._store.set(f'simpar/outcome/{self._rank}', _packed(outcome))
        if self._rank:
            # Ranks leave together, once rank 0 has read all outcomes.
            self._await(['simpar/end'])
            return None
        self._await([f'simpar/outcome/{rank}' for rank in range(world)])
        outcomes = [_unpacked(self._store.get(f'simpar/outcome/{other}')) for other in range(world)]
        execution = assemble_run(self._program, outcomes, request.compute, self._notes)
        if finish is not None:
            finish(execution, outcomes)
        self._store.set('simpar/end', b'1')
        return execution

    def _loaded(self, net: Net) -> Rank:
        """The rank, with the groups that the program needs."""
        if self._ready is None:
            world = self._program.world
            where = (self._status, self._timeout, self._clock, self._machines(), self._launch.started)
            self._ready = Rank(self._rank, world, self._base, net, *where)
        # Programs may follow one another; one that is known is not loaded again.
        self._ready.load(self._program)
        self._status.clear()
        return self._ready

    def _machines(self) -> Machines:
        """What runs the ops of this rank's streams."""
        return Machines()

    def _pulse(self, done: str) -> watchdog.Pulse:
        """Signs of life on a connection of its own. Arguments: ``done``, the key of those that are through."""
        again, prefix = replace(self._launch, served=True), f'run{self._runs - 1}'
        hosts = [card.host.name for card in self._cards]
        return watchdog.Pulse(lambda: dist.PrefixStore(prefix, store_of(again)), self._rank, hosts, done)

    def _await(self, keys: list[str]) -> None:
        """Wait, without end and in Python, so that signals are heard; the pulse tells who is lost meanwhile."""
        # The more ranks, the less often each asks; at first more often, for most have come by then.
        pause = longest = max(meeting.POLL, self._program.world / 5000)
        pause /= SOONER
        while not self._store.check(keys):
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _agree(self) -> float:
        """Wait until all ranks are ready, and return the moment that rank 0 chooses."""
        # Drawing the weights of a large model takes minutes.
        self._store.set(f'simpar/ready/{self._rank}', b'1')
        if self._rank == 0:
            self._await([f'simpar/ready/{rank}' for rank in range(self._program.world)])
            # A moment ahead, so that every rank has read it before it comes.
            self._store.set('simpar/begin', repr(self._clock.now() + 0.05 + self._program.world / 2500))
        self._await(['simpar/begin'])
        return float(self._store.get('simpar/begin'))

    def _watch(self, streams: Watched) -> None:
        """Report to the others while streams run; nobody else watches over this rank."""
        finished, moved = -1, time.perf_counter()
        busy: watchdog.BusyThreads | None = None
        with self._waiting:
            self._report([], busy)
        while not streams.wait(BEAT):
            now, still = self._status.finished(), time.perf_counter() - moved
            if now != finished:
                finished, moved, busy = now, time.perf_counter(), None
            # Threads are looked at only where a run may be lost, for that takes time from them.
            elif busy is None and still > self._timeout / 2:
                busy = watchdog.BusyThreads(self._status, {self._rank: os.getpid()})
            # Also without progress: a rank that reports is alive, and only waits.
            with self._waiting:
                self._report([], busy)
            if still > self._timeout:
                break
        else:
            if not streams.failures:
                return
        raise RunFailed(self._explain(streams.failures, busy))

    def _report(self, failures: list[watchdog.Failure], busy: watchdog.BusyThreads | None) -> None:
        self._store.set(f'simpar/beat/{self._rank}', self._status.row(self._rank))
        self._store.set(f'simpar/beat-at/{self._rank}', repr(self._clock.now()))
        if failures:
            self._store.set(f'simpar/failures/{self._rank}', json.dumps(list(map(asdict, failures))))
        if busy is not None:
            shares = [[*key, share] for key, share in busy.found().items()]
            self._store.set(f'simpar/busy/{self._rank}', json.dumps(shares))

    def _explain(self, failures: list[watchdog.Failure], busy: watchdog.BusyThreads | None) -> str:
        """Explain a failure by what this rank and the others know."""
        # A rank 0 that is stopped or gone answers nothing: its store would keep this rank for a minute.
        if not self._served and self._cards[0].process.state in ('stopped', 'gone'):
            return self._by_itself(failures, busy)
        try:
            with self._guard:
                self._store.check(['simpar/begin'])
            # Long enough that a dead rank's last report counts as old, so that the dead are told from the waiting.
            until = time.perf_counter() + SILENT + BEAT
            while time.perf_counter() < until:
                with self._guard:
                    self._report(failures, busy)
                time.sleep(BEAT)
            return self._ask_the_others()
        # The store is gone, and with it rank 0: what this rank knows is all there is.
        except (RuntimeError, OSError):
            return self._by_itself(failures, busy)

    def _by_itself(self, failures: Sequence[watchdog.Failure] = (), busy: watchdog.BusyThreads | None = None) -> str:
        """What this rank knows where rank 0, and so the store, cannot be reached."""
        states = {rank: card.process.state for rank, card in enumerate(self._cards)}
        dead = {rank: KILLED for rank, state in states.items() if state == 'gone'}
        stopped = frozenset(rank for rank, state in states.items() if state == 'stopped')
        seen = watchdog.Seen(dead, stopped, busy.found() if busy else {})
        reason = watchdog.explain(self._program, self._status, seen, failures, self._timeout).splitlines()[0]
        server = f'the launcher on {self._cards[0].host.name}' if self._served else 'rank 0'
        return f"{reason}; {server}, which serves the ranks' store, cannot be reached"

    def missing(self) -> str:
        """Which ranks of this host had gone before the launcher ended all, in words; empty: none."""
        gone = [rank for rank, card in enumerate(self._cards) if card.process.state == 'gone']
        with suppress(RuntimeError, OSError), self._guard:
            self._base.set(f'simpar/ended/{self._rank}', b'1')
            # Those that the launcher has ended, too, have said so.
            gone = [rank for rank in gone if not self._base.check([f'simpar/ended/{rank}'])]
            for rank in range(self._program.world):
                self._hear(rank)
        seen = watchdog.Seen(dict.fromkeys(gone, KILLED))
        return watchdog.explain(self._program, self._status, seen, [], self._timeout).splitlines()[0] if gone else ''

    def _ask_the_others(self) -> str:
        dead: dict[int, str] = {}
        stopped: set[int] = set()
        busy: dict[tuple[int, int], float] = {}
        failures: list[watchdog.Failure] = []
        for rank, card in enumerate(self._cards):
            with self._guard:
                age = self._hear(rank)
                busy |= {(of, stream): share for of, stream, share in self._reported('busy', rank)}
                reported = self._reported('failures', rank)
                failures += [watchdog.Failure(**failure) for failure in reported]
            state = card.process.state
            if state == 'stopped':
                stopped.add(rank)
            # A rank that has said why it failed may have ended since.
            elif age > SILENT and not reported:
                host = meeting.on_host(card, self._cards)
                since = f'for {age:.1f} s' if age < math.inf else 'since the run began'
                quiet = f'{host}has said nothing {since}: it was killed or stopped, or its host is lost'
                dead[rank] = KILLED if state == 'gone' else quiet
        seen = watchdog.Seen(dead, frozenset(stopped), busy)
        explained = watchdog.explain(self._program, self._status, seen, failures, self._timeout)
        # One rank prints the table, or the log has as many copies as ranks.
        alive = min(rank for rank in range(self._program.world) if rank not in dead and rank not in stopped)
        return explained if self._rank == alive else explained.splitlines()[0]

    def _reported(self, topic: str, rank: int) -> list[Any]:
        key = f'simpar/{topic}/{rank}'
        reports: list[Any] = json.loads(self._store.get(key)) if self._store.check([key]) else []
        return reports

    def _hear(self, rank: int) -> float:
        """Take over what a rank said last; returns how many seconds ago that was, without end where it said nothing."""
        if not self._store.check([f'simpar/beat/{rank}', f'simpar/beat-at/{rank}']):
            return math.inf
        self._status.put_row(rank, self._store.get(f'simpar/beat/{rank}'))
        return self._clock.now() - float(self._store.get(f'simpar/beat-at/{rank}'))


TIMES: Final = ('arrive_KS', 'end_KS', 'cpu')


def _packed(outcome: Outcome) -> bytes:
    content = {one.name: getattr(outcome, one.name) for one in fields(outcome)}
    times = {name: torch.from_numpy(content[name]) for name in TIMES}
    buffer = io.BytesIO()
    torch.save({**content, **times, 'notes': list(outcome.notes)}, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes) -> Outcome:
    # Only tensors and plain values: the store is open to the network, and pickles could run code.
    entries = torch.load(io.BytesIO(content), weights_only=True)
    times = {name: entries[name].numpy() for name in TIMES}
    return Outcome(**{**entries, **times, 'notes': tuple(entries['notes'])})
