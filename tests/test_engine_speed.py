"""What a prediction costs: CPU seconds of the command line for a pipeline over 64 and 1,024 GPUs, with its baseline."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / 'examples' / 'pipeline_h100.yaml'
TARGET = 2.4
"""CPU seconds that 64 GPUs may take on a quiet core of 2023."""
FOLDING = 0.36
"""CPU seconds more that 1,024 may take: 15 % of what 64 took when this was first held. Now 64 take half as long."""
SLACK = 2.0
"""How much slower a machine may be that runs tests, and that others use too."""
RUNS = 2


def cpu_seconds(directory, data):
    """CPU seconds of ``simpar run`` in a process of its own."""
    wider = [f'cluster.nodes={4 * data}', f'plan.data={data}', f'workload.batch={64 * data}']
    options = [word for value in wider for word in ('--set', value)]
    environment = {**os.environ, 'PYTHONPYCACHEPREFIX': str(directory), 'PYTHONDONTWRITEBYTECODE': ''}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, '-m', 'simpar', 'run', str(EXAMPLE), *options]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope='module')
def seconds(tmp_path_factory):
    """The least CPU seconds by number of GPUs, run in turns, once all modules are compiled."""
    compiled = tmp_path_factory.mktemp('compiled')
    cpu_seconds(compiled, 2)
    turns = [(cpu_seconds(compiled, 2), cpu_seconds(compiled, 32)) for _ in range(RUNS)]
    return dict(zip((64, 1024), map(min, zip(*turns, strict=True)), strict=True))


def test_64_gpus_take_seconds(seconds):
    assert seconds[64] < SLACK * TARGET


def test_1024_gpus_take_no_longer(seconds):
    assert seconds[1024] < seconds[64] + FOLDING, 'they behave as 4 do; the rest is folding them'
