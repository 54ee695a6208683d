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

from proof import arguments, claims_table, end
from prove_evidence import commit, cores

from simpar.files import write_atomically

ROOT: Final = Path(__file__).parent.parent
APART: Final = 3.0
"""Points between the gains, at most."""
LEAST: Final = {'emulated': 5, 'real': 6}
"""Rows of each kind that must hold."""
STEPS: Final = {'emulated': 10, 'real': 40}
HEADS: Final = (
    *('what', 'compute', 'network', 'plan', 'baseline', 'gain predicted', 'measured', 'points'),
    *('step predicted', 'measured', 'overlap predicted', 'measured'),
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
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [(number, row) for number, row in enumerate(rows()) if options.only in ('', row.kind)]
    if options.finished:
        chosen = [(number, row) for number, row in chosen if (folder / f'{number}.json').exists()]
    answers = [_answer(number, row, folder, options.seed) for number, row in chosen]
    text, held = page([row for _, row in chosen], answers, options.seed)
    return end(text, options.write, held)


def _answer(number: int, row: Row, folder: Path, seed: int) -> dict[str, Any]:
    """What `simpar measure --json` answers, from the file where it has been asked before."""
    file, path = folder / f'{number}.json', folder / f'{number}.yaml'
    if not file.exists():
        write_atomically(path, json.dumps(row.schedule) + '\n')
        words = ['--net', row.net, '--compute', row.kind, '--steps', str(STEPS[row.kind]), '--seed', str(seed)]
        words += [] if row.against else ['--baseline', 'itself']
        words += ['--time-ops', '--set', f'cluster={_profile(row, path, folder)}'] if row.kind == 'real' else []
        begun = time.monotonic()
        answer = json.loads(_run('simpar', 'measure', str(path), *words, '--json'))
        answer |= {'commit': commit(), 'load': os.getloadavg()[0], 'seconds': time.monotonic() - begun}
        write_atomically(file, json.dumps(answer) + '\n')
    found: dict[str, Any] = json.loads(file.read_text(encoding='utf-8'))
    print(_line(row, found), file=sys.stderr, flush=True)
    return found


def _profile(row: Row, path: Path, folder: Path) -> Path:
    """A profile of this machine for the ops of a model, without any message or step of its schedules."""
    profile = folder / f'{row.model}.yaml'
    if not profile.exists():
        words = ['--ranks', '2', '--net', row.net, '--quick', '--for', str(path), '--profile', str(profile)]
        _run('executor.bench', *words)
    return profile


def _run(module: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, '-m', module, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    if done.returncode:
        raise RuntimeError(f'{module} {" ".join(words)} ended with {done.returncode}: {done.stdout}')
    return done.stdout


def _line(row: Row, found: dict[str, Any]) -> str:
    gain, step, overlap = found['gain'], found['step'], found['figures']['overlap']
    shown = [f'{overlap[how] * 100:.1f} %' if overlap[how] is not None else '' for how in ('predicted', 'measured')]
    gains = [f'{gain[how] * 100:+.1f} %' for how in ('predicted', 'measured')]
    steps = [f'{step[how] * 1e3:.1f} ms' for how in ('predicted', 'measured')]
    points = f'{gain["points"]:+.1f}'
    cells = [row.name, row.kind, row.net, _words(row.plan), _words(row.against) or 'the same']
    return f'| {" | ".join([*cells, *gains, points, *steps, *shown])} |'


def _words(keys: dict[str, Any]) -> str:
    return ', '.join(f'{key.replace("_", " ")} {value}' for key, value in keys.items())


def page(measured: Sequence[Row], answers: Sequence[dict[str, Any]], seed: int) -> tuple[str, bool]:
    """The page in Markdown, and whether everything holds that must."""
    claims = [*_claims(measured, answers)]
    loads = [answer['load'] for answer in answers]
    commits = ', '.join(dict.fromkeys(answer['commit'] for answer in answers))
    minutes = sum(answer['seconds'] for answer in answers) / 60
    text = [
        '# Gains, predicted and measured',
        '',
        f'`make prove-gain` wrote this page: seed {seed}, commit {commits}, {minutes:.0f} minutes of measuring',
        f'on {cores()} cores, whose load was {min(loads):.1f} to {max(loads):.1f}.',
        'Each row is one `simpar measure`: plan and baseline run in turns, and the step at the 10th percentile counts.',
        f'Emulated rows count {STEPS["emulated"]} steps of each, real ones {STEPS["real"]}.',
        'A gain is baseline / step − 1. Points are predicted − measured.',
        'Emulated rows are predicted by the link that `--net` names, and nothing is fitted. Real rows are predicted by',
        'messages and slow-down that `python -m executor.bench --quick --for` measured before, and by ops that',
        '`--time-ops` timed without messages behind each block of steps.',
        'An A/A row measures a plan against itself: its gain is noise.',
        '',
        *claims_table(claims),
        f'| {" | ".join(HEADS)} |',
        f'|{"---|" * len(HEADS)}',
        *(_line(row, answer) for row, answer in zip(measured, answers, strict=True)),
        '',
    ]
    return '\n'.join(text), all(held for _, _, held in claims)


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
