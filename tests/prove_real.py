"""`make prove-real`: drawn schedules with real computation on two ranks, calibrated in the same run.

    python tests/prove_real.py --seed 2026 --folder out/real --write docs/proofs/real_proof.md

Each block (a network, four schedules) is a file in the folder; a run that was interrupted goes on with the blocks that
are missing. Each rank has a core of its own. Whether a row can be measured is decided by its own repeats, before its
prediction is made.
"""

import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from evidence_draws import Row
from evidence_page import around, disordered, error, rows_of, said, tables, verdict
from pooled_records import pooled
from proof import arguments, end, kept, page_head, steady_steps
from prove_evidence import commit, cores, say

from executor.bench.bench import bench, calibrated
from executor.bench.items import QUICK, TINY
from executor.bench.rounds import AlonePool, InOrder, Reporter, put
from executor.ranks.pool import Pool
from executor.state import Request
from simpar import Plan, Program, Trace, cluster, load_profile, price
from simpar.calibrate import Calibration
from simpar.errors import SimparError
from simpar.hardware import Cluster
from simpar.hardware.net import Net, parse_net
from simpar.lower import lower
from simpar.model import Dense, Network, Relu
from simpar.predict import EFFECTS, followed
from simpar.resolve import resolve
from simpar.workload import Adam, Sgd, Transformer, Workload

WORLD: Final = 2
NETS: Final = ('paced:1Gbit/s,50us', 'paced:200Mbit/s,1ms', 'paced:4Gbit/s,100us', 'none')
ROUNDS, LOOK = 128, 32
"""The fewest rounds, and how many lie between two looks at the repeats.

Many short runs: whoever else uses the machine's cores slows them for seconds or minutes at a time.
"""
LONGEST_BLOCK: Final = 1800.0
"""Seconds after which no further round begins."""
STEPS, COUNTED = 8, 6
"""Steps of a run, of which the last ones count; what slows one step slows its neighbours for about half a second."""
ROUND: Final = 1.2
"""Seconds of a run that every round has; a row of longer steps runs in every second, third, … round."""
AGAIN: Final = 80
"""Rounds from one calibration of messages to the next."""
OPS: Final = 7
"""Ops are timed in so many rounds' first: an odd number, so that as many even rounds have them as odd ones."""
SIZES: Final = replace(QUICK, products=TINY.products, head_dims=TINY.head_dims, sequences=TINY.sequences,
                       pairs=TINY.pairs, probes=TINY.probes)  # fmt: skip
"""What is measured beside the ops of the schedules: few sizes of kernels, all messages."""
SHORTEST, LONGEST = 0.03, 0.6
"""Seconds that a step may take, by the shipped profile of a core."""
SAME: Final = 0.02
"""Every other run of a row against the others: a row whose 10th percentiles differ by more cannot be measured."""
LOST, MEDIAN, MOST, APART = 0.15, 0.06, 0.12, 0.08
TRIES: Final = 400


@dataclass(frozen=True)
class Block:
    """Rows that are calibrated and measured together."""

    number: int
    net: str
    seed: int
    favour: bool = False

    def rows(self) -> list[Row]:
        """Two pairs of plans, each of one drawn model."""
        drawn = random.Random(self.seed)
        return [row for kind in drawn.sample(('transformer', 'network'), 2) for row in _pair(drawn, kind, self.net)]


def main() -> int:
    """Run the blocks that are missing, then write the page."""
    options = arguments(
        __doc__,
        seed=2026,
        blocks=(4, 'blocks of four schedules'),
        favour_communication=(False, 'as of python -m executor'),
        folder=(Path('out/real'), 'where finished blocks are kept'),
        write=(Path, 'where the page goes'),
    )
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    drawn = random.Random(options.seed)
    found = []
    for number in range(options.blocks):
        block = Block(number, NETS[number % len(NETS)], drawn.randrange(2**31), options.favour_communication)
        # Of another commit nothing counts.
        file = options.folder / f'{options.seed}-{number}-{commit()}{"-favoured" * block.favour}.json'
        found.append(kept(file, partial(_run, block)))
        say(found[-1])
    text, held = page(found, options.seed)
    return end(text, options.write, held)


