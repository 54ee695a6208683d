"""``simpar warmup``: compile the machines once, so that large programs are simulated at once from then on."""

from __future__ import annotations

import argparse
import json
import time

from simpar.cost.price import price
from simpar.engine import simulate
from simpar.engine.loop import events
from simpar.kernels import is_kept
from simpar.lower import lower
from simpar.memory import memory
from simpar.pipeline import StageTimes, automatic_order
from simpar.plans import Plan
from simpar.profiles import cluster, load_profile
from simpar.workload import Transformer, Workload


def warmup_command(options: argparse.Namespace) -> int:
    """Simulate a small program, and time orders of a pipeline."""
    begun = time.monotonic()
    workload = Workload(model=Transformer(layers=2, hidden=64, heads=4, vocab=64, sequence=32), batch=8)
    program = lower(workload, Plan(tensor=2, pipeline=2, data=2, micro_batches=2), 8)
    _ = memory(simulate(program, price(program, cluster(load_profile('h100-sxm-8'))))).peak
    automatic_order(2, StageTimes.uniform(2, 1.0, 1.0, 1.0), 2)
    seconds = time.monotonic() - begun
    if options.json:
        print(json.dumps({'seconds': round(seconds, 3)}))
    elif is_kept(events):
        print(f'The machines are compiled ({seconds:.1f} s); from now on they are loaded from the disk.')
    else:
        print(f'The machines are compiled ({seconds:.1f} s), but no folder could be written: set NUMBA_CACHE_DIR.')
    return 0
