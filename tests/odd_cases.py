"""Random training plans whose sizes do not divide by their ranks, sharded by rows or in flat messages."""

import random
from collections import Counter
from dataclasses import replace

from combined_cases import combined_case
from pipeline_cases import _ops
from training_cases import Case, _skeleton, _with_choices

from simpar.errors import Infeasible
from simpar.lower import lower
from simpar.lower.passes.optimizer_parallel import choice_of
from simpar.model import Dense, Network
from simpar.workload import Transformer

RANKS, MOST_OPS = 12, 200
DATA = (2, 3, 3, 4, 5, 6, 7, 7, 12)
FORMS = ('', '', 'padded', 'padded', 'padded', 'flat', 'flat', 'flat')

SEEDS = (
    4, 9, 15, 17, 18, 25, 28, 29, 41, 47, 54, 58, 60, 63, 64, 73, 80, 91, 92, 114, 115, 120, 124, 129, 139, 388
)  # fmt: skip
"""Few that cover both forms with all that they meet, and one that was wrong; ``make prove-zero`` trains hundreds."""


def odd_case(seed, most=MOST_OPS):
    """A workload, its plan, the number of ranks and an order that no name has; and the program.

    Arguments: ``most`` bounds the ops of all ranks, so that many cases take seconds.
    """
    draw = random.Random(seed)
    while True:
        case = _layouts(draw) if draw.random() < 0.25 else _degrees(draw, most)
        plan = replace(case.plan, shard_form=draw.choice(FORMS))
        if plan.shard_form == '' and plan.hsdp != 'off':
            continue
        if not choice_of(plan).parts:
            plan = replace(plan, zero=draw.choice([1, 2, 3]))
        case = case._replace(plan=plan)
        try:
            program = lower(*case)
        except Infeasible:
            continue
        if packed(program):
            return case, program


def packed(program):
    """The packed tensors of a program."""
    return [tensor for tensor in program.tensors if tensor.members]


def _layouts(draw):
    """Layers with strategies."""
    while True:
        workload, plan, world = combined_case(draw.randrange(10**6))
        if world <= RANKS:
            return Case(workload, plan, world, None)


def _degrees(draw, most):
    """Degrees, with another number of data ranks and odd sizes."""
    alone = draw.random() < 0.2
    while True:
        case = _skeleton(draw, 8, most)
        others = case.plan.tensor * case.plan.pipeline
        fitting = [degree for degree in DATA if degree * others <= RANKS]
        data = RANKS if alone and others == 1 else draw.choice(fitting) if fitting and not alone else 1
        plan, tensor = replace(case.plan, data=data), case.plan.tensor
        if data > 1 and _ops(case.workload, plan) <= most:
            break
    batch = data * plan.micro_batches * plan.copies * draw.choice([1, 2])
    workload = replace(case.workload, model=_odd(draw, case.workload.model, tensor), batch=batch)
    made = _with_choices(draw, Case(workload, plan, data * others, case.order))
    groups = [size for size in (2, 3, 4) if data % size == 0 and data > size]
    return made._replace(plan=replace(made.plan, shard_group=draw.choice([0, *groups])))


def _odd(draw, model, tensor):
    if isinstance(model, Transformer):
        # LayerNorm over a handful of elements divides rounding by next to nothing, sharded or not.
        wide = draw.choice([3, 5]) if model.heads > 2 else draw.choice([9, 11])
        return replace(
            model,
            hidden=model.heads * wide,
            ffn=tensor * draw.choice([3, 7]),
            vocab=tensor * draw.choice([5, 7, 11]),
            sequence=tensor * draw.choice([1, 3]),
        )
    assert isinstance(model, Network)
    width, layers = draw.choice([5, 7]), []
    for layer in model.layers:
        if isinstance(layer, Dense):
            inputs, width = width, tensor * draw.choice([3, 5, 7])
            layers.append(replace(layer, inputs=inputs, outputs=width))
        else:
            layers.append(layer)
    return replace(model, layers=tuple(layers))


def features(case, program):
    """What a case has."""
    (workload, plan, _, order), model = case, case.workload.model
    forms = {'flat' if len(tensor.members) > 1 or '.flat.' in tensor.name else 'padded' for tensor in packed(program)}
    choice, transformer = choice_of(plan), isinstance(model, Transformer)
    laid = not transformer and any(getattr(layer, 'strategy', ()) for layer in model.layers)
    yield from forms
    yield 'asked for' if plan.shard_form else 'by zero'
    yield f'{"+".join(sorted(choice.parts))} {choice.gather}'
    yield f'{max(program.partitions[tensor.splits[-1].partition].size for tensor in packed(program))} ranks in a group'
    for name, has in {
        'strategies': laid,
        'tensor': plan.tensor > 1,
        'sequence parallel': plan.sequence_parallel and plan.tensor > 1 and transformer,
        'pipeline': plan.pipeline > 1 or order is not None,
        'copies': plan.copies > 1,
        'micro-batches': plan.micro_batches > 1,
        'replicas': any('.replica' in name or name == 'replica' for name in program.partitions),
        'tied': transformer and model.tied,
        'dropout': transformer and model.dropout > 0,
        'clipped': workload.clip_norm > 0,
        'loss scale': workload.loss_scale != 1,
        'master weights': workload.optimizer.master_weights,
        'prefetch': plan.prefetch > 0,
        'no prefetch': plan.prefetch == 0,
        'reduced every micro-batch': choice.sharded and plan.micro_batches > 1,
        'reduced once': not choice.sharded and plan.micro_batches > 1,
        'recompute': plan.recompute not in ('none', ()),
        'beside dim': any(tensor.name.endswith('.whole') and program.tensor[tensor.name.removesuffix(".whole")].splits
                          for tensor in program.tensors
                          if tensor.name.removesuffix('.whole') in program.tensor
                          and not program.tensor[tensor.name.removesuffix('.whole')].members),
        f'fusion {plan.fusion if isinstance(plan.fusion, str) else type(plan.fusion).__name__}': True,
        type(workload.optimizer).__name__: True,
    }.items():  # fmt: skip
        if has:
            yield name


def coverage(found):
    """How many cases have which features."""
    return Counter(feature for case, program in found for feature in set(features(case, program)))
