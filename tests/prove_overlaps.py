"""Drawn overlaps, predicted and measured: `make prove NAME=overlaps`.

A draw is a plan with an overlap off and on, on two or four ranks over a paced link whose rate is drawn; computation is
emulated. Sizes are drawn again until a step takes about what it should. All is drawn and predicted before anything is
measured. Each schedule runs in turns with the others of its ranks, and the median of its steady steps counts.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import overlap_page
import yaml
from proof import ROOT, arguments, claims_table, commit, end, page_head, steady_steps, table

from executor.bench.bench import given_cluster
from executor.ranks.pool import Pool
from executor.state import Request
from simpar import Plan, Program, price
from simpar.cost.costs import Costs
from simpar.errors import SimparError
from simpar.files import read_csv
from simpar.hardware import Cluster
from simpar.hardware.net import parse_net
from simpar.lower import lower
from simpar.metrics import Metrics
from simpar.model.library.experts import Experts
from simpar.predict import followed
from simpar.workload import AdamW, Transformer, Workload

PAGE = ROOT / 'docs' / 'proofs' / 'overlaps_proof.md'
SHORTEST, LONGEST = 0.1, 0.6
"""Seconds that a step may take as predicted."""
STEPS = 5
STEP, HIDDEN, GAIN = 0.03, 0.05, 0.03
"""How far the median step, a hidden share and a gain may be off."""
SIGN = 0.01
"""From here on the sign of a gain counts."""
HEADS = (
    'pair | overlap | ranks | drawn | step predicted | measured | error | hidden predicted | measured '
    '| gain predicted | measured'
)
NETS = {2: 'paced:1Gbit/s,100us', 4: 'paced:600Mbit/s,200us'}
HOST = (60e6, 300e6, 3e9)
"""Bytes a second of the link to the host."""
MIXTURE = {'micro_batches': 4, 'data': 2, 'expert': 2}
STAGES = {'pipeline': 2, 'micro_batches': 4}
KINDS = {
    # Ranks; keys of both plans; keys of the one with the overlap, of which one is drawn.
    'pairs': (2, MIXTURE, [{'pairs': 'overlap'}, {'pairs': 'memory'}]),
    'delayed gradients of weights': (2, {**MIXTURE, 'pairs': 'overlap'}, [{'weight_gradients': 'delayed'}]),
    'pairs, virtual stages': (
        4, {**MIXTURE, **STAGES, 'order': 'interleaved-1f1b', 'chunks': 2}, [{'pairs': 'overlap'}],
    ),
    'pairs, nothing to exchange': (2, STAGES, [{'pairs': 'overlap'}]),
    'activations on the host': (2, {'data': 2}, [{'offload': ('activations',)}]),
    'states on the host': (2, {'data': 2}, [{'offload': ('optimizer',)}]),
    'stages as laid': (2, STAGES, [{'stages': (5, 1)}, {'stages': (3, 3)}, {'stages': (4, 2)}]),
}  # fmt: skip


TITLE = '## Plans in which overlaps lose'
LOSES = """`make prove NAME=overlaps WORDS=--losing` wrote this part: commit {commit}, load {load}.
Medians of {steps} steps count. The plans are rows of a table (`tests/losing_overlaps.csv`).
Let computing and a message go at the speeds s and c beside one another. What they do together in a second takes
s + c seconds one after the other. So hiding costs more than it saves where s + c is less than 1. Here both are 0.3 or
0.4. Where something waits on the host they are 0.8, and the link to the host is slow.
"""


class Drawn(NamedTuple):
    """One schedule: ``side``, its overlap off or on; ``predicted``, seconds of a step and the hidden share."""

    pair: int
    kind: str
    side: str
    words: str
    world: int
    program: Program
    costs: Costs
    predicted: tuple[float, float]


def drawn(seed: int, pairs: int) -> list[Drawn]:
    """As many pairs as asked for, the kinds in turns."""
    dice, found = random.Random(seed), []
    for pair in range(pairs):
        kind = list(KINDS)[pair % len(KINDS)]
        while not (both := _pair(dice, pair, kind)):
            pass
        found += both
    return found


def _pair(dice: random.Random, number: int, kind: str) -> list[Drawn]:
    world, both, ways = KINDS[kind]
    on = dice.choice(ways)
    work, host = _workload(dice, kind), dice.choice(HOST)
    words = f'{host / 1e6:g} MB/s to the host' if 'host' in kind else ''
    return _both(number, kind, work, _cluster(world, host), both, on, words)


def losing() -> list[Drawn]:
    """Of each overlap a plan in which it loses."""
    found = []
    for number, row in enumerate(read_csv(Path(__file__).with_name('losing_overlaps.csv'))):
        both, on = map(_keys, (row['both'], row['on']))
        work = _work(*(int(row[name]) for name in ('hidden', 'sequence', 'batch')), mixture='expert' in both)
        of = _cluster(2, float(row['host'] or HOST[-1]), float(row['speed']))
        words = f'speeds beside {row["speed"]}'
        words += f', {float(row["host"]) / 1e6:g} MB/s to the host' if row['host'] else ''
        found += _both(number, row['overlap'], work, of, both, on, words)
    return found


def _keys(text: str) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in yaml.safe_load(text).items()}


def _cluster(world: int, host: float, speed: float | None = None) -> Cluster:
    """A cluster with a link to the host, and speeds beside one another."""
    of = given_cluster(world, parse_net(NETS[world]))
    link, slow = of.profile.host_link, of.profile.slow_down
    link = dataclasses.replace(link, bandwidth=dataclasses.replace(link.bandwidth, value=host))
    if speed is not None:
        one = dataclasses.replace(slow.matrix, value=speed)
        slow = dataclasses.replace(slow, matrix=one, memory=one, collective=one)
    return dataclasses.replace(of, profile=dataclasses.replace(of.profile, host_link=link, slow_down=slow))


def _both(
    number: int, kind: str, work: Workload, of: Cluster, both: dict[str, Any], on: dict[str, Any], more: str
) -> list[Drawn]:
    """A plan without an overlap and with it; none where sizes do not fit, or a step lasts too long or too short."""
    world, found = of.world, []
    for side, keys in (('off', {}), ('on', on)):
        try:
            program = lower(work, Plan(**{**both, **keys}), world)
        except SimparError:  # sizes that the plan does not allow
            return []
        costs = price(program, of)
        trace = followed(program, costs)
        steady = Metrics(trace).steady
        if not SHORTEST <= steady.step <= LONGEST:
            return []
        words = f'hidden {work.model.hidden}, sequence {work.model.sequence}, batch {work.batch}'
        words += f', {more}' if more else ''
        told = ', '.join(f'{key} {value}' for key, value in on.items())
        found.append(
            Drawn(number, kind, side, f'{told}; {words}', world, program, costs, (steady.step, steady.overlap))
        )
    return found


def _workload(dice: random.Random, kind: str) -> Workload:
    mixture, laid = kind.startswith(('pairs', 'delayed')) and 'nothing' not in kind, kind == 'stages as laid'
    hidden, sequence = dice.choice((128, 256, 384)), dice.choice((64, 128, 256))
    top_k = dice.choice((1, 2)) if mixture else 1
    return _work(hidden, sequence, dice.choice((8, 16, 32)), mixture=mixture, top_k=top_k, further=2 if laid else 0)


def _work(
    hidden: int, sequence: int, batch: int, *, mixture: bool = False, top_k: int = 1, further: int = 0
) -> Workload:
    model = Transformer(
        layers=4, hidden=hidden, heads=4, vocab=256, sequence=sequence, position='rotary', bias=(), mtp_layers=further,
        # With a capacity all slots are sent, whatever the router does.
        experts=Experts(count=4, top_k=top_k, ffn=256, capacity=1.0) if mixture else None,
    )  # fmt: skip
    return Workload(model=model, batch=batch, precision='fp32', optimizer=AdamW(learning_rate=0.01))


def measured(found: list[Drawn], rounds: int) -> list[tuple[float, float]]:
    """Median step and hidden share of each, in turns."""
    steps: list[list[float]] = [[] for _ in found]
    hidden: list[list[float]] = [[] for _ in found]
    for world, net in NETS.items():
        mine = [place for place, one in enumerate(found) if one.world == world]
        if not mine:
            continue
        with Pool(world, net=parse_net(net), timeout=60.0) as pool:
            # The first run opens connections.
            pool.perform(found[mine[0]].program, Request(compute='emulated', costs=found[mine[0]].costs, steps=2))
            for place in [place for _ in range(rounds) for place in mine]:
                one = found[place]
                run = pool.perform(one.program, Request(compute='emulated', costs=one.costs, steps=STEPS))
                steps[place] += steady_steps(run)
                hidden[place].append(Metrics(run.trace).steady.overlap)
    return [(statistics.median(one), statistics.median(other)) for one, other in zip(steps, hidden, strict=True)]


def main() -> int:
    """0 where everything holds that must."""
    options = arguments(
        __doc__, seed=(2041, 'of the draws'), pairs=(14, 'pairs of schedules'),
        rounds=(2, 'runs of each; 0: predict alone'), write=False,
        losing=(False, 'measure the plans in which overlaps lose alone, and write that part of the page'),
    )  # fmt: skip
    begun, held = time.monotonic(), [True]
    facts = {'load': f'{os.getloadavg()[0]:.1f}', 'steps': options.rounds * (STEPS - 2)}
    first = PAGE.read_text(encoding='utf-8').partition(TITLE)[0]
    if not options.losing:
        found = drawn(options.seed, options.pairs)
        part, held = _part(found, options.rounds, lambda told: [_enough(found)])
        minutes = f'{(time.monotonic() - begun) / 60:.0f}'
        cores = len(os.sched_getaffinity(0))
        head = page_head('overlaps_proof', seed=options.seed, count=len(found), minutes=minutes, cores=cores, **facts)
        first = f'{head}\n{part}\n'
    part, lost = _part(losing(), options.rounds, lambda told: [_all_lose(told)])
    text = f'{first}{TITLE}\n\n{LOSES.format(commit=commit(), **facts)}\n{part}'
    return end(text, PAGE if options.write else None, all([*held, *lost]))


def _part(
    found: list[Drawn], rounds: int, more: Callable[[Told], list[tuple[str, str, bool]]]
) -> tuple[str, list[bool]]:
    """What must hold of schedules and their table, and what of it holds. Arguments: ``more`` that must."""
    told = _told(found, measured(found, rounds) if rounds else [(math.nan, math.nan)] * len(found))
    claims = [*more(told), *told.bars] if rounds else [('all that is measured', 'not measured yet', False)]
    return '\n'.join([*claims_table(claims), *told.lines, '']), [held for *_, held in claims]


def _enough(found: list[Drawn]) -> tuple[str, str, bool]:
    return 'at least 24 schedules', str(len(found)), len(found) >= 24


def _all_lose(told: Told) -> tuple[str, str, bool]:
    lost = {kind for kind, mine, other in told.gains if max(mine, other) < 0}
    lacking = [name for name in overlap_page.rows() if name not in lost]
    every = f'not {", ".join(lacking)}' if lacking else f'all {len(lost)}'
    return 'each overlap of docs/overlaps.md loses, predicted and measured', every, not lacking


class Told(NamedTuple):
    """A table, and what it says: of each schedule how far step and hidden share are off, of each pair both gains."""

    lines: list[str]
    errors: list[float]
    shares: list[float]
    gains: list[tuple[str, float, float]]

    @property
    def bars(self) -> list[tuple[str, str, bool]]:
        """What must hold of steps, hidden shares, gains."""
        off = [abs(mine - other) for _, mine, other in self.gains]
        wrong = sum((mine > 0) != (other > 0) for _, mine, other in self.gains if abs(mine) >= SIGN)
        middle, worst = statistics.median(map(abs, self.errors)), max(map(abs, self.errors))
        share = 100 * max(map(abs, self.shares))
        return [
            (f'step within {STEP:.0%} in the median', f'{middle:.2%}, worst {worst:.1%}', middle <= STEP),
            (f'hidden share within {100 * HIDDEN:.0f} points', f'worst {share:.1f}', share <= 100 * HIDDEN),
            (f'gain within {100 * GAIN:.0f} points', f'worst {100 * max(off):.1f} of {len(off)}', max(off) <= GAIN),
            (f'gains of {SIGN:.0%} or more have the predicted sign', f'{wrong} have not', not wrong),
        ]


def _told(found: list[Drawn], took: list[tuple[float, float]]) -> Told:
    """The table of some schedules."""
    errors = [one.predicted[0] / step - 1 for one, (step, _) in zip(found, took, strict=True)]
    shares = [one.predicted[1] - share for one, (_, share) in zip(found, took, strict=True)]
    rows, gains = [], []
    for place, (one, (step, share), error) in enumerate(zip(found, took, errors, strict=True)):
        shown, words = ['', ''], ''
        if one.side == 'on':
            gain = found[place - 1].predicted[0] / one.predicted[0] - 1, took[place - 1][0] / step - 1
            gains.append((one.kind, *gain))
            shown, words = [f'{gain[0]:+.1%}', _cell(gain[1], '{:+.1%}')], one.words
        steps = f'{one.predicted[0] * 1e3:.1f} ms', _cell(step * 1e3, '{:.1f} ms'), _cell(error, '{:+.1%}')
        hidden = f'{one.predicted[1]:.1%}', _cell(share, '{:.1%}')
        rows.append((one.pair, f'{one.kind}, {one.side}', one.world, words, *steps, *hidden, *shown))
    return Told(table(HEADS, rows), errors, shares, gains)


def _cell(value: float, form: str) -> str:
    """A measured value; empty where nothing was measured."""
    return '' if math.isnan(value) else form.format(value)


if __name__ == '__main__':
    raise SystemExit(main())
