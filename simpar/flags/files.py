"""The flags of the verbs that write and show files."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from simpar.flags.types import positive


def profiles(verb: ArgumentParser) -> None:
    """Of ``simpar profiles``."""
    verb.add_argument('name', nargs='?', metavar='NAME')


def examples(verb: ArgumentParser) -> None:
    """Of ``simpar examples``."""
    verb.add_argument('name', nargs='?', metavar='NAME')
    verb.add_argument('--copy', type=Path, metavar='DIR', help='write them into this folder')


def bring(verb: ArgumentParser) -> None:
    """Of ``simpar import``."""
    verb.add_argument(
        'file', type=Path, metavar='FILE',
        help="script, argument list, TOML, JSON, YAML; or a trace of torch.profiler, or a folder of all ranks' traces",
    )  # fmt: skip
    verb.add_argument(
        '--for', dest='schedule', type=Path, metavar='SCHEDULE', help='of a trace: join it with this schedule, by op'
    )
    verb.add_argument(
        '--set', action='append', default=[], metavar='NAME=v',
        help="a variable or setting of the file, or a dotted key of the schedule; may be repeated",
    )  # fmt: skip
    verb.add_argument(
        '--save', type=Path, metavar='JSON', help='of a trace: write it as a measured trace for `simpar compare`'
    )
    verb.add_argument('--model', metavar='JSON', help="Hugging Face config.json, in place of the file's model")
    verb.add_argument(
        '--cluster', metavar='PROFILE', help='hardware profile, in place of the usual one of the launcher'
    )
    verb.add_argument('--full', action='store_true', help='list the settings that are mapped or have no effect, too')
    verb.add_argument(
        '--output', type=Path, metavar='YAML',
        help='write the schedule here (default: standard output); of a trace, a profile with what its ops took',
    )  # fmt: skip


def init(verb: ArgumentParser) -> None:
    """Of ``simpar init``."""
    verb.add_argument('--model', required=True, metavar='NAME', help='such as llama3-8b or gpt3-175b, or a config.json')
    verb.add_argument('--cluster', default='h100-sxm-8', metavar='PROFILE', help='default: h100-sxm-8')
    verb.add_argument('--nodes', type=positive, default=1, metavar='N', help='default: 1')
    verb.add_argument('--devices', type=positive, default=0, metavar='N', help='of each node (default: all)')
    verb.add_argument('--batch', type=positive, default=64, metavar='N', help='samples in a step (default: 64)')
    verb.add_argument('--sequence', type=positive, default=2048, metavar='N', help='tokens in a sample (default: 2048)')
    verb.add_argument('--output', type=Path, metavar='YAML', help='write it here (default: standard output)')


def script(verb: ArgumentParser) -> None:
    """Of ``simpar script``."""
    verb.add_argument('launcher', choices=('slurm', 'torchrun', 'mpirun', 'msrun', 'k8s'))
    verb.add_argument('file', type=Path, metavar='FILE', help='schedule.yaml, as the hosts find it')
    verb.add_argument('--set', action='append', default=[], metavar='a.b=v', help='replace one value')
    verb.add_argument('--device', choices=('cpu', 'cuda', 'npu'), default='cpu', help='what computes (default: cpu)')
    verb.add_argument('--steps', type=positive, default=3, metavar='N', help='steps to train (default: 3)')


def show(verb: ArgumentParser) -> None:
    """Of ``simpar show``."""
    verb.add_argument('page', type=Path, metavar='PAGE.html')


def completion(verb: ArgumentParser) -> None:
    """Of ``simpar completion``."""
    verb.add_argument('shell', choices=('bash', 'zsh', 'fish'))
