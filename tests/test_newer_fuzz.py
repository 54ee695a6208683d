"""Random plans of latent attention, packed documents, products in 8 bits and forwards alone compute what torch does."""

import pytest
from newer_cases import transformer_case

from simpar.lower import lower

SEEDS = 8


@pytest.mark.torch
def test_random_plans_compute_what_torch_computes():
    pytest.importorskip('torch', reason='needs the extra torch')
    from executor.numerics import check
    from executor.validate import validate

    met = set()
    for seed in range(SEEDS):
        workload, plan, world = transformer_case(seed)
        program = lower(workload, plan, world)
        validate(program)
        check(program, workload, plan, steps=2, seed=seed)
        met |= {
            ('latent', workload.model.kv_lora_rank > 0),
            ('documents', bool(workload.model.packed)),
            ('fp8', any(op.dtype == 'fp8' for op in program.op_classes)),
            ('forward', workload.phase == 'forward'),
        }
    # Each of them is there in some, and is not in others.
    assert met == {(name, there) for name in ('latent', 'documents', 'fp8', 'forward') for there in (True, False)}
