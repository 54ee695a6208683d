"""The handshake of ranks that somebody else has started: before any collective, all must ask for the very same run."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import numpy as np
import torch

from executor import data
from executor.process_state import Process, this_process
from executor.rank import INIT_TIMEOUT, Request
from executor.route import local_address
from simpar.cost.costs import Costs
from simpar.errors import RunFailed
from simpar.hardware.net import Net
from simpar.program import Program

Store = Any
"""A store of torch.distributed."""
LINGER: Final = 5.0
"""Seconds for which rank 0, which may serve the store, waits until all have read why the run does not begin."""
POLL: Final = 0.02


@dataclass(frozen=True, slots=True)
class Card:
    """What a rank says of itself.

    Arguments:
        asked: topic → what this rank was asked to run, in words or as a digest; equal on all ranks.
        process: where it runs.
        address: the address from which it reaches the store.
        refusal: why it will not run; empty where it will.
    """

    asked: Mapping[str, str]
    process: Process
    address: str = ''
    refusal: str = ''

    def packed(self) -> str:
        """The card as JSON."""
        of_process = [self.process.host, self.process.pid]
        return json.dumps([dict(self.asked), of_process, self.address, self.refusal])

    @classmethod
    def read(cls, text: str) -> Card:
        """The card of a JSON text."""
        asked, (host, pid), address, refusal = json.loads(text)
        return cls(asked, Process(host, pid), address, refusal)


def asked(program: Program, request: Request, net: Net) -> dict[str, str]:
    """What must be equal on all ranks, topic by topic; the program comes last, since any other topic may explain it."""
    return {
        'ranks': str(program.world),
        'version of simpar': version('simpar'),
        'version of torch': str(torch.__version__),
        'version of numpy': np.__version__,
        'seed': str(request.seed),
        'steps': str(request.steps),
        'dtype': request.dtype or "the job's own",
        'compute': request.compute,
        'network': str(net),
        'device': f'{request.device} {request.transport}'.strip(),
        'data (DATA_PATH)': _data(program),
        'saving of the state': 'on' if request.keep else 'off',
        'costs': _digest_of_costs(request.costs),
        'program': program.hash[:12],
    }


def _data(program: Program) -> str:
    """A digest of the data set that a program reads, if any."""
    if not any(tensor.initial == data.INITIAL for tensor in program.tensors):
        return 'none'
    return data.identity(os.environ.get('DATA_PATH', ''))


def _digest_of_costs(costs: Costs | None) -> str:
    if costs is None:
        return 'none'
    digest = hashlib.sha256()
    for numbers in (costs.compute, costs.host, costs.beside_communication, costs.beside_compute, costs.rank_speed):
        digest.update(np.ascontiguousarray(numbers).tobytes())
    digest.update(repr((sorted(costs.communication.items()), costs.links, costs.waiting_slows)).encode())
    return digest.hexdigest()[:12]


def shake_hands(store: Store, rank: int, world: int, host: str, wanted: Mapping[str, str]) -> list[Card]:
    """Exchange cards with all ranks and return them.

    Arguments:
        host: where the store is.
        wanted: what this rank was asked to run, see ``asked``.
    Raises ``RunFailed`` that names who differs in what, or who refuses to run; all ranks raise the same.
    """
    cards = _exchange(store, rank, world, Card(wanted, this_process(), local_address(host)))
    problems = [f'rank {other} will not run: {card.refusal}' for other, card in enumerate(cards) if card.refusal]
    problems = problems or _differences(cards)
    if problems:
        _let_all_see(store, rank, world)
        raise RunFailed('\n'.join(problems))
    return cards


def refuse(store: Store, rank: int, world: int, reason: str) -> None:
    """Tell the other ranks why this one will not run, so that they do not wait for it."""
    # Whoever cannot be told has its own timeout.
    with suppress(RuntimeError):
        store.set(f'simpar/card/{rank}', Card({}, this_process(), refusal=reason).packed())
        _let_all_see(store, rank, world)


def _exchange(store: Store, rank: int, world: int, card: Card) -> list[Card]:
    store.set(f'simpar/card/{rank}', card.packed())
    until = time.perf_counter() + INIT_TIMEOUT
    for other in range(world):
        while not store.check([f'simpar/card/{other}']):
            if time.perf_counter() > until:
                missing = [str(one) for one in range(world) if not store.check([f'simpar/card/{one}'])]
                raise RunFailed(f'rank {", ".join(missing)} did not come within {INIT_TIMEOUT:g} s')
            time.sleep(POLL)
    return [Card.read(store.get(f'simpar/card/{other}').decode()) for other in range(world)]


def _differences(cards: list[Card]) -> list[str]:
    """A line for each rank that was asked for another run than rank 0, with every topic that differs."""
    lines = []
    for rank, card in enumerate(cards):
        first = cards[0].asked
        topics = [topic for topic in {**first, **card.asked} if first.get(topic) != card.asked.get(topic)]
        # A program that differs is explained by whatever else differs.
        topics = [topic for topic in topics if topic != 'program'] or topics
        if topics:
            told = ', '.join(f'{topic} ({card.asked.get(topic, "?")}, not {first.get(topic, "?")})' for topic in topics)
            lines.append(f'rank {rank} was asked for another run than rank 0: {told}; give every rank the same command')
    return lines


def _let_all_see(store: Store, rank: int, world: int) -> None:
    """Stay, as the store may be rank 0's, until all ranks have read the cards."""
    store.set(f'simpar/seen/{rank}', b'1')
    # Who does not come has gone by itself.
    with suppress(RuntimeError):
        store.wait([f'simpar/seen/{other}' for other in range(world)], datetime.timedelta(seconds=LINGER))
