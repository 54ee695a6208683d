"""What lowering costs: GPT-3 on 1,024 GPUs, whose 16 roles have 734,702 slots, in a process of its own."""

import json
import subprocess
import sys

import pytest

SECONDS, MEGABYTES = 0.5, 200
"""CPU seconds on a quiet core of 2023, and memory of the whole process."""
SLACK = 2.5
"""How much slower a machine may be that runs tests, and that others use too."""
RUNS = 3
SCRIPT = """
import json, time
from pathlib import Path
from simpar.lower import lower
from simpar.plans import Plan
from simpar.workload import Transformer, Workload

model = Transformer(layers=96, hidden=12288, heads=96, vocab=51200, sequence=2048, tied=True)
plan = Plan(tensor=8, pipeline=16, data=8, micro_batches=192, sequence_parallel=True, recompute='selective')
begin = time.process_time()
program = lower(Workload(model=model, batch=1536, precision='bf16'), plan, 1024)
seconds = time.process_time() - begin
# Not getrusage, whose largest size is that of the process which started this one.
status = Path('/proc/self/status').read_text()
memory = int(status.partition('VmHWM:')[2].split()[0]) / 1024
print(json.dumps([len(program.roles), sum(map(len, program.roles)), seconds, memory]))
"""


@pytest.fixture(scope='module')
def lowered():
    """Of each run: roles, slots, CPU seconds, megabytes."""
    command = [sys.executable, '-c', SCRIPT]
    return [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(RUNS)]


def test_every_slot_is_there(lowered):
    assert {(roles, slots) for roles, slots, *_ in lowered} == {(16, 734_702)}


def test_it_takes_half_a_second_and_little_memory(lowered):
    assert min(seconds for *_, seconds, _ in lowered) < SLACK * SECONDS
    assert max(memory for *_, memory in lowered) < MEGABYTES
