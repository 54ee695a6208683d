"""What the tests of sweeps share: a small schedule, and the verb."""

import csv

from tables import load_table

from simpar import cli

NETWORK = load_table(__file__, 'NETWORK')


def write(folder, *, sweep='', text=NETWORK):
    path = folder / 'schedule.yaml'
    path.write_text(text + (f'sweep: {sweep}\n' if sweep else ''), encoding='utf-8')
    return path


def run(*words):
    return cli.main(['sweep', *map(str, words)])


def rows_of_csv(path):
    return list(csv.DictReader(path.read_text(encoding='utf-8').splitlines()))
