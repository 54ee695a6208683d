"""``python -m executor.validation``: the table, and exit code 4 where a figure is outside of its tolerance."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from executor.validation.cases import ValidationCase, balance_cases, cases, losing_cases, pipeline_cases
from executor.validation.optimizer_cases import optimizer_cases
from executor.validation.tile_cases import tile_cases
from executor.validation.validation import Row, Validation, emulated_cluster, run_cases
from simpar.errors import OutsideTolerance, SimparError
from simpar.files import write_atomically
from simpar.hardware.net import Net, parse_net
from simpar.units import format_time

CASES = ('copies', 'pipelines', 'optimizer', 'tiles', 'all')
LONG = parse_net('paced:500mbit,10ms')
"""Where latency decides; namespaces shape rates only, so this network is always paced."""


def main() -> int:
    """Gather, print and judge."""
    options = _parser().parse_args()
    try:
        found = []
        for rows, net in _runs(options.cases, options.ranks, options.net):
            found.append(run_cases(rows, net, options.ranks, rounds=options.rounds, progress=_progress))
            # Each table as soon as it is there: all of them together take minutes.
            print(table(found[-1]) + '\n', flush=True)
        if options.json:
            write_atomically(options.json, json.dumps([to_dict(validation) for validation in found], indent=1) + '\n')
        # Judged last, so that a figure out of tolerance does not cost the other tables.
        for validation in found:
            judge(validation, options.tolerance / 100)
    except SimparError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _runs(which: str, ranks: int, net: Net) -> Iterator[tuple[list[ValidationCase], Net]]:
    """What is measured together, and on which network."""
    if which in ('copies', 'all'):
        yield cases(ranks), net
        yield losing_cases(ranks), LONG
    if which in ('pipelines', 'all'):
        yield [*pipeline_cases(ranks), *balance_cases(ranks, emulated_cluster(net, ranks))], net
    if which in ('optimizer', 'all'):
        yield optimizer_cases(ranks), net
    if which in ('tiles', 'all'):
        yield tile_cases(ranks), net


def judge(validation: Validation, tolerance: float) -> None:
    """Raise ``OutsideTolerance`` where a step errs by more, or two steps are in the wrong order."""
    wrong = [f'{row.case.name}: step off by {row.error:+.1%}' for row in validation.rows if abs(row.error) > tolerance]
    wrong += [f'wrong order: {one}, {other}' for one, other in validation.disordered()]
    if wrong:
        raise OutsideTolerance('\n'.join(wrong))


def table(validation: Validation) -> str:
    """Markdown, as it stands in docs/evidence.md."""
    lines = [
        f'{validation.world} ranks, network {validation.net}, emulated compute',
        '',
        '| schedule | predicted | measured p10 | median | spread (CV) | error | gain predicted | gain measured |',
        '|---|---|---|---|---|---|---|---|',
    ]
    lines += [_line(row) for row in validation.rows]
    order = len(validation.disordered())
    worst = f'Worst error {validation.worst:.1%}, worst gain {validation.worst_gain * 100:.1f} points'
    lines += [
        '',
        f'{worst}, pairs in the wrong order: {order}.',
    ]
    for (operator, ranks), line in validation.lines.items():
        lines.append(
            f'{operator} over {ranks}: {format_time(line.alpha)} + bytes / {line.rate / 1e6:.4g} MB/s, '
            f'residual at most {line.residual:.1%}'
        )
    return '\n'.join(lines)


def _line(row: Row) -> str:
    gains = ['', '']
    if row.gain_predicted is not None and row.gain_measured is not None:
        gains = [f'{row.gain_predicted:+.1%}', f'{row.gain_measured:+.1%}']
    cells = [row.case.name, format_time(row.predicted), format_time(row.measured.p10), format_time(row.measured.median)]
    return '| ' + ' | '.join([*cells, f'{row.measured.cv:.1%}', f'{row.error:+.1%}', *gains]) + ' |'


def to_dict(validation: Validation) -> dict[str, Any]:
    """All figures; seconds."""
    return {
        'net': str(validation.net),
        'ranks': validation.world,
        'rows': [
            {
                'schedule': row.case.name,
                'against': row.case.against,
                'program': row.case.program.hash,
                'predicted': row.predicted,
                'measured': row.measured.samples.tolist(),
                'error': row.error,
                'gain_predicted': row.gain_predicted,
                'gain_measured': row.gain_measured,
            }
            for row in validation.rows
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m executor.validation', description=__doc__, allow_abbrev=False)
    parser.add_argument('--net', type=_net, default=parse_net('paced:500mbit,200us'), metavar='NET')
    parser.add_argument('--cases', choices=CASES, default='all', help='default: all')
    parser.add_argument('--ranks', type=int, choices=(2, 4), default=2)
    parser.add_argument('--rounds', type=int, default=20, metavar='N', help='measured rounds (default: 20)')
    parser.add_argument('--tolerance', type=float, default=5.0, metavar='PERCENT', help='default: 5')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all samples')
    return parser


def _net(text: str) -> Net:
    try:
        net = parse_net(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if net.kind == 'none':
        raise argparse.ArgumentTypeError('a network of known rate is needed: paced:RATE,LATENCY or netns:RATE')
    return net


def _progress(done: int, of: int) -> None:
    print(f'\rround {done} of {of}', end='' if done < of else '\n', file=sys.stderr, flush=True)


if __name__ == '__main__':
    sys.exit(main())
