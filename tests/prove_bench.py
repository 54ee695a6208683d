"""The bench of two hosts (namespaces of this machine) under torchrun: what it finds, and hosts that fail.

    python -m tests.prove_bench [--write]

Needs root, ``ip``, ``tc`` and ``unshare``; --write puts what was seen into docs/proofs/cluster_proof.md.
"""

import os
import re
import shutil
import sys
import time
from pathlib import Path

from simpar.profiles import load_profile
from tests.hosts import Hosts, lacking
from tests.prove_cluster import ROOT, versions, write_section

QUIET = 8
CARD = 200
"""Mbit/s of the card of each host."""
NEAR = 0.1
"""How far the bandwidth that was found may be from that which was set."""
NAMED = re.compile(r'^.*(?:node[01]|rank [0-3]).*(?:said nothing|died|lost|reached).*$', re.MULTILINE)


class Bench:
    """A bench of two ranks on each of two hosts."""

    def __init__(self, hosts, log):
        self.hosts, self.log = hosts, log
        self.profile = hosts.folder / 'mine.yaml'
        words = f'-m executor.bench --sizes tiny --profile {self.profile} --timeout {QUIET}s'
        flags = '--nnodes 2 --nproc-per-node 2 --master-addr node0 --master-port 29500'
        settings = {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
        start = f'{sys.executable} -m torch.distributed.run {flags} --node-rank'
        self.started = [hosts.start(host, f'{start} {host} {words}', log=log, **settings) for host in range(2)]

    def said(self):
        return self.hosts.said(log=self.log)

    def until(self, seconds, found):
        """Wait until something is so; returns whether it came to that."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not found():
            time.sleep(0.1)
        return bool(found())

    def over(self):
        return all(one.poll() is not None for one in self.started) and not self.left()

    def left(self):
        return [line for host in range(2) for line in self.hosts.commands(host)]


def shaped(hosts):
    """Each host's card carries ``CARD`` Mbit/s by the kernel's token bucket; its inside is not held back."""
    for host in range(2):
        hosts.shape(host, f'tbf rate {CARD}mbit burst 16kb latency 500ms')


def finds():
    with Hosts(2) as hosts:
        shaped(hosts)
        begin, bench = time.monotonic(), Bench(hosts, 'good')
        over = bench.until(200, bench.over)
        seconds = time.monotonic() - begin
        if not over or not bench.profile.exists():
            return seconds, False, bench.said()[-300:]
        near, far = load_profile(bench.profile).links
        rate = far.rate * 8 / 1e6
        told = f'network {rate:.0f} Mbit/s, a card for each {far.per}; inside {near.rate * 8 / 1e6:.0f} Mbit/s'
        return seconds, abs(rate / CARD - 1) < NEAR and far.per == 'node' and near.rate > far.rate, told


def breaks(how, again):
    """A host is lost in mid-run; returns as ``finds``. Arguments: ``again``, whether the same command follows."""
    with Hosts(2) as hosts:
        bench = Bench(hosts, 'broken')
        bench.until(90, lambda: 'both at once' in bench.said())
        time.sleep(2)
        begin = time.monotonic()
        how(hosts)
        named = bench.until(60, lambda: NAMED.search(bench.said()))
        seconds = time.monotonic() - begin
        gone = bench.until(30, bench.over)
        told = NAMED.search(bench.said())[0][:160] if named else bench.said()[-300:]
        if again:
            kept = len(list(Path(f'{bench.profile}.journal').glob('*.npz')))
            bench = Bench(hosts, 'again')
            gone = bench.until(200, bench.over) and bench.profile.exists() and gone
            told = f'{told}; again: goes on behind {kept} runs'
            gone = gone and f'the first {kept} runs are of an earlier start' in bench.profile.read_text()
        return seconds, bool(named) and gone and seconds <= QUIET + 10, told


def main():
    if lacking() or shutil.which('tc') is None:
        print(f'not run: {lacking() or "tc not found; install iproute2"}')
        return 3
    rows, well = [], True
    for what, proof in (
        (f'cards of {CARD} Mbit/s are found, within {NEAR:.0%}', finds),
        ('node1 dies, and the same command is given again', lambda: breaks(lambda hosts: hosts.kill(1), True)),
        (f'the cable of node1 is cut (timeout {QUIET} s)', lambda: breaks(lambda hosts: hosts.cut(1), False)),
    ):
        seconds, good, told = proof()
        rows.append(f'| {what} | {seconds:.1f} | {"yes" if good else "**no**"} | `{told.strip()}` |')
        print(rows[-1], flush=True)
        well = well and good
    if '--write' in sys.argv:
        head = '| what happens | seconds | good, nothing left | what was found, or said first |\n|---|---|---|---|'
        title = 'Calibration over two hosts, by torchrun'
        write_section('bench', title, '`make prove-bench`', versions('namespaces'), [head, *rows])
    return 0 if well else 1


if __name__ == '__main__':
    os.chdir(ROOT)
    sys.exit(main())
