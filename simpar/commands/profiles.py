"""``simpar profiles [NAME]``: the hardware profiles, or the numbers of one with source and grade."""

from __future__ import annotations

import argparse
import dataclasses
import json

from simpar.hardware.figures import figures_of
from simpar.profiles import load_profile, profile_names, profile_of_flag


def command(options: argparse.Namespace) -> int:
    """Print the list, or one profile."""
    if options.name is None:
        profiles = [load_profile(name) for name in profile_names()]
        rows = [
            {'name': name, 'devices': profile.devices, 'library': profile.library.name}
            for name, profile in zip(profile_names(), profiles, strict=True)
        ]
        if options.json:
            print(json.dumps(rows))
        else:
            for row in rows:
                print(f'{row["name"]:<20}{row["devices"]:>3} devices a node, {row["library"]}')
        return 0
    figures = list(figures_of(profile_of_flag(options.name, 'simpar profiles')))
    if options.json:
        print(json.dumps([{'key': key, **dataclasses.asdict(figure)} for key, figure in figures]))
        return 0
    for key, figure in figures:
        print(f'{key:<44}{figure.value:>12.6g}  {figure.grade:<11}{figure.source}')
    return 0
