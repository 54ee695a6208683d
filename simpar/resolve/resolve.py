"""resolve: what a plan leaves open: stages, an automatic order, fusion, redistribution, and presets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simpar import errors, layout, plans
from simpar.cost import collective, price
from simpar.cost.compute import DeviceCompute
from simpar.engine import simulate
from simpar.hardware import Cluster
from simpar.lower import lower
from simpar.lower.graph.record import has_strategies
from simpar.lower.graph.stages import stage_of_layer, unit_of
from simpar.lower.lower import order_of
from simpar.lower.passes.optimizer_parallel import Part, choice_of
from simpar.memory import framework_of, memory, room_of
from simpar.pipeline import AUTOMATIC, StageTimes, automatic_order, checks, named_order, zero_bubble
from simpar.program import Instance, Program, Role, instance
from simpar.session import Session
from simpar.workload import Workload

# Settle: what presets and automatic values come to, written out, so that nothing empty or 0 means "choose".


_PARTS: Final[tuple[Part, ...]] = ('state', 'gradients', 'weights')


def settled_plan(workload: Workload, plan: plans.Plan) -> plans.Plan:
    """The plan with chunks, stages and what its presets of optimizer parallelism shard, gather and accumulate.

    Arguments: ``plan``, whose data degree is filled in and whose searches are done. The program stays the same.
    Raises what ``order_of`` raises. Presets stay beside what they come to: fusion by size reads ``hsdp`` itself.
    """
    return _sharded(workload, _staged(workload, plan))


def _staged(workload: Workload, plan: plans.Plan) -> plans.Plan:
    """The plan with the chunks of its order and the layers of each stage; stages that marks tell stay with them."""
    stages = order_of(plan).stages
    plan = replace(plan, chunks=stages // plan.pipeline)
    if not plan.recompute_stages and recomputes(workload, plan):
        plan = replace(plan, recompute_stages=tuple(range(stages)))
    # Marks decide before counts do: counts beside them would say nothing.
    if plan.stages or marked(workload):
        return plan
    model = workload.model
    of_layer = stage_of_layer(model.counts[unit_of(model, stages, ())], stages, ())
    return replace(plan, stages=tuple(of_layer.count(stage) for stage in range(stages)))


def marked(workload: Workload) -> bool:
    """Whether layers say by marks which stage they are in."""
    return any(operator.pipeline_stage is not None for operator in workload.model.operators.values())


def recomputes(workload: Workload, plan: plans.Plan) -> bool:
    """Whether a plan, or marks of layers, ask for recomputation in any stage."""
    marks = (operator.recompute for operator in workload.model.operators.values())
    return plan.recompute not in ('none', ()) or any(marks)


def _sharded(workload: Workload, plan: plans.Plan) -> plans.Plan:
    choice = choice_of(plan)
    if not choice.parts:
        return plan
    return replace(
        plan,
        shard=tuple(part for part in _PARTS if part in choice.parts),
        gather=choice.gather,
        shard_group=plan.shard_group or _holders(workload, plan),
        shard_threshold=float(choice.threshold),
        accumulate='sharded' if choice.sharded else 'full',
    )


def settled_workload(workload: Workload) -> Workload:
    """The workload with its widths, heads, shape of a sample and precision of gradients; the program stays the same.

    A layer without a strategy stays without: it lies as what it reads does, which a strategy cannot always say.
    """
    return replace(workload, model=workload.model.settled(), gradients=workload.gradients or workload.precision)


def _holders(workload: Workload, plan: plans.Plan) -> int:
    """Ranks that hold the same slice of a parameter."""
    if has_strategies(workload, plan):
        return plan.data * plan.tensor
    # With two homes the mirrored pipeline rank holds it too.
    return plan.data * plan.context * (2 if plan.order == zero_bubble.TWO_HOMES else 1)


# Resolve: makes every choice that a plan leaves open: stages, zero-bubble order, fusion, redistribution.


_STEPS: Final = 4
"""The last has no follower whose computation slows its last messages, so it is the one before that counts."""


class Simulated(NamedTuple):
    """Predicted seconds of the steps of a program, and the bytes that it lacks on its fullest rank."""

    steps: NDArray[np.float64]
    too_much: float


def simulated(program: Program, cluster: Cluster, steps: int = 3) -> Simulated:
    """Price and simulate a program; raises what ``simulate`` raises."""
    trace = simulate(program, price.price(program, cluster), steps=steps)
    lacking = memory(trace, framework=framework_of(cluster)).peak - room_of(cluster).tensors
    return Simulated(trace.step_times, max(0.0, lacking))


def fastest(workload: Workload, choices: Iterable[plans.Plan], cluster: Cluster, session: Session) -> plans.Plan:
    """The first plan whose predicted step is the fastest, of those that fit into memory, else of those that lack least.

    Raises what ``lower`` and ``simulate`` raise.
    """

    def rank(plan: plans.Plan) -> tuple[float, float]:
        simulation = simulated(lower(workload, plan, cluster.world, session=session), cluster, _STEPS)
        return simulation.too_much, float(simulation.steps[-2])

    return min(choices, key=rank)


def balanced(seconds: Sequence[float], speeds: Sequence[float]) -> tuple[int, ...]:
    """Count the layers of each stage, at least one, so that the largest sum of seconds ÷ speed is the smallest.

    Arguments:
        seconds: of every layer, shape [layers]; at least as many layers as stages.
        speeds: of the devices of each stage, shape [stages].

    Among equals the first stages have the most layers. Dynamic programming over (layers, stages): exact.
    """
    sums = [0.0, *accumulate(seconds)]
    layers = len(seconds)
    # With one stage the first layers, however many, are all in it.
    best = [one / speeds[0] for one in sums]
    begins: list[list[int]] = []
    for stage, speed in enumerate(speeds[1:], 2):
        now, chosen = [float('inf')] * (layers + 1), [0] * (layers + 1)
        for end in range(stage, layers + 1):
            for begin in range(stage - 1, end):
                worst = max(best[begin], (sums[end] - sums[begin]) / speed)
                # ``<=`` keeps the latest begin of equals, which gives the stages before it the most layers.
                if worst <= now[end]:
                    now[end], chosen[end] = worst, begin
        best = now
        begins.append(chosen)
    edges = [layers]
    for chosen in reversed(begins):
        edges.append(chosen[edges[-1]])
    edges.append(0)
    edges.reverse()
    return tuple(end - begin for begin, end in pairwise(edges))


PHASES = ('F', 'I', 'W')


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """What every layer takes and keeps for a micro-batch.

    Arguments:
        seconds_LP: seconds of F, I and W, shape [layers, 3].
        send: seconds from a layer to the next.
        bytes_LP: bytes of activations kept behind F, I and W, shape [layers, 3].

    Embedding and head are counted with the first and the last layer. Communication over the tensor ranks counts. Sums
    of gradients and updates do not count: they are done once a step.
    """

    seconds_LP: NDArray[np.float64]
    send: float
    bytes_LP: NDArray[np.float64]

    def stages(self, counts: tuple[int, ...]) -> StageTimes:
        """The times of stages of so many layers each."""
        edges = np.cumsum((0, *counts))
        sums = [self.seconds_LP[begin:end].sum(axis=0).tolist() for begin, end in pairwise(edges)]
        forward, inputs, weights = (tuple(values) for values in zip(*sums, strict=True))
        sends = (self.send,) * (len(counts) - 1)
        return StageTimes(forward=forward, input=inputs, weight=weights, communication=sends)

    def kept(self, counts: tuple[int, ...]) -> float:
        """The largest share of its activations that a stage of so many layers keeps from I to W, at most 1."""
        behind = self._behind(counts)
        # Where F leaves nothing behind there is no share: as if W kept all.
        share = np.divide(behind[:, 1], behind[:, 0], out=np.ones(len(behind)), where=behind[:, 0] > 0)
        return float(min(1.0, share.max()))

    def limits(self, counts: tuple[int, ...], activations: int) -> tuple[float, ...]:
        """How many of its own activations each stage may keep, at most so many, in the bytes of those of the first two.

        Schedulers of Zero Bubble have one number of bytes for all ranks (sail-sg/zero-bubble-pipeline-parallelism,
        2023-12 on: times max(f_mem[:2])), so that the last stage, whose logits count, keeps fewer.
        """
        own = self._behind(counts)[:, 0].tolist()
        room = activations * max(own[:2])
        return tuple(max(1.0, room / max(held, *own[:2])) if held else float(activations) for held in own)

    def _behind(self, counts: tuple[int, ...]) -> NDArray[np.float64]:
        """Bytes kept behind F, I and W of stages of so many layers, shape [stages, 3]."""
        edges = np.cumsum((0, *counts))
        return np.array([self.bytes_LP[begin:end].sum(axis=0) for begin, end in pairwise(edges) if begin < end])


def layers_of(workload: Workload) -> int:
    """Layers that stages have equal counts of: blocks of a transformer, dense layers of a network."""
    return [*workload.model.counts.values()][-1]


def layer_times(workload: Workload, plan: plans.Plan, cluster: Cluster, session: Session | None = None) -> LayerTimes:
    """Price the program in which every layer is a stage.

    Argument: ``session`` of plans that differ in the number of micro-batches or in their order, which the time of a
    layer does not know.
    """
    layers = layers_of(workload)
    data = plan.data or max(1, cluster.world // (plan.context * plan.tensor * plan.pipeline))
    every = replace(
        plan,
        data=data,
        pipeline=layers,
        stages=(),
        recompute_stages=(),
        rows=(),
        chunks=0,
        sequence_chunks=1,
        # Its backward is split, so that I and W have times of their own.
        order='zb-h1',
        micro_batches=1,
    )
    one = replace(workload, batch=workload.batch // plan.micro_batches)
    return (session or Session()).once(_priced, workload=one, plan=every, cluster=cluster)


def _priced(workload: Workload, plan: plans.Plan, cluster: Cluster) -> LayerTimes:
    """The same of a plan with a stage for each layer and a single micro-batch."""
    layers = plan.pipeline
    program = lower(workload, plan, layers * plan.data * plan.context * plan.tensor)
    compute, collectives = DeviceCompute(cluster.profile), collective.ClusterCollectives(cluster)
    # The 0 stands for a single layer, which sends nothing.
    seconds, sends = np.zeros((layers, len(PHASES))), [0.0]
    for op in program.op_classes:
        if op.kind == 'compute' and op.phase in PHASES and program.sliced(op):
            seconds[op.stage, PHASES.index(op.part)] += compute.seconds(op).seconds
        elif op.kind == 'collective' and op.phase in PHASES and program.sliced(op):
            cost = collectives.cost(op, program.partitions[op.partition].groups_GP[0].tolist())
            seconds[op.stage, PHASES.index(op.part)] += cost.alpha + cost.transfer
        elif op.kind == 'send' and program.sliced(op):
            cost = collectives.cost(op, (0, program.world // layers))
            sends.append(cost.alpha + cost.transfer)
    behind = np.array([_behind(program, role) for role in program.roles])
    return LayerTimes(seconds * plan.copies, max(sends), behind)


def _behind(program: Program, role: Role) -> list[int]:
    """Bytes of activations that a rank holds behind the last op of F, I and W of its micro-batch."""
    held: dict[Instance, int] = {}
    behind = dict.fromkeys(PHASES, 0)
    for slot in range(len(role)):
        op, copy = program.op(role, slot), int(role.copy[slot])
        for name in op.writes:
            if program.tensor[name].kind == 'activation':
                held[instance(program.tensor[name], 0, copy)] = program.local_bytes(program.tensor[name])
        for name in op.frees:
            held.pop(instance(program.tensor[name], 0, copy), None)
        # Sends count too: what a stage sends may be freed only behind them.
        if op.kind in ('compute', 'send') and op.part in behind:
            behind[op.part] = sum(held.values())
    return list(behind.values())


def staged(workload: Workload, plan: plans.Plan, cluster: Cluster, session: Session) -> plans.Plan:
    """The plan with its stages and its order; where stages are open, the fastest of those that were simulated.

    Raises ``Infeasible`` where degrees and ranks do not fit.
    """
    times = layer_times(workload, plan, cluster, session)
    if not isinstance(plan.stages, str):
        return _ordered(workload, plan, times, plan.stages)
    # The balanced counts are often the equal ones: each is simulated once, and the first wins among equals.
    splits = dict.fromkeys(_splits(workload, plan, times, cluster))
    return fastest(workload, (_ordered(workload, plan, times, counts) for counts in splits), cluster, session)


def _ordered(workload: Workload, plan: plans.Plan, times: LayerTimes, counts: tuple[int, ...]) -> plans.Plan:
    """The plan with these stages, and its order found where it is automatic."""
    if plan.order not in AUTOMATIC:
        return replace(plan, stages=counts)
    stages = stage_of_layer(layers_of(workload), plan.pipeline, counts)
    counts = tuple(stages.count(stage) for stage in range(plan.pipeline))
    limits = times.limits(counts, AUTOMATIC[plan.order] * plan.pipeline)
    order = automatic_order(plan.micro_batches, times.stages(counts), limits, times.kept(counts))
    return replace(plan, stages=counts, rows=checks.rows_of(order))


def _splits(workload: Workload, plan: plans.Plan, times: LayerTimes, cluster: Cluster) -> Iterator[tuple[int, ...]]:
    """Equal counts, the balanced split, and the splits that move one layer away from the first or the last stage."""
    layers = layers_of(workload)
    name = '1f1b' if plan.order in AUTOMATIC else plan.order
    order = named_order(name, plan.pipeline, plan.micro_batches, plan.chunks, plan.sequence_chunks)
    stages = order.stages
    if layers < stages:
        raise errors.Infeasible(f'{stages} stages for {layers} layers; choose a pipeline of at most {layers} stages')
    equal = stage_of_layer(layers, stages, ())
    yield tuple(equal.count(stage) for stage in range(stages))
    seconds = times.seconds_LP.sum(axis=1).tolist()
    # A stage is as fast as the slowest of its ranks; pipeline ranks are outermost among ranks.
    slowest = price.rank_speeds(cluster.world, cluster).reshape(order.ranks, -1).min(axis=1)
    speeds = slowest[list(order.placement)].tolist()
    best = balanced(seconds, speeds)
    yield best
    for end in (0, stages - 1):
        if best[end] > 1:
            moved = list(best)
            moved[end] -= 1
            sums = [sum(seconds[sum(best[:stage]) : sum(best[: stage + 1])]) / speeds[stage] for stage in range(stages)]
            # To the stage with the least to do; layers between the two shift by one.
            inner = min((stage for stage in range(stages) if stage != end), key=sums.__getitem__)
            moved[inner] += 1
            yield tuple(moved)


MB: Final = 1e6
SIZES: Final[tuple[Literal['layer', 'auto', 'all'] | float, ...]] = (
    'layer',
    5 * MB,
    25 * MB,
    'auto',
    128 * MB,
    256 * MB,
    512 * MB,
    'all',
)
"""Per layer; MindSpore's automatic 64 MiB among sizes around it (25 MB is DDP's default); all in one."""


def fused(workload: Workload, plan: plans.Plan, cluster: Cluster, session: Session) -> plans.Plan:
    """The plan with the fusion whose predicted step is fastest, of those that fit into memory.

    Arguments: ``plan``, that leaves nothing else open. Among equals the first of ``SIZES``. Raises what ``lower`` does.
    Not searched: buckets of different sizes in one plan.
    """
    return fastest(workload, (replace(plan, fusion=size) for size in SIZES), cluster, session)


METHODS: Final[tuple[layout.Method, ...]] = ('cheapest', 'mindspore-2.10', 'mindspore-2.0')


def redistributed(workload: Workload, plan: plans.Plan, cluster: Cluster, session: Session) -> plans.Plan:
    """The plan with the method whose predicted step is fastest, with or without all-to-all, of those that fit into
    memory; a workload without strategies has none, and gets the first.

    Arguments: ``plan``, that leaves nothing else open. Among equals the first of ``METHODS``, without all-to-all.
    Raises what ``lower`` does. Not searched: another method for each tensor.
    """
    if not has_strategies(workload, plan):
        return replace(plan, redistribution=METHODS[0])
    # Of a method all-to-all comes last: of equal steps the plan without it wins.
    choices = (
        replace(plan, redistribution=method, all_to_all=all_to_all)
        for method, all_to_all in product(METHODS, (False, True))
    )
    return fastest(workload, choices, cluster, session)


def resolve(workload: Workload, plan: plans.Plan, cluster: Cluster, session: Session | None = None) -> plans.Plan:
    """The plan with every choice made; a plan that leaves nothing open comes back as it is.

    Layers are split into stages where predicted times balance. That split, its neighbours and equal counts are
    simulated, and the fastest that fits into memory is taken. Fusion comes next, and redistribution last. Raises
    ``Infeasible`` where degrees and ranks do not fit. Argument: ``session`` of a caller that resolves many plans.
    """
    # From the inside out: stages and order, then fusion, then redistribution, each with the later ones at a default.
    # A search of all together would take their product; what comes of this need not be the optimum.
    session = session or Session()
    if plan.redistribution == 'predicted':
        one = resolve(workload, replace(plan, redistribution='cheapest'), cluster, session)
        return redistributed(workload, one, cluster, session)
    if plan.fusion == 'predicted':
        one = resolve(workload, replace(plan, fusion='layer'), cluster, session)
        return fused(workload, one, cluster, session)
    if plan.rows or not (isinstance(plan.stages, str) or plan.order in AUTOMATIC):
        return plan
    return staged(workload, plan, cluster, session)
