"""The flags of the verbs that measure, and that compare with what was measured."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from simpar.flags.types import percent, positive


def measure(verb: ArgumentParser) -> None:
    """Of ``simpar measure``."""
    verb.add_argument('--compute', choices=('real', 'emulated'), default='real', help='default: real')
    verb.add_argument('--net', default='none', metavar='NET', help='none, paced:RATE,LATENCY or netns:RATE')
    verb.add_argument('--device', default='cpu', choices=('cpu', 'cuda', 'npu', 'virtual'), help='default: cpu')
    verb.add_argument(
        '--steps',
        type=positive,
        default=20,
        metavar='N',
        help='steps that count, of plan and of baseline (default: 20)',
    )
    verb.add_argument(
        '--baseline', default='against', choices=('against', 'none', 'itself'),
        help="what gain is measured from: the schedule's baseline, nothing, or the plan itself, whose gain is noise",
    )  # fmt: skip
    verb.add_argument('--timeout', default='30s', metavar='TIME', help='give up when nothing moves (default: 30s)')
    verb.add_argument('--seed', type=int, default=0, help='of weights and data (default: 0)')
    verb.add_argument('--plot', type=Path, metavar='PNG', help='draw predicted and measured, the difference marked')
    verb.add_argument('--html', type=Path, metavar='HTML', help='write the answer as one page to read and to send')
    verb.add_argument('--trace', type=Path, metavar='DIR', help='write measured and predicted side by side')
    verb.add_argument('--save', type=Path, metavar='JSON', help='write the measured trace for `simpar compare`')
    verb.add_argument(
        '--save-state', type=Path, metavar='PT', help='write losses, parameters and gradients, for torch.load'
    )


def compare(verb: ArgumentParser) -> None:
    """Of ``simpar compare``."""
    verb.add_argument('prediction', type=Path, metavar='PREDICTION')
    verb.add_argument('measurement', type=Path, metavar='MEASUREMENT')
    verb.add_argument('--plot', type=Path, metavar='PNG', help='draw both, the difference marked')
    verb.add_argument(
        '--tolerance', type=percent, metavar='PERCENT', help='exit 4 if the step differs by more, e.g. 10%%'
    )


def diff(verb: ArgumentParser) -> None:
    """Of ``simpar diff``."""
    verb.add_argument('old', type=Path, metavar='OLD')
    verb.add_argument('new', type=Path, metavar='NEW')


def calibrate(verb: ArgumentParser) -> None:
    """Of ``simpar calibrate``."""
    verb.add_argument('output', type=Path, metavar='PROFILE.yaml')
    verb.add_argument('--ranks', type=positive, default=2, metavar='N', help='processes (default: 2)')
    verb.add_argument('--net', default='none', metavar='NET', help='none, paced:RATE,LATENCY or netns:RATE')
    verb.add_argument(
        '--compute',
        choices=('real', 'emulated'),
        default='real',
        help='emulated: measure the messages of emulated compute alone (default: real)',
    )
    verb.add_argument('--device', default='cpu', choices=('cpu', 'cuda', 'npu'), help='what computes (default: cpu)')
    verb.add_argument('--dtype', default='fp32', choices=('fp32', 'bf16', 'fp16'), help='on a device (default: fp32)')
    verb.add_argument('--quick', action='store_true', help='fewer sizes and repeats: a minute')


def validate(verb: ArgumentParser) -> None:
    """Of ``simpar validate``."""
    verb.add_argument('--data', type=Path, metavar='DIR', help='CSV files of steps (default: those with simpar)')
    verb.add_argument('--set', dest='only', metavar='NAME', help='one of its files, without .csv')
    verb.add_argument('--jobs', type=positive, default=1, metavar='N', help='processes at once (default: 1)')
    verb.add_argument('--plot', type=Path, metavar='PNG', help='draw predicted against measured')
    verb.add_argument('--memory', action='store_true', help='predict measured bytes in place of seconds')
    verb.add_argument(
        '--without',
        default='',
        metavar='FACTS',
        help="with --memory, facts of the stack to leave out, e.g. 'loss,mask'",
    )