def _run(block: Block) -> dict[str, Any]:
    """Calibrate for these schedules and measure them in the same rounds, judge the repeats, and only then predict."""
    begun, rows, net = time.monotonic(), block.rows(), parse_net(block.net)
    # A user calibrates for the plans of one model: what messages take from kernels is told by their sizes.
    models = [rows[:2], rows[2:]]
    benches: list[list[dict[str, Any]]] = [[], []]

    def again() -> None:
        for known, pair in zip(benches, models, strict=True):
            known.append(_bench(block, net, [row.program for row in pair]))

    again()
    with tempfile.TemporaryDirectory() as folder:
        before = [calibrated(known[0], Path(folder) / f'before{one}')[1] for one, known in enumerate(benches)]
        samples, shares, in_steps = _measure(block, rows, before, again)
        told, found = [], []
        for one, (pair, known) in enumerate(zip(models, benches, strict=True)):
            record = pooled(known)
            put(record['tables'], in_steps)
            calibration, hardware = calibrated(record, Path(folder) / f'after{one}')
            found.append(calibration)
            told += [_told(row, hardware, samples[row.name], shares[row.name]) for row in pair]
    return {
        'net': block.net,
        'world': WORLD,
        'cores': cores(),
        'favour': block.favour,
        'commit': commit(),
        'rows': told,
        'slow_down': [_slow_down(one) for one in found],
        'benches': len(benches[0]),
        'notes': [note for one in found for note in one.record.notes],
        'load_average': round(os.getloadavg()[0], 1),
        'seconds': round(time.monotonic() - begun, 1),
    }


def _bench(block: Block, net: Net, programs: Sequence[Program]) -> dict[str, Any]:
    """The record of a calibration for programs, without the ops of their steps."""
    told = {'net_name': block.net, 'programs': programs, 'seed': block.seed}
    return bench(WORLD, net, SIZES, Reporter(), **told, favour=block.favour, in_order=False)


def _told(row: Row, hardware: Cluster, samples: list[list[float]], shares: list[float]) -> dict[str, Any]:
    """What a row took and is predicted to take, for the page."""
    predicted = followed(row.program, price(row.program, hardware, EFFECTS[-1][1]))
    return {
        'name': row.name,
        'kind': row.kind,
        'against': row.against,
        'runs': samples,
        'same': verdict(samples),
        'predicted': predicted.step,
        'parts': [shares, _parts(predicted)],
    }


def _slow_down(found: Calibration) -> dict[str, float]:
    return {key: round(one.value, 3) for key, one in found.numbers.items() if key.startswith('slow_down')}


