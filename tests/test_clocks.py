"""Clocks under load: a step that uses the matrix units less keeps a higher clock, as the power of a device allows."""

from dataclasses import replace

import pytest

from simpar.lower import lower
from simpar.plans import Plan
from simpar.predict import clock, predict, under_load, utilisation
from simpar.profiles import cluster, load_profile, load_stack
from simpar.workload import Adam, Transformer, Workload

A100 = load_profile('a100-sxm-8')
MODEL = Transformer(layers=4, hidden=2048, heads=16, vocab=1024, sequence=1024)
WORK = Workload(model=MODEL, batch=16, precision='bf16', optimizer=Adam())


def clock_of(plan, devices, stack='torch-fsdp', profile=A100):
    hardware = cluster(profile, devices=devices, stack=load_stack(stack))
    return under_load(lower(WORK, plan, devices), hardware).profile.device.sustained.value


def test_a_device_that_does_nothing_but_its_largest_products_has_the_sustained_clock():
    device = A100.device
    assert clock(device, 0.83, device.matmul.share.value) == pytest.approx(0.83)
    # Half of the work in a second leaves the cube root of two more clock; none leaves all of it.
    assert clock(device, 0.7, device.matmul.share.value / 2) == pytest.approx(0.7 * 2 ** (1 / 3))
    assert clock(device, 0.83, 0.0) == clock(device, 0.83, 1e-3) == 1.0


def test_the_work_of_a_step_is_counted_by_hand():
    program = lower(replace(WORK, model=replace(MODEL, vocab=1024)), Plan(), 1)
    tokens, hidden = 16 * 1024, 2048
    products = 3 * 2 * tokens * (4 * 12 * hidden**2 + 1024 * hidden)
    attention = 4 * (2 + 5) * tokens * 1024 * hidden
    peak = A100.device.matrix['bf16'].value
    assert utilisation(program, A100.device, 2.0) == pytest.approx((products + attention) / peak / 2, rel=1e-6)


def test_a_pipeline_that_waits_keeps_a_higher_clock_than_one_device_that_does_not():
    busy = clock_of(Plan(), 1)
    waiting = clock_of(Plan(pipeline=4, micro_batches=4), 4)
    assert A100.device.sustained.value < busy < waiting <= 1


def test_without_a_stack_or_the_bound_of_power_clocks_are_as_they_were():
    program = lower(WORK, Plan(), 1)
    bare = cluster(A100, devices=1)
    assert under_load(program, bare) is bare
    free = replace(A100, device=replace(A100.device, power_bound=False))
    assert clock_of(Plan(), 1, profile=free) == A100.device.sustained.value


def test_a_device_whose_clock_under_load_nobody_knows_says_so_where_a_stack_is_named():
    program, stack = lower(WORK, Plan(), 1), load_stack('torch-fsdp')
    told = {
        name: ' '.join(predict(program, None, cluster(load_profile(name), devices=1, stack=with_stack)).notes)
        for name, with_stack in (('mi300x-8', stack), ('h200-sxm-8', stack), ('l40s-8', None))
    }
    assert 'keeps under load is not known' in told['mi300x-8']
    assert 'under load' not in told['h200-sxm-8'] + told['l40s-8']


def test_kernels_of_a_later_year_have_the_clock_of_their_year():
    """A100: today's kernels reach in a loop what its table says; H100: those of 2024 do not yet.

    On 500 W of 700 each has the clock that a power which goes with the cube of clocks allows.
    """
    told = {
        (name, stack): cluster(load_profile(name), stack=load_stack(stack)).profile.device.sustained.value
        for name in ('a100-sxm-8', 'h100-sxm-8', 'h100-sxm-96-8')
        for stack in ('torch-fsdp', 'megatron-te-2024', 'megatron-te')
    }
    assert [told['a100-sxm-8', stack] for stack in ('torch-fsdp', 'megatron-te-2024', 'megatron-te')] == [0.83, 1, 1]
    assert [told['h100-sxm-8', stack] for stack in ('torch-fsdp', 'megatron-te-2024', 'megatron-te')] == [0.73, 0.73, 1]
    for stack in ('torch-fsdp', 'megatron-te-2024', 'megatron-te'):
        by_power = (500 / 700) ** (1 / 3) * told['h100-sxm-8', stack]
        assert told['h100-sxm-96-8', stack] == pytest.approx(by_power, abs=1e-3)
