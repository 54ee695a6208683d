"""One rank among ranks that somebody else has started: it meets the others at a store, and watches itself."""

from __future__ import annotations

import datetime
import io
import json
import os
import time
from dataclasses import asdict
from typing import Any, Final

import torch
import torch.distributed as dist

from executor.assemble import Execution, assemble_run
from executor.clock import Clock, host_identity, offset_by_ping, sharpen_sleep
from executor.launch import Launch
from executor.rank import INIT_TIMEOUT, Outcome, Rank, Request
from executor.streams import Streams
from executor.watchdog import Failure, Status, explain
from simpar.errors import RunFailed
from simpar.hardware.net import Net
from simpar.program import Program

BEAT: Final = 0.25
"""Seconds between two reports of a rank to the others."""
SILENT: Final = 1.0
"""Seconds without a report after which a rank counts as gone, once something has failed."""
PINGS: Final = 16
Store = Any
"""A store of torch.distributed."""


def run_external(launch: Launch, program: Program, request: Request, net: Net, timeout: float) -> Execution | None:
    """Run a program as one rank of ``launch``; rank 0 gets the Execution, the others None.

    Raises ``RunFailed`` naming rank, op and peer, or what keeps the ranks from meeting.
    """
    if net.kind == 'netns':
        raise RunFailed(f'--net netns needs ranks of its own, but {launch.by} has started them; leave it out')
    if launch.world != program.world:
        raise RunFailed(f'the job is for {program.world} ranks, but {launch.by} has started {launch.world}')
    if launch.local:
        # gloo otherwise picks the interface of the host's name, which may not be reachable from here.
        os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo0' if os.uname().sysname == 'Darwin' else 'lo')
    sharpen_sleep()
    try:
        return _External(launch, program, timeout).run(request, net)
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunFailed(f'rank {launch.rank}: {reason}') from error


class _External:
    """What a rank knows of the others through the store."""

    def __init__(self, launch: Launch, program: Program, timeout: float) -> None:
        self._rank = launch.rank
        self._program = program
        self._timeout = timeout
        self._store = _store(launch)
        self._status = Status(launch.world)
        self._clock, self._notes = common_clock(self._store, self._rank, launch.world)

    def run(self, request: Request, net: Net) -> Execution | None:
        world = self._program.world
        rank = Rank(self._rank, world, self._store, net, self._status, self._timeout, self._clock)
        rank.load(self._program)
        # Nobody else starts or watches this rank, so it agrees and watches by itself.
        outcome = rank.run(self._program, request, self._agree, self._watch)
        self._store.set(f'simpar/outcome/{self._rank}', _packed(outcome))
        if self._rank:
            # Ranks leave together, once rank 0 has read all outcomes.
            self._store.wait(['simpar/end'])
            return None
        outcomes = [_unpacked(self._store.get(f'simpar/outcome/{other}')) for other in range(world)]
        execution = assemble_run(self._program, outcomes, request.compute, self._notes)
        self._store.set('simpar/end', b'1')
        return execution

    def _agree(self) -> float:
        """Wait until all ranks are ready, and return the moment that rank 0 chooses."""
        self._store.set(f'simpar/ready/{self._rank}', b'1')
        if self._rank == 0:
            self._store.wait([f'simpar/ready/{rank}' for rank in range(self._program.world)])
            # A moment ahead, so that every rank has read it before it comes.
            self._store.set('simpar/begin', repr(self._clock.now() + 0.05))
        return float(self._store.get('simpar/begin'))

    def _watch(self, streams: Streams) -> None:
        """Report to the others while streams run; nobody else watches over this rank."""
        finished, moved = -1, time.perf_counter()
        self._report([])
        while not streams.wait(BEAT):
            now = self._status.finished()
            if now != finished:
                finished, moved = now, time.perf_counter()
            # Also without progress: a rank that reports is alive, and only waits.
            self._report([])
            if time.perf_counter() - moved > self._timeout:
                break
        else:
            if not streams.failures:
                return
        raise RunFailed(self._explain(streams.failures))

    def _report(self, failures: list[Failure]) -> None:
        self._store.set(f'simpar/beat/{self._rank}', self._status.row(self._rank))
        self._store.set(f'simpar/beat-at/{self._rank}', repr(self._clock.now()))
        if failures:
            found = [asdict(failure) for failure in failures]
            self._store.set(f'simpar/failures/{self._rank}', json.dumps(found))

    def _explain(self, failures: list[Failure]) -> str:
        """Explain a failure by what this rank and the others know."""
        try:
            self._report(failures)
            # Long enough that a dead rank's last report counts as old, so that the dead are told from the waiting.
            until = time.perf_counter() + SILENT + BEAT
            while time.perf_counter() < until:
                self._report(failures)
                time.sleep(BEAT)
            return self._ask_the_others()
        # The store is gone, and with it rank 0: what this rank knows is all there is.
        except (RuntimeError, OSError):
            reason = explain(self._program, self._status, {}, failures, self._timeout).splitlines()[0]
            return f"{reason}; rank 0, which serves the ranks' store, cannot be reached"

    def _ask_the_others(self) -> str:
        dead: dict[int, str] = {}
        failures: list[Failure] = []
        for rank in range(self._program.world):
            if self._store.check([f'simpar/beat/{rank}', f'simpar/beat-at/{rank}']):
                self._status.put_row(rank, self._store.get(f'simpar/beat/{rank}'))
                age = self._clock.now() - float(self._store.get(f'simpar/beat-at/{rank}'))
            else:
                age = self._timeout
            if age > SILENT:
                dead[rank] = f'has said nothing for {age:.1f} s: it was killed, or its host is lost'
            if self._store.check([f'simpar/failures/{rank}']):
                found = json.loads(self._store.get(f'simpar/failures/{rank}'))
                failures += [Failure(**failure) for failure in found]
        explained = explain(self._program, self._status, dead, failures, self._timeout)
        # One rank prints the table, or the log has as many copies as ranks.
        alive = min(rank for rank in range(self._program.world) if rank not in dead)
        return explained if self._rank == alive else explained.splitlines()[0]


