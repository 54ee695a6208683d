"""Every stack on pipelines: that its host waits, and has few work queues, never brings ranks into lockstep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.lower import lower
from simpar.plans import Plan
from simpar.predict import step_of
from simpar.profiles import cluster, load_profile
from simpar.stacks import load_stack, stack_names
from simpar.workload import Adam, Transformer, Workload

MODEL = Transformer(layers=32, hidden=4096, heads=32, vocab=4096, sequence=4096)
PROFILE = load_profile('h100-sxm-8')
MOST = 1.6
"""Times as long as the same framework takes whose host never waits, on as many work queues as the device has."""


def steps(name: str, plan: Plan, **without: None) -> tuple[float, float]:
    """Seconds of a step on a stack as it is, and without some of its parts."""
    work = Workload(model=MODEL, batch=plan.micro_batches, precision='bf16', optimizer=Adam())
    stack = load_stack(name)
    program, devices = lower(work, plan, plan.pipeline), min(plan.pipeline, PROFILE.devices)
    first, other = (
        step_of(program, cluster(PROFILE, plan.pipeline // devices, devices=devices, stack=one))
        for one in (stack, replace(stack, **without))
    )
    return first, other


def plan_of(pipeline: int, chunks: int, **keys: str) -> Plan:
    order = {'order': 'interleaved-1f1b', 'chunks': chunks} if chunks > 1 else {}
    return Plan(pipeline=pipeline, micro_batches=16, fusion='stage', **order, **keys)


OWN = [name for name in stack_names() if load_stack(name).waits is not None]
"""Stacks whose host waits anywhere."""


@pytest.mark.parametrize('chunks', [1, 2])
@pytest.mark.parametrize('pipeline', [1, 4, 16])
@pytest.mark.parametrize('name', OWN)
def test_no_stack_is_brought_into_lockstep_by_what_its_host_waits_for(name, pipeline, chunks):
    """With the exchange that the stack has, and with messages that are issued one by one."""
    if pipeline == 1 and chunks > 1:
        pytest.skip('one rank has no virtual stages')
    own = {
        key.removeprefix('plan.'): value
        for key, value in load_stack(name).schedule.items()
        if key in ('plan.exchange', 'plan.receive')
    }
    late = [{'exchange': 'separate', 'receive': 'late'}, {'exchange': 'fused', 'receive': 'late'}]
    # Timers of 2021 synchronise about each pass, with all messages on their way: nothing goes on beside computation.
    timed = 'pass' in load_stack(name).waits.at
    for keys in (own, *([] if timed else late)):
        stacked, free = steps(name, plan_of(pipeline, chunks, **keys), waits=None, work_queues=None)
        assert stacked <= MOST * free, keys
    if not timed:
        # Receives that are posted early hold up what one work queue has behind them, whoever waits.
        stacked, free = steps(name, plan_of(pipeline, chunks, exchange='separate', receive='early'), waits=None)
        assert stacked <= MOST * free


@pytest.mark.parametrize(
    'keys', [{'exchange': 'separate', 'receive': 'late'}, {'exchange': 'fused', 'receive': 'late'}]
)
def test_interleaved_stages_gain_with_megatron(keys):
    plain, _ = steps('megatron-te', plan_of(4, 1, exchange='fused', receive='late'))
    interleaved, _ = steps('megatron-te', plan_of(4, 2, **keys))
    assert interleaved < plain
