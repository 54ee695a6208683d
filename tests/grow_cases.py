"""Random transformers of many layers in random plans of one stage, to be lowered in full and by growing."""

import random
from dataclasses import replace
from typing import NamedTuple

from training_cases import CUTS, OPTIMIZERS, PATTERNS

from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.lower.grow import few_layers
from simpar.lower.overlap import with_passes
from simpar.model.library.experts import Experts
from simpar.plan import Plan
from simpar.program.rows import LazyRows
from simpar.workload import Muon, Transformer, Workload

PASSES = (
    'matmul_grad_comm_overlap',
    'enable_grad_comm_opt',
    'enable_opt_shard_comm_opt',
    'recompute_comm_overlap',
)


class Case(NamedTuple):
    """A workload, its plan, and the number of ranks."""

    workload: Workload
    plan: Plan
    world: int


def _kinds(draw, tensor):
    """Experts and windows, of which later layers may differ from all that few layers show."""
    # Most have neither: those that differ are lowered in full.
    if draw.random() < 0.7:
        return {}
    if draw.random() < 0.5:
        return {'window': draw.choice([3, (3, 0), (3, 3, 3, 0), (3, 3, 3, 3, 3, 0)])}
    sparse = {'first_dense': draw.randint(0, 4)} if draw.random() < 0.5 else {'every': draw.randint(1, 5)}
    return {'experts': Experts(count=4, top_k=2, ffn=tensor * 5, **sparse)}


def grow_case(seed: int) -> Case:
    """The case of a seed; it need not be one that can be lowered."""
    draw = random.Random(seed)
    data, tensor, copies, micro_batches = (
        draw.choice(some) for some in ((1, 2, 2, 3, 4), (1, 1, 2), (1, 1, 2, 3), (1, 2, 3))
    )
    heads = draw.choice([2, 4])
    hidden = heads * draw.choice([2, 6, 12])
    model = Transformer(
        layers=draw.randint(10, 20),
        hidden=hidden,
        heads=heads,
        kv_heads=draw.choice([heads, 2]),
        ffn=tensor * draw.choice([5, 12, 48]),
        vocab=draw.choice([8, 24, 1000]),
        sequence=draw.choice([4, 12]),
        tied=draw.random() < 0.3,
        attention=draw.choice(['flash', 'unfused']),
        dropout=draw.choice([0.0, 0.0, 0.3]),
        **_kinds(random.Random(f'kinds {seed}'), tensor),
    )
    workload = Workload(
        model=model,
        batch=data * copies * micro_batches * draw.choice([1, 2]),
        optimizer=draw.choice([*OPTIMIZERS, Muon(learning_rate=0.01)]),
        clip_norm=draw.choice([0.0, 0.05]),
        loss_scale=draw.choice([1.0, 1.0, 1024.0]),
        precision=draw.choice(['fp32', 'bf16']),
    )
    groups = [group for group in (2, 3) if data % group == 0 and data > group]
    plan = Plan(
        data=data,
        tensor=tensor,
        copies=copies,
        micro_batches=micro_batches,
        sequence_parallel=draw.random() < 0.5,
        copies_loss=draw.choice(['mean', 'sum']),
        sum_loss=draw.random() < 0.2,
        reduce=draw.choice(['early', 'early', 'late']),
        streams=draw.choice(['group', 'group', 'group', 'single']),
        shard_group=draw.choice([0, *groups]),
        shard_form=draw.choice(['', '', 'dim', 'padded', 'flat']),
        unsharded=draw.choice([(), (), ('*.bias',), ('layer*.fc1.weight',)]),
        fusion=draw.choice(['layer', 'layer', 'none', 'all', 'auto', _size(draw), _size(draw)]),
        prefetch=draw.choice([0, 1, 1, 1, 2, 3]),
        accumulate=draw.choice(['', 'full', 'sharded']),
        reduce_gradients=draw.choice(['overlapped', 'overlapped', 'end']),
        recompute=draw.choice(['none', 'full', 'selective', draw.choice(PATTERNS)]),
        recompute_communication=draw.random() < 0.6,
        tiles=draw.choice([1, 1, 1, 2]),
        overlap=draw.choice(['default', 'default', tuple(one for one in PASSES if draw.random() < 0.5)]),
        **draw.choice(CUTS),
    )
    if plan.overlap != 'default':
        plan = replace(plan, prefetch=max(1, plan.prefetch), reduce_gradients='overlapped')
    return Case(workload, plan, data * tensor)


def _size(draw: random.Random) -> float:
    """Bytes of a message: less than a layer, about as much, or several."""
    return float(int(2 ** draw.uniform(6, 15)))


def compared(seed: int) -> str:
    """What comes of the case of a seed: ``equal``, ``unequal``; or why it is lowered in full."""
    workload, plan, world = grow_case(seed)
    try:
        full = lower(workload, plan, world, grow=False)
    except Infeasible:
        return 'infeasible'
    if few_layers(workload, with_passes(plan)) is None:
        return 'not asked'
    made = lower(workload, plan, world)
    if not isinstance(made.op_classes, LazyRows):
        return 'declined'
    return 'equal' if made.hash == full.hash else 'unequal'
