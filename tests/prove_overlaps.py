"""Drawn overlaps, predicted and measured: `make prove NAME=overlaps`.

A draw is a plan with an overlap off and on, on two or four ranks over a paced link whose rate is drawn; computation is
emulated. Sizes are drawn again until a step takes about what it should. All is drawn and predicted before anything is
measured. Each schedule runs in turns with the others of its ranks, and the median of its steady steps counts.
"""

import dataclasses
import math
import os
import random
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from equipment.validation import steady_steps
from proof import arguments, page_head

from executor.bench.bench import given_cluster
from executor.ranks.pool import Pool
from executor.ranks.request import Request
from simpar.cost.costs import Costs
from simpar.cost.price import price
from simpar.errors import SimparError
from simpar.files import write_atomically
from simpar.hardware.net import parse_net
from simpar.lower import lower
from simpar.metrics import Metrics
from simpar.model.library.experts import Experts
from simpar.plans import Plan
from simpar.predict import followed
from simpar.program import Program
from simpar.workload import AdamW, Transformer, Workload

PAGE = Path(__file__).parent.parent / 'docs' / 'proofs' / 'overlaps_proof.md'
SHORTEST, LONGEST = 0.1, 0.6
"""Seconds that a step may take as predicted."""
STEPS = 5
STEP, HIDDEN, GAIN = 0.03, 0.05, 0.03
"""How far the median step, a hidden share and a gain may be off."""
SIGN = 0.01
"""From here on the sign of a gain counts."""
HEADS = ('pair', 'overlap', 'ranks', 'drawn', 'step predicted', 'measured', 'error', 'hidden predicted', 'measured',
         'gain predicted', 'measured')  # fmt: skip
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
    of = given_cluster(world, parse_net(NETS[world]))
    link = dataclasses.replace(of.profile.host_link, bandwidth=dataclasses.replace(
        of.profile.host_link.bandwidth, value=host))  # fmt: skip
    of = dataclasses.replace(of, profile=dataclasses.replace(of.profile, host_link=link))
    found = []
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
        words += f', {host / 1e6:g} MB/s to the host' if 'host' in kind else ''
        told = ', '.join(f'{key} {value}' for key, value in on.items())
        found.append(
            Drawn(number, kind, side, f'{told}; {words}', world, program, costs, (steady.step, steady.overlap))
        )
    return found


def _workload(dice: random.Random, kind: str) -> Workload:
    mixture, laid = kind.startswith(('pairs', 'delayed')) and 'nothing' not in kind, kind == 'stages as laid'
    model = Transformer(
        layers=4, hidden=dice.choice((128, 256, 384)), heads=4, vocab=256, sequence=dice.choice((64, 128, 256)),
        position='rotary', bias=(), mtp_layers=2 if laid else 0,
        # With a capacity all slots are sent, whatever the router does.
        experts=Experts(count=4, top_k=dice.choice((1, 2)), ffn=256, capacity=1.0) if mixture else None,
    )  # fmt: skip
    return Workload(model=model, batch=dice.choice((8, 16, 32)), precision='fp32', optimizer=AdamW(learning_rate=0.01))


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
    )  # fmt: skip
    begun = time.monotonic()
    found = drawn(options.seed, options.pairs)
    took = measured(found, options.rounds) if options.rounds else [(math.nan, math.nan)] * len(found)
    lines, claims = _told(found, took)
    if not options.rounds:
        claims = [claims[0], ('all that is measured', 'not measured yet', False)]
    head = page_head(
        'overlaps_proof', seed=options.seed, count=len(found), minutes=f'{(time.monotonic() - begun) / 60:.0f}',
        cores=len(os.sched_getaffinity(0)), load=f'{os.getloadavg()[0]:.1f}', steps=options.rounds * (STEPS - 2),
    )  # fmt: skip
    text = '\n'.join([head, '| what must hold | found | |', '|---|---|---|', *(
        f'| {what} | {how} | {"holds" if held else "**does not hold**"} |' for what, how, held in claims
    ), '', *lines, ''])  # fmt: skip
    print(text)
    if options.write:
        write_atomically(PAGE, text)
    return 0 if all(held for _, _, held in claims) else 4


def _told(found: list[Drawn], took: list[tuple[float, float]]) -> tuple[list[str], list[tuple[str, str, bool]]]:
    """The table, and what must hold."""
    lines = [f'| {" | ".join(HEADS)} |', f'|{"---|" * len(HEADS)}']
    errors = [one.predicted[0] / step - 1 for one, (step, _) in zip(found, took, strict=True)]
    shares = [one.predicted[1] - share for one, (_, share) in zip(found, took, strict=True)]
    gains = []
    for place, (one, (step, share), error) in enumerate(zip(found, took, errors, strict=True)):
        shown = ''
        if one.side == 'on':
            gain = found[place - 1].predicted[0] / one.predicted[0] - 1, took[place - 1][0] / step - 1
            gains.append((one.kind, *gain))
            shown = f'{gain[0]:+.1%} | {_cell(gain[1], "{:+.1%}")}'
        lines.append(
            f'| {one.pair} | {one.kind}, {one.side} | {one.world} | {one.words if one.side == "on" else ""} '
            f'| {one.predicted[0] * 1e3:.1f} ms | {_cell(step * 1e3, "{:.1f} ms")} | {_cell(error, "{:+.1%}")} '
            f'| {one.predicted[1]:.1%} | {_cell(share, "{:.1%}")} | {shown or " | "} |'
        )
    off = [abs(mine - other) for _, mine, other in gains]
    wrong = sum((mine > 0) != (other > 0) for _, mine, other in gains if abs(mine) >= SIGN)
    lost = dict.fromkeys(kind for kind, mine, other in gains if max(mine, other) < 0)
    middle, worst = statistics.median(map(abs, errors)), max(map(abs, errors))
    return lines, [
        ('at least 24 schedules', str(len(found)), len(found) >= 24),
        (f'step within {STEP:.0%} in the median', f'{middle:.2%}, worst {worst:.1%}', middle <= STEP),
        (f'hidden share within {100 * HIDDEN:.0f} points', f'worst {100 * max(map(abs, shares)):.1f}',
         max(map(abs, shares)) <= HIDDEN),
        (f'gain within {100 * GAIN:.0f} points', f'worst {100 * max(off):.1f} of {len(off)}', max(off) <= GAIN),
        (f'gains of {SIGN:.0%} or more have the predicted sign', f'{wrong} have not', not wrong),
        ('plans that lose are among them', '; '.join(lost) or 'none', bool(lost)),
    ]  # fmt: skip


def _cell(value: float, form: str) -> str:
    """A measured value; empty where nothing was measured."""
    return '' if math.isnan(value) else form.format(value)


if __name__ == '__main__':
    raise SystemExit(main())
