"""docs/proofs/performance.md, from what was measured."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numba
import numpy as np
import simpy

from benchmarks.engines import SWEPT, Stages, Swept
from benchmarks.laps import Laps, Spread, short
from benchmarks.peers import PEERS, Peer, commit_of
from benchmarks.recordings import ROUNDS, Read

PAGE: Final = Path(__file__).parent.parent / 'docs' / 'proofs' / 'performance.md'


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that is reported.

    Arguments:
        rounds: how often each contender ran.
        engines: what was simulated by all engines, its slots, and their laps.
        stages: what was timed stage by stage, and what it took.
        swept: the sweep.
        recordings: what reading them took.
        peers: those that were given.
    """

    rounds: int
    engines: dict[str, tuple[int, Laps]]
    stages: dict[str, Stages]
    swept: Swept
    recordings: list[Read]
    peers: list[Peer]


def page(found: Measured) -> str:
    """The whole page."""
    parts = (
        _head(found),
        _engines(found),
        _stages(found),
        sweep_part(found.swept),
        recordings_part(found.recordings),
        _peers(found),
    )
    return '\n\n'.join(parts) + '\n'


def _head(found: Measured) -> str:
    versions = f'numba {numba.__version__}, NumPy {np.__version__}, SimPy {simpy.__version__}'
    return f"""# Performance

`make bench` measures all of this and writes this page. Measured at commit {own_commit()}, on two shared cores,
Python {platform.python_version()}, {versions}.

- Figures are CPU seconds of one thread, so that what others do on the machine counts little. Contenders run in turns,
  at most {found.rounds} rounds. A figure is the median, and in brackets stand the quartiles.
- **Speed** is a ratio within a round: 1 is as fast, 2 twice as fast.
- A **slot** is an op of a rank in a step. A prediction simulates three steps, and each slot counts in each of them."""


def _engines(found: Measured) -> str:
    rows = [
        (name, _count(slots), *(_micro(laps.of(engine), slots) for engine in laps.seconds), _times(laps))
        for name, (slots, laps) in found.engines.items()
    ]
    heads = (
        '',
        'slots',
        *(f'{engine}, µs a slot' for engine in ('SimPy', 'Python', 'compiled')),
        'compiled over SimPy',
    )
    return f"""## SimPy, Python and compiled

From a program and its costs to its trace, every rank, one step; graph and trace included.

{_table(heads, rows)}"""


def _stages(found: Measured) -> str:
    rows = [
        (
            name, f'{stages.ranks:,}', _count(stages.slots),
            *(short(part.median) for part in (
                stages.lowering, stages.pricing, stages.folding, stages.ops, stages.costs, stages.simulation,
            )),
            str(stages.microseconds),
        )
        for name, stages in found.stages.items()
    ]  # fmt: skip
    heads = ('', 'ranks', 'slots of all steps', 'lower', 'price', 'fold', 'ops', 'costs', 'simulate', 'µs a slot')
    return f"""## From a plan to its times

CPU seconds of each stage with all effects, three steps. Folded, one rank stands for all that behave alike; the times
are the same to the bit. The last column is the simulation alone, with the arrays that it works on.

{_table(heads, rows)}"""


def sweep_part(found: Swept) -> str:
    """The part of the page that is about sweeps."""
    rows = [
        (name, str(count), str(seconds.times(1e3 / count)), short(count / seconds.median))
        for name, (count, seconds) in found.items()
    ]
    return f"""## Sweep

Variants of `examples/{SWEPT.name}`, each row with its step and memory. One process predicts all rows of a sweep, and
then all again. A sweep keeps only what its last few rows share, so the second time it does nearly all of the work anew.
What is done but once is not counted: the machines are loaded and the profile's tables read. Measured at commit
{own_commit()}.

{_table(('rows that differ in', 'rows', 'CPU ms a row', 'rows a second and core'), rows)}"""


def recordings_part(found: Sequence[Read]) -> str:
    """The part of the page that is about recordings."""
    rows = [
        (
            one.format,
            _count(one.events),
            short(one.seconds),
            short(one.seconds * 1e6 / one.events),
            short(one.memory / 1e6),
        )
        for one in found
    ]
    return f"""## Recordings

`simpar trace` of one rank, the whole command with its start. Each file repeats a real recording behind itself.
Measured at commit {own_commit()}; medians of {ROUNDS}, on shared cores.

{_table(('format', 'events', 'CPU s', 'CPU µs an event', 'MB at the peak'), rows)}"""


def replaced(text: str, part: str, before: str = 'Peers') -> str:
    """The page with another part of a heading that it has, or with a new one before another heading."""
    head = part.partition('\n')[0]
    if f'{head}\n' not in text:
        return text.replace(f'## {before}\n', f'{part}\n\n## {before}\n')
    start, _, rest = text.partition(f'{head}\n')
    return f'{start}{part}\n\n## {rest.partition("## ")[2]}'


def _peers(found: Measured) -> str:
    own = found.stages['GPT-3, folded']
    parts = (own.lowering, own.pricing, own.folding, own.ops, own.costs, own.simulation)
    rows = [
        (
            'simpar',
            'the times of every op of every rank, three steps',
            short(sum(part.median for part in parts)),
            own_commit(),
        )
    ]
    given = {peer.name: peer for peer in found.peers}
    for name in PEERS:
        peer = given.get(name)
        seconds, commit = (str(peer.seconds), peer.commit) if peer else ('not given', '')
        rows.append((name, 'closed formulas of a layer and a pipeline', seconds, commit))
    return f"""## Peers

One evaluation of GPT-3 of 175 billion weights on 1,024 A100s: tensor 8, pipeline 16, data 8, 192 micro-batches, with
sequence parallelism and recomputed attention. Peers run from their source, with the A100 that they describe. What is
timed there evaluates formulas and no events: it is faster, and does not simulate what overlaps with what.

{_table(('', 'what it evaluates', 'CPU seconds', 'commit'), rows)}"""


def _times(laps: Laps) -> str:
    return str(laps.speed('compiled', 'SimPy'))


def _micro(seconds: Spread, slots: int) -> str:
    return str(seconds.times(1e6 / slots))


def _count(slots: int) -> str:
    return f'{slots:,}'


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    rule = ('---', *('--:' for _ in heads[1:]))
    return '\n'.join(f'| {" | ".join(row)} |' for row in (heads, rule, *rows))


def own_commit() -> str:
    return commit_of(PAGE.parent)
