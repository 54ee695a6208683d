"""``simpar init``: a first schedule, with comments, from a model, devices and a batch."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simpar.errors import Problem, ScheduleError
from simpar.files import write_atomically
from simpar.huggingface.sizes import MODELS
from simpar.importing.first import first_schedule
from simpar.profiles import profile_of_flag
from simpar.schedule import load_schedule
from simpar.workload import Transformer


def command(options: argparse.Namespace) -> int:
    """Write it where it is asked for, once it has been read back."""
    profile = profile_of_flag(options.cluster, '--cluster')
    sizes, model = _sizes(options.model, options.sequence)
    text = first_schedule(
        sizes, profile, nodes=options.nodes, devices=0 if options.devices == profile.devices else options.devices,
        batch=options.batch, sequence=options.sequence, model=model,
    )  # fmt: skip
    load_schedule(text)
    if options.output:
        if model:
            # Paths in a schedule are from its folder.
            text = text.replace(f'model: {json.dumps(model)}', f'model: {json.dumps(_relative(model, options.output))}')
        write_atomically(options.output, text)
        print(json.dumps({'written': str(options.output)}) if options.json else f'wrote {options.output}')
    elif options.json:
        print(json.dumps({'schedule': text}))
    else:
        sys.stdout.write(text)
    return 0


def _relative(model: str, output: Path) -> str:
    return os.path.relpath(model, output.parent or Path())


def _sizes(model: str, sequence: int) -> tuple[Mapping[str, Any], str]:
    """Sizes of a model of the library, or those that a config has, and its path."""
    if model.lower() in MODELS:
        return MODELS[model.lower()], ''
    if not model.endswith('.json'):
        known = f'one of {", ".join(MODELS)}, or a config.json'
        raise ScheduleError(Problem('--model', f'no known model ({model[:40]!r})', known))
    probe = {'simpar': 1, 'cluster': 'h100-sxm-8', 'workload': {'model': model, 'sequence': sequence, 'batch': 65536}}
    network = load_schedule({**probe, 'plan': {'data': 8}}).workload.model
    assert isinstance(network, Transformer)
    return asdict(network), model