def _measure(
    block: Block, rows: list[Row], hardware: Sequence[Cluster], again: Callable[[], None]
) -> tuple[dict[str, list[list[float]]], dict[str, list[float]], dict[str, list[dict[str, Any]]]]:
    """Seconds of the steady steps of each run of each row; its parts; rows of ops in steps, for the record.

    In a round all ops are timed in the order of their steps, and every row runs; so drift hits both alike.

    Arguments: ``hardware``, of each pair of rows; ``again`` calibrates messages once more, as their time drifts, too.
    """
    drawn, order = random.Random(block.seed), [*rows]
    samples: dict[str, list[list[float]]] = {row.name: [] for row in rows}
    parts: dict[str, list[list[float]]] = {row.name: [] for row in rows}
    # The two rows of each model have a calibration of their own.
    costs = {row.program.hash: price(row.program, hardware[place // 2]) for place, row in enumerate(rows)}
    every = {row.name: _every(followed(row.program, costs[row.program.hash]).step) for row in rows}
    net, favour = parse_net(block.net), block.favour
    programs = [row.program for row in rows]
    with (
        Pool(WORLD, net=net, timeout=60.0, pinned=True) as pool,
        AlonePool(WORLD, programs, lambda program: costs[program.hash], favour=favour) as alone,
    ):
        ops = InOrder(alone, programs)
        # The first round opens connections.
        for row in rows:
            pool.perform(row.program, Request(steps=2, favour=favour))
        for turn in _rounds(samples):
            if turn and turn % AGAIN == 0:
                again()
            drawn.shuffle(order)
            for row in order:
                if turn % every[row.name] == 0:
                    execution = pool.perform(row.program, Request(steps=STEPS, favour=favour))
                    samples[row.name].append(steady_steps(execution)[-COUNTED:])
                    parts[row.name].append(_parts(execution.trace))
                if turn % OPS == 0:
                    ops.round_of(row.program)
    return samples, {name: np.median(found, axis=0).tolist() for name, found in parts.items()}, ops.rows()


def _every(step: float) -> int:
    """In which rounds a row runs, every second, third, …: a disturbance of seconds changes a long step less."""
    return max(round(STEPS * step / ROUND), 1)


def _rounds(samples: dict[str, list[list[float]]]) -> Iterator[int]:
    """Rounds, until at two looks in a row the repeats of all rows agree.

    One look alone could find by luck that they agree: what disturbs them comes and goes.
    """
    begun, agreed = time.monotonic(), 0
    for turn in itertools.count():
        if turn >= ROUNDS and turn % LOOK == 0:
            found = {name: verdict(runs) for name, runs in samples.items()}
            agreed = agreed + 1 if max(found.values()) <= SAME else 0
            print(f'round {turn}: repeats differ by', ', '.join(f'{one:.1%}' for one in found.values()), flush=True)
            if agreed == 2 or time.monotonic() - begun > LONGEST_BLOCK:
                return
        yield turn


def _parts(trace: Trace) -> list[float]:
    """Seconds of a step in which the busiest rank computes and sends."""
    found = []
    for one in trace.representatives:
        role = trace.role(one)
        computes = np.array([trace.program.op(role, slot).kind == 'compute' for slot in range(len(role))])
        seconds = (one.end_KS - one.start_KS)[-1]
        found.append((float(seconds[computes].sum()), float(seconds[~computes].sum())))
    return list(max(found))


def _pair(drawn: random.Random, kind: str, net: str) -> list[Row]:
    """Two plans of one model, which take about as long as a step should."""
    hardware = cluster(replace(load_profile('cpu-gloo'), devices=WORLD))
    for _ in range(TRIES):
        work = _workload(drawn, kind)
        plans = [_plan(drawn, kind) for _ in range(2)]
        try:
            programs = [lower(work, resolve(work, plan, hardware), WORLD) for plan in plans]
        # A drawn degree that the drawn sizes do not allow; the next draw may.
        except SimparError:
            continue
        steps = [followed(one, price(one, hardware)).step for one in programs]
        if plans[0] != plans[1] and all(SHORTEST <= step <= LONGEST for step in steps):
            names = [f'{_sized(work)}, {_named(plan)}' for plan in plans]
            return [Row(names[0], kind, programs[0]), Row(names[1], kind, programs[1], against=names[0])]
    raise RuntimeError(f'no {kind} takes a step of {SHORTEST} to {LONGEST} s in {TRIES} draws')


def _workload(drawn: random.Random, kind: str) -> Workload:
    optimizer, batch = drawn.choice((Adam(), Sgd())), drawn.choice((8, 16, 32))
    if kind == 'transformer':
        hidden = drawn.choice((64, 128, 192, 256, 384))
        model = Transformer(
            layers=2 * drawn.randint(1, 3),
            hidden=hidden,
            heads=hidden // 32,
            vocab=drawn.choice((512, 1024, 2048)),
            sequence=drawn.choice((32, 64, 128)),
        )
        return Workload(model=model, batch=batch, optimizer=optimizer)
    width, inner = 32 * drawn.randint(2, 24), 32 * drawn.randint(2, 48)
    pair = (Dense(inputs=width, outputs=inner, bias=False), Relu(), Dense(inputs=inner, outputs=width, bias=False))
    layers = [*pair, Relu()] * drawn.randint(2, 5)
    return Workload(model=Network(layers=tuple(layers[:-1])), batch=16 * batch, loss='mse', optimizer=optimizer)


def _sized(work: Workload) -> str:
    model = work.model
    if isinstance(model, Transformer):
        return f'transformer {model.layers} × {model.hidden}, {work.batch} × {model.sequence} tokens'
    wide = model.layers[0]
    return f'network {len(model.layers)} × {wide.inputs} × {wide.outputs}, {work.batch} rows'


def _plan(drawn: random.Random, kind: str) -> Plan:
    axis, copies = drawn.choice(('data', 'tensor', 'pipeline')), drawn.choice((1, 1, 2, 3, 4))
    if axis == 'data':
        return Plan(data=2, zero=drawn.choice((0, 0, 1, 2, 3)), copies=copies)
    if axis == 'tensor':
        return Plan(tensor=2, copies=copies, sequence_parallel=kind == 'transformer' and drawn.random() < 0.5)
    order = drawn.choice(('gpipe', '1f1b', 'zb-h1'))
    return Plan(pipeline=2, micro_batches=4, order=order, copies=min(copies, 2))


def _named(plan: Plan) -> str:
    degrees = [f'{key} {getattr(plan, key)}' for key in ('data', 'tensor', 'pipeline') if getattr(plan, key) > 1]
    more = [plan.order] if plan.pipeline > 1 else []
    more += [f'zero {plan.zero}'] if plan.zero else []
    more += ['sequence parallel'] if plan.sequence_parallel else []
    return ', '.join([*degrees, *more, f'copies {plan.copies}'])


def page(blocks: Sequence[dict[str, Any]], seed: int) -> tuple[str, bool]:
    """The page in Markdown, and whether everything holds that must."""
    rows = rows_of(blocks)
    claims = [*_claims(rows)]
    favour = 'Threads of messages come first: `--favour-communication`.\n' if blocks[0].get('favour') else ''
    facts = {'again': AGAIN, 'same': SAME, 'look': LOOK, 'longest': LONGEST_BLOCK / 60, 'favour': favour}
    text = [
        *tables(claims, rows),
        *_reasons(rows),
        *said([(block['net'], block['notes']) for block in blocks]),
    ]
    head = page_head('real', seed=seed, commit=commit(), **facts, **around(blocks))
    return head + '\n'.join(text), all(held for _, _, held in claims)


def _reasons(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of rows whose error is above the median allowed, what their busiest rank does for longer than predicted."""
    lines = [f'A step of the busiest rank, measured and told beforehand, where the error is above {MEDIAN:.0%}:', '']
    for row in sorted(rows, key=lambda row: -abs(error(row))):
        if abs(error(row)) > MEDIAN:
            (computes, sends), (own, others) = ([1e3 * part for part in parts] for parts in row['parts'])
            ops = f'ops {computes:.1f} ms, told {own:.1f} ms'
            lines.append(f'- {error(row):+.1%} {row["name"]}: {ops}; messages {sends:.1f} ms, told {others:.1f} ms')
    return [*lines, '']


def _claims(rows: Sequence[dict[str, Any]]) -> Iterable[tuple[str, str, bool]]:
    good = [row for row in rows if row['same'] <= SAME]
    lost = len(rows) - len(good)
    yield 'at least 12 schedules', f'{len(rows)}', len(rows) >= 12
    yield f'at most {LOST:.0%} cannot be measured (A/A > {SAME:.0%})', f'{lost}', lost <= LOST * len(rows)
    if not good:
        return
    errors = np.abs([error(row) for row in good])
    within, worst = float(np.mean(errors <= MOST)), good[int(np.argmax(errors))]
    yield f'median of the errors ≤ {MEDIAN:.0%}', f'{np.median(errors):.1%}', bool(np.median(errors) <= MEDIAN)
    yield f'90 % of the errors ≤ {MOST:.0%}', f'{within:.0%}; worst {error(worst):+.1%}: {worst["name"]}', within >= 0.9
    # Rows of one network were measured in one run.
    blocks = itertools.groupby(good, key=lambda row: row['net'])
    wrong = [pair for _, some in blocks for pair in disordered([*some], APART)]
    yield f'pairs predicted > {APART:.0%} apart are in order', f'{len(wrong)} are not{"".join(wrong[:1])}', not wrong


if __name__ == '__main__':
    sys.exit(main())
