"""Random pipelines: plans over every order, orders that nobody would write, and pipelines made wrong on purpose."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from simpar.errors import ScheduleError
from simpar.model import Dense, Network, Relu
from simpar.pipeline import ORDERS, Action, Order, check_order, gives, named_order, overlap
from simpar.pipeline.messages import needs
from simpar.plans import Plan
from simpar.program import Program, ProgramBuilder
from simpar.workload import Adam, Sgd, Transformer, Workload

Slot = tuple[str, str, int, int]
"""Op class, stream, micro-batch, copy."""
Step = tuple[Action, frozenset[object]]
"""An action and the results that it needs."""
MOST_OPS = 260
"""Bound on the ops of a case, so that hundreds of cases stay a matter of seconds."""


def named_case(seed: int, name: str, ranks: int, most: int = MOST_OPS) -> tuple[Workload, Plan, int]:
    """A plan with this order on at most so many ranks, a tiny model for it, and the number of ranks."""
    draw = random.Random(seed)
    network = draw.random() < 0.4
    while True:
        plan = _plan(
            draw, ranks, order=name, chunks=draw.choice([chunks for chunks in (1, 2, 3) if _has(name, chunks)])
        )
        try:
            order = named_order(name, plan.pipeline, plan.micro_batches, plan.chunks)
        except ScheduleError:
            continue
        workload, plan = _workload(draw, plan, order.stages, network=network)
        world = plan.pipeline * plan.data * plan.tensor
        if world <= ranks and _ops(workload, plan) <= most:
            return workload, plan, world


def any_case(seed: int, ranks: int, most: int = MOST_OPS) -> tuple[Workload, Plan, int, Order]:
    """The same with an order that nobody would write."""
    draw = random.Random(seed)
    network = draw.random() < 0.4
    while True:
        plan = _plan(draw, ranks)
        order = any_order(draw, plan.pipeline, plan.pipeline + draw.choice([0, 1, 2, 3]), plan.micro_batches)
        workload, plan = _workload(draw, plan, order.stages, network=network)
        world = plan.pipeline * plan.data * plan.tensor
        if world <= ranks and _ops(workload, plan) <= most:
            return workload, replace(plan, sum_loss=seed % 2 == 0), world, order


def _has(name: str, chunks: int) -> bool:
    least, most = ORDERS[name].chunks
    return least <= chunks <= most


def _plan(draw: random.Random, ranks: int, **given: object) -> Plan:
    pipeline = min(ranks, draw.choice([1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, ranks]))
    tensor = draw.choice([degree for degree in (1, 1, 2, 2, 3, 4) if degree * pipeline <= ranks])
    data = draw.choice([degree for degree in (1, 1, 2, 2, 3, 4) if degree * tensor * pipeline <= ranks])
    return Plan(
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        micro_batches=draw.choice([1, 2, 3, pipeline, *range(2, 2 * pipeline + 3)]),
        receive=draw.choice(['early', 'late']),
        exchange=draw.choice(['separate', 'separate', 'fused']),
        sequence_parallel=tensor > 1 and draw.random() < 0.5,
        copies=draw.choice([1, 1, 2, 2, 3]),
        copies_loss=draw.choice(['mean', 'sum']),
        reduce=draw.choice(['early', 'late']),
        streams=draw.choice(['group', 'group', 'group', 'single']),
        **given,
    )


def _workload(draw: random.Random, plan: Plan, stages: int, *, network: bool) -> tuple[Workload, Plan]:
    """A tiny model, and the plan with the layers of each stage where they are not equal."""
    counts: tuple[int, ...] = ()
    if stages > 1 and draw.random() < 0.4:
        counts = tuple(draw.choice([1, 1, 2] if network else [0, 0, 1, 2]) for _ in range(stages - 1))
        counts = (*counts, 1)
    layers = sum(counts) or stages + draw.choice([0, 0, 1])
    workload = Workload(
        model=_network(draw, plan.tensor, layers) if network else _transformer(draw, plan.tensor, layers),
        batch=plan.data * plan.micro_batches * plan.copies * draw.choice([1, 1, 2]),
        loss=draw.choice(['cross-entropy', 'mse']) if network else 'cross-entropy',
        precision='fp64',
        optimizer=draw.choice([Sgd(learning_rate=0.1), Adam(learning_rate=0.01)]),
    )
    return workload, replace(plan, stages=counts, sequence_parallel=plan.sequence_parallel and not network)


def _transformer(draw: random.Random, tensor: int, layers: int) -> Transformer:
    """Heads divide by the tensor degree; vocabulary and width mostly."""
    heads = tensor * draw.choice([1, 1, 2])
    return Transformer(
        layers=layers,
        hidden=max(8, 4 * heads),
        heads=heads,
        kv_heads=draw.choice([0, tensor]),
        ffn=draw.choice([2 * tensor, 7]),
        vocab=draw.choice([3 * tensor, 11]),
        sequence=tensor * draw.choice([1, 2]),
        tied=draw.random() < 0.5,
        init_std=0.3,
    )


def _network(draw: random.Random, tensor: int, layers: int) -> Network:
    """Dense layers with and without bias and relu; some widths do not divide by the tensor degree."""
    widths = [draw.choice([6 - 6 % tensor, 8 - 8 % tensor, 5]) for _ in range(layers + 1)]
    found: list[Dense | Relu] = []
    for inputs, outputs in pairwise(widths):
        found += [Relu()] if found and draw.random() < 0.4 else []
        found.append(Dense(inputs=inputs, outputs=outputs, bias=draw.random() < 0.7))
    return Network(layers=tuple(found), init_std=0.5)


def _ops(workload: Workload, plan: Plan) -> int:
    """About how many ops a step has, forwards and backwards as one."""
    model = workload.model
    layers = 6 * (model.layers + 1) if isinstance(model, Transformer) else len(model.layers)
    return layers * plan.micro_batches * plan.copies * plan.data * plan.tensor


def any_order(draw: random.Random, ranks: int, stages: int, micro_batches: int, *, overtake: bool = True) -> Order:
    """An order that can be carried out: stages lie anywhere, micro-batches may overtake one another, and every backward
    is whole, in two parts or in an overlap."""
    placement = [*range(ranks), *(draw.randrange(ranks) for _ in range(stages - ranks))]
    draw.shuffle(placement)
    order = Order(((),) * ranks, tuple(placement), micro_batches)

    def step(action: Action) -> Step:
        """Looked up once: whether it may go is asked thousands of times."""
        return action, frozenset((*needs(action, order), *(() if overtake else _before(action))))

    left = [
        [step(Action(stage, kind, micro_batch)) for kind in draw.choice(['FB', 'FIW'])]
        for stage in range(stages)
        for micro_batch in range(micro_batches)
    ]
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    known: set[object] = set()
    while left := [chain for chain in left if chain]:
        able = [chain for chain in left if chain[0][1] <= known]
        one, *others = draw.sample(able, len(able))
        beside = others if draw.random() < 0.3 else []
        chosen = [one, *[other for other in beside if _may_overlap(one[0][0], other[0][0], order)][:1]]
        parts = sorted((chain.pop(0)[0] for chain in chosen), key=lambda part: part.kind != 'F')
        action = overlap(*parts) if len(parts) > 1 else parts[0]
        rows[placement[parts[0].stage]].append(action)
        known.update(gives(action))
    return check_order(replace(order, actions=tuple(map(tuple, rows))))


def _before(action: Action) -> tuple[object, ...]:
    """The results of the micro-batch before."""
    before = replace(action, micro_batch=(action.micro_batch or 0) - 1)
    return gives(before) if action.micro_batch else ()


def _may_overlap(one: Action, other: Action, order: Order) -> bool:
    same = order.placement[one.stage] == order.placement[other.stage]
    return same and sorted((one.kind, other.kind)) in (['B', 'F'], ['F', 'I'])


def edited(program: Program, change: Callable[[list[Slot]], list[Slot]], role: int = 0) -> Program:
    """The program with one role's slots changed; needs are derived again."""
    builder = ProgramBuilder(program.world, program.partitions.values())
    for tensor in program.tensors:
        builder.add_tensor(tensor)
    for op in program.op_classes:
        builder.add_op_class(op)
    for index, old in enumerate(program.roles):
        streams = [old.streams[stream] for stream in old.stream.tolist()]
        names = [program.op_classes[op].name for op in old.op_class.tolist()]
        slots = list(zip(names, streams, old.micro_batch.tolist(), old.copy.tolist(), strict=True))
        changed = change(slots) if index == role else slots
        if index == role and changed == slots:
            raise ValueError('nothing to change')
        ranks = [rank for rank in range(program.world) if program.role_of_rank[rank] == index]
        builder.add_role(old.name, ranks, changed, old.streams)
    return builder.build(program.micro_batches, program.copies)


def left_over(program: Program) -> set[str]:
    """Activations that some rank still holds at the end of its step."""
    held: set[tuple[int, str, int, int]] = set()
    for place, role in enumerate(program.roles):
        for slot in range(len(role)):
            op, part = program.op(role, slot), (int(role.micro_batch[slot]), int(role.copy[slot]))
            held |= {(place, name, *part) for name in op.writes if program.tensor[name].kind == 'activation'}
            held -= {(place, name, *part) for name in op.frees}
    return {name for _, name, *_ in held}
