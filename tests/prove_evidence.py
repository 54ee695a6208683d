"""`make prove-evidence`: drawn schedules, predicted and measured on networks that were calibrated in the same run.

    python tests/prove_evidence.py --seed 2026 --folder out/evidence [--minutes 15]

Each block (a network, a number of ranks, four schedules) is a file in the folder; a run that was interrupted goes on
with the round that is missing, on the same commit. Whether a row can be measured is decided by its own repeats, before
its prediction is looked at; whether cores suffice, before it is run at all.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from evidence_draws import Block, Row, blocks
from evidence_page import page, verdict
from proof import ROOT, arguments, end, kept, steady_steps

from executor.bench.bench import bench_messages
from executor.bench.items import QUICK
from executor.bench.rounds import Reporter
from executor.ranks.pool import Pool
from executor.state import Request
from simpar import Program, cluster, load_profile, price, simulate
from simpar.calibrate import calibrate, load_record, write_profile
from simpar.cost.costs import Costs
from simpar.files import write_atomically
from simpar.hardware.net import parse_net
from simpar.predict import followed

CODE: Final = ('simpar', 'executor', 'hw_profiles', 'tests')
ROUNDS: Final = 6
STEPS: Final = 6
"""Steps of a run; those from the third on count."""
BUSY: Final = 0.6
"""Share of the cores that the messages of all ranks may take; above it the row is not run."""


class Enough(Exception):
    """The time is up; what is measured is kept."""


def main() -> int:
    """Run what is missing, then write the page."""
    options = arguments(
        __doc__,
        seed=2026,
        draws=(52, 'schedules, four a block'),
        rounds=(ROUNDS, 'rounds that count'),
        minutes=(60.0, 'stop behind the round that these are over in'),
        folder=(Path('out/evidence'), 'where finished blocks are kept'),
        write=(Path, 'where the page goes'),
    )
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')
    until, code, found = time.monotonic() + 60 * options.minutes, commit(), []
    wanted = blocks(options.seed, -(-options.draws // 4))
    for block in wanted:
        # Of another commit nothing counts.
        file = options.folder / f'{options.seed}-{block.number}-{code}.json'
        part = Part(file.with_suffix('.part'), until)
        try:
            found.append(kept(file, partial(_run, block, options.rounds, part)))
        except Enough:
            print(f'{block.number} of {len(wanted)} blocks are done; the same command goes on', file=sys.stderr)
            return 0
        part.file.unlink(missing_ok=True)
        say(found[-1])
    text, held = page(found, seed=options.seed, commit=code, command=' '.join(sys.argv))
    return end(text, options.write, held)


class Part:
    """What is known of a block that is not done: kept in a file from round to round."""

    def __init__(self, file: Path, until: float) -> None:
        self.file = file
        self._until = until
        self.known: dict[str, Any] = {'seconds': 0.0, 'load': 0.0, 'rounds': []}
        if file.exists():
            self.known = json.loads(file.read_text(encoding='utf-8'))
        self._begun = time.monotonic()

    def keep(self) -> None:
        """Write what is known; raises ``Enough`` where the time is up."""
        now = time.monotonic()
        self.known['seconds'] += now - self._begun
        self.known['load'] = max(self.known['load'], os.getloadavg()[0])
        self._begun = now
        write_atomically(self.file, json.dumps(self.known) + '\n')
        if now > self._until:
            raise Enough


def _run(block: Block, rounds: int, part: Part) -> dict[str, Any]:
    """Calibrate, see which rows the cores can carry, measure, judge the repeats, and only then predict."""
    rows, net = block.rows(), parse_net(block.net)
    if 'record' not in part.known:
        part.known['record'] = bench_messages(block.world, net, QUICK, Reporter(), net_name=block.net, seed=block.seed)
        part.keep()
    record = part.known['record']
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'record.json'
        path.write_text(json.dumps(record), encoding='utf-8')
        found = calibrate(load_record(path))
        write_profile(Path(folder) / 'calibrated.yaml', found)
        hardware = cluster(load_profile(Path(folder) / 'calibrated.yaml'))
        costs = {row.name: price(row.program, hardware) for row in rows}
        load = {row.name: load_of(row.program, costs[row.name], record) for row in rows}
        carried = [row for row in rows if load[row.name] <= BUSY]
        _measure(block, carried, costs, rounds, part)
        told: list[dict[str, Any]] = []
        for row in rows:
            one: dict[str, Any] = {'name': row.name, 'kind': row.kind, 'against': row.against}
            one['load'] = round(load[row.name], 3)
            if row in carried:
                one['runs'] = [turn[row.name] for turn in part.known['rounds']]
                # Before the prediction exists.
                one['same'] = verdict(one['runs'])
                one['predicted'] = followed(row.program, costs[row.name]).step
            told.append(one)
    return {
        'net': block.net,
        'world': block.world,
        'cores': cores(),
        'rows': told,
        'notes': list(found.record.notes),
        'bandwidth': found.numbers['links.bandwidth'].value,
        'load_average': round(part.known['load'], 1),
        'seconds': round(part.known['seconds'], 1),
    }


def _measure(block: Block, rows: list[Row], costs: dict[str, Costs], rounds: int, part: Part) -> None:
    """Seconds of the steady steps of each run of each row; all rows once a round, in a new order each."""
    done: list[dict[str, list[float]]] = part.known['rounds']
    if not rows or len(done) == rounds:
        return
    with Pool(block.world, net=parse_net(block.net), timeout=60.0, pinned=block.world <= cores()) as pool:
        for row in rows:
            # The first run opens connections.
            pool.perform(row.program, Request(compute='emulated', costs=costs[row.name], steps=2))
        while len(done) < rounds:
            order = random.Random(f'{block.seed} {len(done)}').sample(rows, len(rows))
            turn = {}
            for row in order:
                request = Request(compute='emulated', costs=costs[row.name], steps=STEPS)
                turn[row.name] = steady_steps(pool.perform(row.program, request))
            done.append(turn)
            part.keep()


def load_of(program: Program, costs: Costs, record: dict[str, Any]) -> float:
    """Share of the cores that messages will take, by the CPU seconds that calibration saw each of them take."""
    times: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for one in record['tables']['collective']:
        times.setdefault((one['operator'], one['ranks']), []).append((one['bytes'], one['cpu']['median']))
    total = 0.0
    for rank in range(program.world):
        for index in program.role(rank).op_class.tolist():
            op = program.op_classes[index]
            if op.kind != 'compute':
                key = (op.operator, program.partitions[op.partition].size) if op.kind == 'collective' else ('send', 2)
                total += _at(sorted(times[key]), op.bytes)
    return total / simulate(program, costs).step / cores()


def _at(points: list[tuple[float, float]], size: float) -> float:
    """CPU seconds of a message: along its neighbours, and beyond the largest with the size."""
    sizes, seconds = zip(*points, strict=True)
    beyond = max(size / sizes[-1], 1.0)
    return float(np.interp(size, sizes, seconds)) * beyond


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def say(block: dict[str, Any]) -> None:
    for row in block['rows']:
        low = f'{np.quantile(np.concatenate(row["runs"]), 0.1) * 1e3:.1f} ms' if row.get('runs') else 'not run'
        predicted = f'{row["predicted"] * 1e3:.1f} ms' if 'predicted' in row else ''
        line = f'{block["net"]}, {block["world"]} ranks, {row["name"]}: {predicted} predicted, {low} measured'
        print(line, file=sys.stderr, flush=True)


def commit() -> str:
    """The last commit that touched code; with a + where code has changed since."""
    told = [_git('log', '-1', '--format=%h', '--', *CODE), _git('status', '--porcelain', '--', *CODE)]
    return told[0] + ('+' if told[1] else '')


def _git(*words: str) -> str:
    return subprocess.run(['git', *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == '__main__':
    sys.exit(main())
