"""``simpar script LAUNCHER FILE``: the job that a launcher takes, for the hosts and devices of a schedule, as text.

The texts stand in ``launchers.yaml``.
"""

import argparse
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from simpar import case, hardware, schedule
from simpar.commands.answers import print_answer

STORE, MEETING = 29500, 29400
"""Ports on the first host: of the ranks' store, and of the preflight before it."""
_WORD: Final = re.compile(r'<<(\w+)>>')
DEVICES: Final = {'NCCL': 'cuda', 'RCCL': 'cuda', 'HCCL': 'npu'}
"""What computes, by the library of the collectives; all else: CPUs."""
_SHOWN: Final = 3
"""Hosts of an example."""


def script_command(options: argparse.Namespace) -> int:
    """Print the script."""
    on = case.cluster_of(schedule.load_schedule(options.file, options.set))
    text = _script(options, on)
    summary = {'launcher': options.launcher, 'hosts': on.nodes, 'ranks': on.world, 'script': text}
    print_answer(options, lambda: summary, lambda: text)
    return 0


def _script(options: argparse.Namespace, on: hardware.Cluster) -> str:
    launchers = yaml.safe_load((Path(__file__).parent / 'launchers.yaml').read_text(encoding='utf-8'))
    own = launchers[options.launcher]
    words = {**launchers['common'], **own, **_words(options, on)}
    words['devices'] = own.get('devices', {}).get(on.profile.library.name, '')
    if 'start' in own:
        # A pod runs one line of shell; alone it has nobody to look for.
        line = own['start'] if on.nodes == 1 else f'{own["check"]} {own["start"]}'
        words['args'] = json.dumps(_filled(line, words))
    return _filled(own['one' if on.nodes == 1 and 'one' in own else 'several'], words)


def _filled(text: str, words: Mapping[str, str]) -> str:
    """A text with its words, which may hold words that hold words."""
    for _ in range(3):
        text = _WORD.sub(lambda match: words.get(match[1], match[0]), text)
    return text


def _words(options: argparse.Namespace, on: hardware.Cluster) -> dict[str, str]:
    """What a script is written for: its name, as Kubernetes allows it, its hosts, and what every rank runs."""
    name = re.sub(r'[^a-z0-9]+', '-', options.file.stem.lower())[:50].strip('-')
    # Kubernetes takes no name of a service that begins with a digit, and YAML takes 1e3 and null for no text.
    if not name[:1].isalpha() or len(name) == 1 or yaml.safe_load(name) != name:
        name = f'simpar-{name}'.rstrip('-')
    # The preflight looks for the same devices as the ranks.
    computes = options.device or DEVICES.get(on.profile.library.name, 'cpu')
    device = [] if computes == 'cpu' else ['--device', computes]
    flags = ['--checkpoint', str(options.checkpoint), '--every', str(options.every)] if options.checkpoint else []
    flags += ['--resume'] if options.resume else []
    target = [str(options.file), *(word for one in options.set for word in ('--set', one)), *device]
    pods = [f'{name}-{index}.{name}' for index in range(on.nodes)]
    example = [f'node{index}' for index in range(min(on.nodes, _SHOWN))] + ['...'] * (on.nodes > _SHOWN)
    return {
        'name': name,
        'target': shlex.join(target),
        'steps': str(options.steps),
        'kept': ''.join(f' {word}' for word in map(shlex.quote, flags)),
        'hosts': str(on.nodes),
        'last_host': str(on.nodes - 1),
        'each': str(on.devices),
        'ranks': str(on.world),
        'sizes': f'{_several(on.nodes, "host")} with {_several(on.devices, "rank")} each',
        'example': ','.join(example),
        'pods': ','.join(pods),
        'first_pod': pods[0],
        'store': str(STORE),
        'meeting': str(MEETING),
    }


def _several(count: int, what: str) -> str:
    return f'{count} {what}{"s" if count > 1 else ""}'
