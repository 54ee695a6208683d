"""Random plans with what transformers got later: latents, packed documents, products in 8 bits, no backward."""

import random
from dataclasses import replace

from training_cases import training_case

from simpar import Plan, Transformer, Workload
from simpar.errors import Infeasible
from simpar.lower import lower


def newer(workload: Workload, seed: int) -> Workload:
    """A workload with some of what came later, drawn from a seed."""
    draw = random.Random(f'newer {seed}')
    model = workload.model
    assert isinstance(model, Transformer)
    fp8 = draw.choice(['none', 'e4m3', 'hybrid'])
    if fp8 != 'none':
        # Products in 8 bits have multiples of 16 for sizes; others stay.
        model = replace(model, hidden=16 * model.heads, head_dim=16, ffn=32, sequence=draw.choice([16, 32]))
    if draw.random() < 0.5:
        model = replace(
            model, head_dim=0, kv_heads=0, position='rotary', positions=0, qk_norm=False, rotary_share=1.0,
            kv_lora_rank=draw.choice([8, 16]), q_lora_rank=draw.choice([0, 0, 16]),
            qk_nope_head_dim=draw.choice([6, 8]), qk_rope_head_dim=draw.choice([2, 4]), v_head_dim=draw.choice([5, 16]),
            rope_interleaved=draw.random() < 0.5,
        )  # fmt: skip
    if draw.random() < 0.5:
        model = replace(model, documents=draw.randint(1, model.sequence))
    phase = 'train' if model.dropout or draw.random() < 0.7 else 'forward'
    return replace(workload, model=model, fp8=fp8, phase=phase)


def transformer_case(seed: int) -> tuple[Workload, Plan, int]:
    """A drawn training plan of a transformer, with some of what came later; a seed gives the first that can be."""
    while True:
        (workload, plan, world, order), _ = training_case(seed)
        seed += 1000
        if not isinstance(workload.model, Transformer) or order is not None:
            continue
        changed = newer(workload, seed)
        try:
            lower(changed, plan, world)
        except Infeasible:
            continue
        return changed, plan, world
