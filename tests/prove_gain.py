"""`make prove-gain`: gains by `simpar measure`, predicted and measured in one run, on a paced link.

    python tests/prove_gain.py --seed 2028 --folder out/gain --write docs/proofs/gain_proof.md

Every row is one command that a user would give. Emulated rows are predicted by the link alone, and nothing is fitted.
Real rows are predicted by a profile that `python -m executor.bench` wrote just before, without any step of theirs, and
by ops that run alone, without messages, between the steps: the machine drifts by a fifth within minutes. An A/A row
measures a plan against itself: its gain is noise. Each finished command is a file in the folder, and a run that was
interrupted goes on with those that are missing.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proof import ROOT, answer, arguments, claims_table, end, kept, line, page_head, table
from prove_evidence import commit, cores

from simpar.files import write_atomically

APART: Final = 3.0
"""Points between the gains, at most."""
LEAST: Final = {'emulated': 5, 'real': 6}
"""Rows of each kind that must hold."""
STEPS: Final = {'emulated': 10, 'real': 40}
HEADS: Final = (
    'what | compute | network | plan | baseline | gain predicted | measured | points '
    '| step predicted | measured | overlap predicted | measured'
)
FAST, SLOW, LONG = 'paced:1Gbit/s,50us', 'paced:200Mbit/s,1ms', 'paced:500Mbit/s,10ms'
TRANSFORMER: Final[dict[str, Any]] = {
    'transformer': {'layers': 4, 'hidden': 256, 'heads': 4, 'vocab': 512, 'sequence': 64},
    'batch': 16,
}


def network(width: int, layers: int, rows: int) -> dict[str, Any]:
    """Square layers, with a relu between."""
    square: list[dict[str, Any]] = [{'dense': {'in': width, 'out': width, 'bias': False}}, {'relu': {}}]
    return {'network': (square * layers)[:-1], 'loss': 'mse', 'batch': rows}


@dataclass(frozen=True)
class Row:
    """One `simpar measure`.

    Arguments: ``against``, the keys of the baseline; empty: the plan itself, an A/A run. ``model``, rows of one model
    are calibrated together.
    """

    name: str
    kind: str
    net: str
    model: str
    workload: dict[str, Any]
    plan: dict[str, Any]
    against: dict[str, Any] = field(default_factory=dict)

    @property
    def schedule(self) -> dict[str, Any]:
        """What a user would write; JSON is YAML."""
        cluster = {'profile': 'cpu-gloo', 'devices': 2}
        against = {f'plan.{key}': value for key, value in self.against.items()}
        return {'simpar': 1, 'cluster': cluster, 'workload': self.workload, 'plan': self.plan, 'against': against}


def rows() -> list[Row]:
    """Copies, tiles, levels of ZeRO with and without prefetch, fusion, orders; and overlap that loses."""
    data, deep = network(512, 8, 256), network(512, 8, 512)
    pipeline = {'pipeline': 2, 'micro_batches': 4}
    # Large batches, so that there is computing for messages to hide under.
    real = {'data': network(768, 6, 2048), 'pipeline': network(768, 8, 1024)}
    emulated = [
        ('copies hide sums of tensor parallelism', FAST, TRANSFORMER, {'tensor': 2, 'copies': 2}, {'copies': 1}),
        ('copies lose where latency decides', LONG, TRANSFORMER, {'tensor': 2, 'copies': 2}, {'copies': 1}),
        ('gathers of ZeRO 3 a layer ahead', FAST, data, {'data': 2, 'zero': 3, 'prefetch': 1}, {'prefetch': 0}),
        ('one message for small gradients', SLOW, data, {'data': 2, 'fusion': '8 MB'}, {'fusion': 'none'}),
        ('zero bubble', FAST, deep, {**pipeline, 'order': 'zb-h1'}, {'order': '1f1b'}),
        ('tiles hide sums of tensor parallelism', FAST, TRANSFORMER, {'tensor': 2, 'tiles': 4}, {'tiles': 1}),
    ]
    timed = [
        ('gradients summed under the backward', SLOW, 'data', {'data': 2}, {'reduce_gradients': 'end'}),
        ('gathers of ZeRO 3 a layer ahead', SLOW, 'data', {'data': 2, 'zero': 3, 'prefetch': 1}, {'prefetch': 0}),
        ('one message for all gradients', SLOW, 'data', {'data': 2, 'fusion': '64 MB'}, {'fusion': 'none'}),
        ('copies hide sums of tensor parallelism', SLOW, 'tensor', {'tensor': 2, 'copies': 2}, {'copies': 1}),
        ('four copies for two', SLOW, 'tensor', {'tensor': 2, 'copies': 4}, {'copies': 2}),
        ('zero bubble', SLOW, 'pipeline', {**pipeline, 'order': 'zb-h1'}, {'order': '1f1b'}),
        ('recomputation of layers', SLOW, 'tensor', {'tensor': 2, 'recompute': 'full'}, {'recompute': 'none'}),
        ('shards of weights for copies of them', SLOW, 'data', {'data': 2, 'zero': 3, 'prefetch': 1}, {'zero': 0}),
        (
            'two chunks a stage',
            SLOW,
            'pipeline',
            {**pipeline, 'chunks': 2, 'order': 'interleaved-1f1b'},
            {'chunks': 1, 'order': '1f1b'},
        ),
    ]
    of = {**real, 'tensor': TRANSFORMER}
    return [
        *(Row(name, 'emulated', net, '', work, plan, other) for name, net, work, plan, other in emulated),
        Row('A/A, copies 2', 'emulated', FAST, '', TRANSFORMER, {'tensor': 2, 'copies': 2}),
        *(Row(name, 'real', net, model, of[model], plan, other) for name, net, model, plan, other in timed),
        Row('A/A, copies 2', 'real', SLOW, 'tensor', TRANSFORMER, {'tensor': 2, 'copies': 2}),
        Row('A/A, data 2', 'real', SLOW, 'data', real['data'], {'data': 2}),
    ]


def main() -> int:
    """Run the commands that are missing, then write the page."""
    options = arguments(
        __doc__,
        seed=(2028, 'of weights and data'),
        only={'choices': ('', *STEPS), 'default': '', 'help': 'rows of this kind alone'},
        finished=(False, 'run nothing; write the page of what is in the folder'),
        folder=(Path('out/gain'), 'where finished commands are kept'),
        write=(Path, 'where the page goes'),
    )
    folder: Path = options.folder / f'{options.seed}-{commit()}'
    chosen = [(number, row) for number, row in enumerate(rows()) if options.only in ('', row.kind)]
    if options.finished:
        chosen = [(number, row) for number, row in chosen if (folder / f'{number}.json').exists()]
    answers = [_answer(number, row, folder, options.seed) for number, row in chosen]
    text, held = page([row for _, row in chosen], answers, options.seed)
    return end(text, options.write, held)


def _answer(number: int, row: Row, folder: Path, seed: int) -> dict[str, Any]:
    """What `simpar measure --json` answers, from the file where it has been asked before."""

    def measure() -> dict[str, Any]:
        path = folder / f'{number}.yaml'
        write_atomically(path, json.dumps(row.schedule) + '\n')
        words = ['--net', row.net, '--compute', row.kind, '--steps', STEPS[row.kind], '--seed', seed]
        words += [] if row.against else ['--baseline', 'itself']
        words += ['--time-ops', '--set', f'cluster={_profile(row, path, folder)}'] if row.kind == 'real' else []
        begun = time.monotonic()
        told = answer('measure', path, *words)
        return {**told, 'commit': commit(), 'load': os.getloadavg()[0], 'seconds': time.monotonic() - begun}

    found: dict[str, Any] = kept(folder / f'{number}.json', measure)
    print(line(_cells(row, found)), file=sys.stderr, flush=True)
    return found


def _profile(row: Row, path: Path, folder: Path) -> Path:
    """A profile of this machine for the ops of a model, without any message or step of its schedules."""
    profile = folder / f'{row.model}.yaml'
    if not profile.exists():
        words = ['--ranks', '2', '--net', row.net, '--quick', '--for', str(path), '--profile', str(profile)]
        subprocess.run(
            [sys.executable, '-m', 'executor.bench', *words], check=True, env={**os.environ, 'PYTHONPATH': str(ROOT)}
        )
    return profile


def _cells(row: Row, found: dict[str, Any]) -> list[str]:
    gain, step, overlap = found['gain'], found['step'], found['figures']['overlap']
    shown = [f'{overlap[how] * 100:.1f} %' if overlap[how] is not None else '' for how in ('predicted', 'measured')]
    gains = [f'{gain[how] * 100:+.1f} %' for how in ('predicted', 'measured')]
    steps = [f'{step[how] * 1e3:.1f} ms' for how in ('predicted', 'measured')]
    plans = [_words(row.plan), _words(row.against) or 'the same']
    return [row.name, row.kind, row.net, *plans, *gains, f'{gain["points"]:+.1f}', *steps, *shown]


def _words(keys: dict[str, Any]) -> str:
    return ', '.join(f'{key.replace("_", " ")} {value}' for key, value in keys.items())


def page(measured: Sequence[Row], answers: Sequence[dict[str, Any]], seed: int) -> tuple[str, bool]:
    """The page in Markdown, and whether everything holds that must."""
    claims = [*_claims(measured, answers)]
    loads = [answer['load'] for answer in answers]
    head = page_head(
        'gain', seed=seed, commits=', '.join(dict.fromkeys(answer['commit'] for answer in answers)), cores=cores(),
        minutes=sum(answer['seconds'] for answer in answers) / 60, least=min(loads), most=max(loads), **STEPS,
    )  # fmt: skip
    rows = table(HEADS, (_cells(row, answer) for row, answer in zip(measured, answers, strict=True)))
    return head + '\n'.join([*claims_table(claims), *rows, '']), all(held for _, _, held in claims)


def _claims(measured: Sequence[Row], answers: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, bool]]:
    for kind in STEPS:
        mine = [(row, answer['gain']) for row, answer in zip(measured, answers, strict=True) if row.kind == kind]
        points = [abs(gain['points']) for row, gain in mine if row.against]
        near = sum(one <= APART for one in points)
        what = f'{kind} compute: at least {LEAST[kind]} gains within {APART:g} points'
        worst = f', worst {max(points):.1f}' if points else ''
        yield what, f'{near} of {len(points)} measured{worst}', near >= LEAST[kind]
        noise = [abs(gain['measured']) * 100 for row, gain in mine if not row.against]
        told = f'{max(noise):.1f} points' if noise else 'not measured'
        yield f'{kind} compute: A/A within {APART:g} points', told, bool(noise) and max(noise) <= APART
    lost = [
        row.name for row, answer in zip(measured, answers, strict=True) if answer['gain']['predicted'] < -APART / 100
    ]
    signs = [a['gain'] for a in answers if abs(a['gain']['predicted']) * 100 > APART]
    wrong = sum((one['predicted'] > 0) != (one['measured'] > 0) for one in signs)
    yield f'gains of more than {APART:g} points have the predicted sign', f'{wrong} have not', not wrong
    yield 'a plan that loses is among them', '; '.join(lost) or 'none', bool(lost)


if __name__ == '__main__':
    sys.exit(main())
