"""What the tests of sweeps share: a small schedule, and the verb."""

import csv

from simpar import cli

NETWORK = """\
simpar: 1
cluster: {profile: h100-sxm-8, devices: 4, stack: none}
workload:
  network:
    - dense: {in: 256, out: 512}
    - relu: {}
    - dense: {in: 512, out: 512}
    - dense: {in: 512, out: 8}
  batch: 64
plan: {tensor: 2}
"""


def write(folder, *, sweep='', text=NETWORK):
    path = folder / 'schedule.yaml'
    path.write_text(text + (f'sweep: {sweep}\n' if sweep else ''), encoding='utf-8')
    return path


def run(*words):
    return cli.main(['sweep', *map(str, words)])


def rows_of_csv(path):
    return list(csv.DictReader(path.read_text(encoding='utf-8').splitlines()))