def common_clock(store: Store, rank: int, world: int) -> tuple[Clock, tuple[str, ...]]:
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


def _ping(store: Store, rank: int, turn: int) -> tuple[float, float, float]:
    sent = time.perf_counter()
    store.set(f'simpar/ping/{rank}/{turn}', b'1')
    stamped = float(store.get(f'simpar/pong/{rank}/{turn}'))
    return sent, stamped, time.perf_counter()


def _store(launch: Launch) -> Store:
    timeout = datetime.timedelta(seconds=INIT_TIMEOUT)
    serve = launch.rank == 0 and not launch.served
    try:
        # Without waiting for workers: ranks arrive in any order, and the timeout belongs to what they wait for.
        return dist.TCPStore(launch.host, launch.port, is_master=serve, timeout=timeout, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        text = str(error).splitlines()[0]
        if serve and ('EADDRINUSE' in text or 'in use' in text):
            raise RunFailed(f'rank 0: port {launch.port} is taken; choose another by MASTER_PORT') from None
        raise RunFailed(f'rank {launch.rank}: no store at {launch.host}:{launch.port}: {text}') from None


def _packed(outcome: Outcome) -> bytes:
    content = {
        'arrive': torch.from_numpy(outcome.arrive_KS),
        'end': torch.from_numpy(outcome.end_KS),
        'notes': list(outcome.notes),
        'losses': outcome.losses,
        'parameters': outcome.parameters,
        'gradients': outcome.gradients,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes) -> Outcome:
    # Only tensors and plain values: the store is open to the network, and pickles could run code.
    found = torch.load(io.BytesIO(content), weights_only=True)
    return Outcome(
        arrive_KS=found['arrive'].numpy(),
        end_KS=found['end'].numpy(),
        notes=tuple(found['notes']),
        losses=found['losses'],
        parameters=found['parameters'],
        gradients=found['gradients'],
    )
