"""A case: a schedule file with everything that comes of it, ready to be predicted, checked or measured.

``written_out`` is the case as a schedule file that leaves no choice to simpar, without what can have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any, Final

from simpar import errors, numbers, plans, units
from simpar.ablation import rules, unchanged_baseline, unlike_stack, unused_of_cluster, without_effect
from simpar.cost import compute, price
from simpar.cost.costs import Costs
from simpar.document import Source
from simpar.hardware import Cluster, Placement, Profile
from simpar.hardware.net import Net, parse_net
from simpar.lazy import Card, why_not
from simpar.lower import lower
from simpar.memory import check_fit
from simpar.pipeline.checks import read_csv, rows_of
from simpar.predict import Prediction, Pricing, Told, predict, under_load
from simpar.profiles import NONE, cluster, load_profile, load_stack, shaped
from simpar.program import Program
from simpar.resolve import Strategies, find_strategies, resolve
from simpar.resolve.resolve import settled_plan, settled_workload
from simpar.schedule import Schedule, WithoutEffect, check_against_cluster, load_schedule, written
from simpar.schedule.checks import counts_fit
from simpar.schedule.schedule import told_apart, with_changes
from simpar.session import Session
from simpar.size import LIMIT, Limit, check_size
from simpar.throughput import Throughput, throughput
from simpar.workload import Sgd, Workload

_LONGEST: Final = 40
"""Letters of a value in what a plan is called."""


SLOW: Final = 2.0
"""How many times faster 16 bits are where an answer in fp32 that nobody asked for is said to be one."""
_TIGHT: Final = 0.9
"""Share of a device's memory from which a reserve decides whether a plan fits."""
_PRESETS: Final = ('plan.zero', 'plan.hsdp')
_TOLD_BY_PRESETS: Final = tuple(
    f'plan.{key}' for key in ('shard', 'gather', 'shard_group', 'shard_threshold', 'accumulate')
)
"""Keys that a resolved file has beside the presets that they come from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Case(Card):
    """A schedule, its cluster and its program.

    Arguments: ``plan``, the schedule's with every choice made; ``strategies``, with the workload that they are in;
    ``baseline``, the case that gain is measured from, without a baseline of its own; ``session``, which cases that
    are asked of this one share; ``factors``, of numbers that an anchor told (`simpar run --anchor`), and how well the
    step is ``known`` by it, the half-width of its logarithm.
    """

    schedule: Schedule
    plan: plans.Plan
    cluster: Cluster
    program: Program
    strategies: Strategies
    baseline: Case | None = None
    session: Session = field(default_factory=Session)
    factors: Mapping[str, float] = field(default_factory=dict)
    known: float = inf

    def __repr__(self) -> str:
        mine, other = self.names
        against = f', against {other!r}' if self.baseline else ''
        return f'Case({mine!r} on {self.cluster.world} × {self.cluster.profile.device.name}{against})'

    def what_if(self, **changes: Any) -> Case:
        """The case with other values of some keys, compared with the case as it is.

        Arguments: ``changes``, by the last part of a dotted key, or ``**{'plan.copies': 4}``.
        Values that are as before give the case itself, with a gain of 0, so that a loop may pass over them.
        Raises ``ScheduleError`` for unknown keys, values that do not fit, and where none is given.
        Example: ``case.what_if(copies=4, nodes=2).predict().gain``.
        """
        changed = case_of(with_changes(self.schedule, changes), session=self.session)
        return changed if changed.baseline else replace(changed, baseline=replace(self, baseline=None))

    def why_not(self) -> Any:
        """Each overlap that the framework offers, alone and together: step, hidden share, tax, memory, why it loses."""
        return why_not(self)

    @property
    def workload(self) -> Workload:
        """The schedule's workload with a strategy for every layer that a search gave one."""
        return self.strategies.workload

    @property
    def parameters(self) -> int:
        """How many numbers the model trains."""
        # Of any batch: it shapes no parameter.
        return self.workload.model.graph(self.workload.batch).parameters

    @property
    def about(self) -> str:
        """The model and the batch, in words."""
        return f'{units.format_count(self.parameters)} parameters, batch {self.workload.batch}'

    @property
    def throughput(self) -> Throughput:
        """What a step does: samples, tokens, FLOPs."""
        work, profile = self.workload, self.cluster.profile
        graph = work.model.graph(work.batch)
        return throughput(self.program, graph, profile, batch=work.batch, precision=work.precision)

    @property
    def names(self) -> tuple[str, str]:
        """What plan and baseline are called: what is different between them."""
        pairs = [(key, self.schedule.value(key), other) for key, other in self.schedule.differences.items()]
        differing = [pair for pair in pairs if pair[1] != pair[2]] or pairs
        if any(key in _PRESETS for key, _, _ in differing):
            differing = [pair for pair in differing if pair[0] not in _TOLD_BY_PRESETS]
        differing = [pair for pair in differing if not pair[0].endswith('.layers')] or differing
        if self.baseline is None or not differing:
            return 'plan', 'baseline'
        mine = ', '.join(f'{_short(key)} {_short_text(value)}' for key, value, _ in differing)
        return mine, ', '.join(f'{_short(key)} {_short_text(value)}' for key, _, value in differing)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know of the schedule besides the prediction's notes."""
        changed = [f'{name} × {factor:g}' for name, factor in self.cluster.links.items() if factor != 1]
        links = 'links are not as in the profile: {}; what rests on their bandwidth is an estimate'
        return (
            *([links.format(', '.join(changed))] if changed else []),
            *self.left_out,
            *price.mode_notes(self.cluster, self.program),
            *self._of_workload(),
            *self.schedule.workload.model.notes,
        )

    @property
    def beside_stack(self) -> tuple[str, ...]:
        """What the file has otherwise than its framework, and which framework a rule chose; told before all else."""
        stack = self.cluster.stack
        facts = rules.facts_of(self.schedule, self.workload, self.plan, self.program)
        chosen = f'The file names no framework: {stack.name} is the default here (cluster.stack).' if stack else ''
        default = (chosen,) if chosen and self.schedule.framework_is_default else ()
        return (*self.gaps, *default, *unlike_stack(self.schedule, stack, facts))

    @property
    def gaps(self) -> tuple[str, ...]:
        """What the file has that the schedule was imported from and no prediction knows of, in a line."""
        missing = self.schedule.gaps
        text = f'{", ".join(missing[:4])}{f" and {len(missing) - 4} more" if len(missing) > 4 else ""}'
        return (f'Without what the imported file has and simpar does not model (gaps): {text}.',) if missing else ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the user's files say and no prediction reads."""
        swept = 'the sweep of the file is left out, this is the file as it stands; `simpar sweep` makes the table'
        return (*([swept] if self.schedule.sweep is not None else []), *self._slow_precision(), *self.schedule.notes)

    def _slow_precision(self) -> Iterator[str]:
        """That nobody asked for fp32, where models are trained several times as fast in 16 bits."""
        device, is_set = self.cluster.profile.device, ('workload', 'precision') in self.schedule.origins
        rates = {str(dtype): rate.value for dtype, rate in {**device.vector, **device.matrix}.items()}
        quick = max(('bf16', 'fp16'), key=lambda dtype: rates.get(dtype, 0.0))
        if not is_set and 'fp32' in rates and (times := rates.get(quick, 0.0) / rates['fp32']) > SLOW:
            yield (
                f'no precision is given: products are in fp32, in which {device.name} is {times:.0f} times as slow as '
                f'in {quick}; write workload.precision: {quick}'
            )

    def _of_workload(self) -> Iterator[str]:
        device = self.cluster.profile.device
        if self.workload.fp8 != 'none' and compute.FP8 not in device.matrix:
            yield f'{device.name} has no rate for fp8: products are priced in more bits, casts as they stand'
        if self.workload.phase == 'forward' and self.workload.optimizer != Sgd():
            yield 'phase forward has no update: workload.optimizer changes nothing'

    def without_effect(self) -> tuple[WithoutEffect, ...]:
        """The keys that were written and changed nothing; without a key that no rule knows, it is lowered again."""
        own = without_effect(self.schedule, self.strategies, self.plan, self.cluster, self.program)
        other = (self.baseline.program, self.baseline.cluster) if self.baseline else None
        return (
            *own,
            *unused_of_cluster(self.schedule, self.program, self.cluster),
            *unchanged_baseline(self.schedule, (self.program, self.cluster), other, self._made),
        )

    def _made(self, schedule: Schedule) -> tuple[Program, Cluster]:
        case = _one(schedule, self.session)
        return case.program, case.cluster

    def what_decides(self) -> tuple[numbers.Decisive, ...]:
        """The numbers whose range could turn the sign of the gain, or move it most; what tells each.

        Example: ``[one.line for one in case.what_decides()]``.
        """
        return numbers.decisive(self.sides)

    @property
    def costs(self) -> Costs:
        """What the program's ops cost, at the clocks that it leaves the devices."""
        hardware = under_load(self.program, self.cluster, self.session)
        return price.price(self.program, hardware, models=self.session)

    @property
    def sides(self) -> tuple[numbers.Side, ...]:
        """Program, cluster and batch of the plan, and of its baseline."""
        both = (self, self.baseline) if self.baseline else (self,)
        return tuple(numbers.Side(one.program, one.cluster, one.workload.batch) for one in both)

    def predict(
        self, steps: int = 3, *, tell: bool = True, progress: Told | None = None, pricing: Pricing | None = None
    ) -> Prediction:
        """The prediction, with gain and why where there is a baseline.

        Arguments: ``steps`` that are simulated; ``tell``: it says which keys had no effect;
            ``progress`` is told after each simulation; ``pricing``, what prices the ops in place of the profile.
        """
        other = self.baseline
        prediction = predict(
            self.program,
            other.program if other else None,
            self.cluster,
            steps=steps,
            names=self.names,
            baseline_cluster=other.cluster if other else None,
            progress=progress,
            pricing=pricing or (numbers.pricing_with(self.factors) if self.factors else None),
            models=self.session,
        )
        if prediction.spread:
            prediction = replace(prediction, spread=prediction.spread.narrowed(self.known, prediction.streaming))
        if not tell:
            return prediction
        below = replace(prediction.baseline, throughput=other.throughput) if prediction.baseline and other else None
        return replace(
            prediction,
            baseline=below,
            throughput=self.throughput,
            without_effect=self.without_effect(),
            beside_stack=self.beside_stack,
        )


def on_net(case: Case, net: Net) -> Case:
    """The case on a shaped network: its links, of both plan and baseline, have the rate and latency of ``--net``.

    A profile that `simpar calibrate` measured on this very network keeps its links: they were measured with it.
    """
    if not net.shaped or _measured_on(case.cluster, net):
        return case
    profile = shaped(case.cluster.profile, str(net), net.payload_rate, net.latency)
    baseline = on_net(case.baseline, net) if case.baseline else None
    return replace(case, cluster=replace(case.cluster, profile=profile, links={}), baseline=baseline)


def _measured_on(hardware: Cluster, net: Net) -> bool:
    try:
        return parse_net(hardware.profile.net or 'none') == net
    # A profile may say anything of a network that is none of ours.
    except ValueError:
        return False


def check_memory(case: Case, prediction: Prediction) -> None:
    """Raise ``Infeasible``, with what would fit, where a rank is known to hold more than its device."""
    plan = case.plan
    multiple = plan.data * plan.micro_batches * plan.copies
    batch = case.schedule.workload.batch
    margin = prediction.memory_margin
    check_fit(prediction.memory, prediction.room, batch=batch, multiple=multiple, margin=margin)


def load_case(source: Source, overrides: Sequence[str] = (), *, limit: Limit = LIMIT, module: str = '') -> Case:
    """Read a schedule and lower it, and its baseline.

    Arguments:
        source: a path, the text of a file (of several lines), or a dict.
        overrides: ``a.b=value`` as of `--set`.
        limit: of the prediction's size, which is estimated first.
        module: the graph of a torch module (`from_module`), which is the schedule's model.
    Raises ``ScheduleError`` with file:line of all that is wrong, ``Infeasible`` where it is larger than the limit.
    """
    return case_of(load_schedule(source, overrides, module=module), limit=limit)


def case_of(schedule: Schedule, *, limit: Limit = LIMIT, session: Session | None = None) -> Case:
    """The case of a schedule that has been read.

    Arguments: ``session`` of a caller that asks for many cases; all else as of ``load_case``.
    """
    shared = session or Session()
    baseline = schedule.baseline()
    # Before anything is built, for that may take hours, or all of the memory.
    both = [schedule, *([baseline] if baseline else [])]
    hardware = cluster_of(schedule)
    check_size(both, hardware.world, limit, lambda small: _one(small, shared).program)
    made = _one(schedule, shared, hardware)
    return replace(made, baseline=_one(baseline, shared)) if baseline else made


def _one(schedule: Schedule, session: Session, hardware: Cluster | None = None) -> Case:
    hardware = hardware or cluster_of(schedule)
    if placement := Placement.of(schedule.plan, hardware.world):
        hardware = replace(hardware, placement=placement)
    strategies, plan = choices(schedule, hardware, session)
    # Schedules that differ in nothing that a program knows of share it, and what follows from it.
    program = session.once(lower, workload=strategies.workload, plan=plan, world=hardware.world, session=session)
    return Case(
        schedule=schedule, plan=plan, cluster=hardware, program=program, strategies=strategies, session=session
    )  # fmt: skip


def choices(schedule: Schedule, hardware: Cluster, session: Session | None = None) -> tuple[Strategies, plans.Plan]:
    """The strategies, with the workload that they are in, and the plan, both with every choice made.

    Argument: ``session``, as of ``case_of``.
    """
    fitted = check_against_cluster(with_order(schedule), hardware.world)
    strategies = find_strategies(fitted.workload, fitted.plan, hardware)
    return strategies, resolve(strategies.workload, strategies.plan, hardware, session)


def with_order(schedule: Schedule) -> Schedule:
    """The schedule with the rows of the CSV file that its order names, if it does."""
    plan = schedule.plan
    if plan.rows or not plan.order.endswith('.csv'):
        return schedule
    order = read_csv(schedule.folder / plan.order)
    errors.refuse(problem.at(schedule.where('plan.order')) for problem in counts_fit(plan, order, ('plan', 'order')))
    return replace(schedule, plan=replace(plan, rows=rows_of(order)))


def cluster_of(schedule: Schedule) -> Cluster:
    """The cluster that a schedule names; what is wrong with it stands at the schedule's line."""
    wanted = schedule.cluster
    try:
        return cluster(
            _without_reserve(schedule, load_profile(wanted.profile)),
            nodes=wanted.nodes,
            devices=wanted.devices or None,
            slow=wanted.slow,
            links=wanted.links,
            stack=load_stack(wanted.stack) if wanted.has_stack else None,
            work_queues=wanted.work_queues or 0,
            spread=wanted.spread,
            expansion_mode=wanted.expansion_mode or '',
        )
    except errors.ProfileError as error:
        raise errors.ScheduleError([_at(schedule, problem) for problem in error.problems]) from None


def _without_reserve(schedule: Schedule, profile: Profile) -> Profile:
    """The profile with the memory of a device that is left for the program: a reserve is in place of what is known."""
    reserve, memory = schedule.cluster.reserve, profile.device.memory
    if not reserve:
        return profile
    left = memory.size.value - reserve
    if left <= 0:
        what = f'{units.format_size(reserve)} of {units.format_size(memory.size.value)} leave nothing'
        raise errors.ProfileError(errors.Problem('cluster', f'reserve: {what}', 'write less, e.g. 4 GB'))
    size = replace(memory.size, value=left)
    return replace(profile, device=replace(profile.device, memory=replace(memory, size=size, context=None)))


def memory_notes(case: Case, prediction: Prediction) -> tuple[str, ...]:
    """What the figure of memory takes for granted: the optimizer, and what is kept free on a device."""
    return tuple(_memory_notes(case, prediction))


def _memory_notes(case: Case, prediction: Prediction) -> Iterator[str]:
    work, reserve, size = case.workload, case.schedule.cluster.reserve, prediction.device_memory
    written = any(key[:2] == ('workload', 'optimizer') for key in case.schedule.origins)
    if work.phase == 'train' and work.optimizer == Sgd() and not written:
        yield 'no optimizer is given: sgd is assumed, which has no states; adamw takes 8 to 12 bytes a weight more'
    share = prediction.memory.peak / size
    if reserve:
        reserved, left = units.format_size(reserve), units.format_size(size)
        yield f'{reserved} of each device are reserved (cluster.reserve), {left} are left'
    # Where nothing is kept free and the peak is near, this may be too little.
    elif _TIGHT <= share <= 1 and not prediction.room.context:
        what = "the framework's context, workspaces and fragmentation are not counted; cluster.reserve: 4 GB keeps room"
        yield f'the peak is {share * 100:.0f} % of the device: {what}'


def _at(schedule: Schedule, problem: errors.Problem) -> errors.Problem:
    """A problem of the cluster as one of the schedule; problems inside of a profile's file keep their place."""
    if problem.where != 'cluster':
        return problem
    key = problem.what.partition(': ')[0]
    if key.partition('.')[0] in {field.name for field in fields(schedule.cluster)}:
        return replace(problem, where=schedule.where(f'cluster.{key}'), what=f'cluster.{problem.what}')
    return replace(problem, where=schedule.where('cluster.profile'), what=f'cluster: {problem.what}')


def names_of(cases: Sequence[Case]) -> list[str]:
    """What cases are called side by side: their own names, or, where two have the same, what differs between all."""
    names = [case.names[0] for case in cases]
    if len(set(names)) == len(names):
        return names
    apart = told_apart([case.schedule for case in cases])
    words = [', '.join(f'{_short(key)} {_short_text(value)}' for key, value in one.items()) for one in apart]
    # Equal schedules stay equal; then their order tells them apart.
    return [text if words.count(text) == 1 else f'{text or name} ({index})'
            for index, (name, text) in enumerate(zip(names, words, strict=True), 1)]  # fmt: skip


def _short(key: str) -> str:
    return key.removeprefix('plan.').removeprefix('workload.').replace('_', ' ')


def _short_text(value: object) -> str:
    """A value, of a long one its beginning: strategies of a whole loss are no heading."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'


_ALL: Final[tuple[Any, ...]] = ('', [], {}, None)
_HARMLESS: Final = frozenset(
    {'gather', 'shard_group', 'shard_threshold', 'accumulate', 'copies_loss', 'receive', 'exchange'}
)
"""Keys of a plan that fit whatever the baseline has, where they have no effect on it."""


def written_out(case: Case) -> dict[str, Any]:
    """The plain tree of a case's schedule with every choice made: the same program, and the same baseline.

    A key that is not there is off, or can have no effect. The sweep is left out: every row makes choices of its own.
    """
    settled = _settled(case)
    tree = written(settled)
    del tree['sweep'], tree['planner']
    unused = _inert(case)
    # An empty list says something where it is not the default, as of overlap.
    tree['plan'] = {
        key: value
        for key, value in tree['plan'].items()
        if key not in unused and (value not in _ALL or getattr(plans.Plan(), key) != getattr(settled.plan, key))
    }
    workload = {key: _without_empty(key, value) for key, value in tree['workload'].items()}
    tree['workload'] = {key: value for key, value in workload.items() if value not in _ALL}
    tree['cluster'] = {key: value for key, value in tree['cluster'].items() if value not in _ALL}
    tree['against'] = _against(case, settled)
    return tree


def _settled(case: Case) -> Schedule:
    """The schedule with the values of all choices, and defaults where no value has an effect."""
    plan = settled_plan(case.workload, case.plan)
    plan = replace(plan, **{key: getattr(plans.Plan(), key) for key in _inert(case)})
    mine = case.schedule.cluster
    cluster = replace(mine, devices=case.cluster.devices, stack=mine.stack or NONE)
    return replace(case.schedule, workload=settled_workload(case.workload), plan=plan, cluster=cluster)


def _inert(case: Case) -> frozenset[str]:
    """Keys of the plan of which no value has an effect; those of a search, when it is done."""
    facts = rules.Facts(
        program=case.program, workload=case.workload, plan=case.plan, workload_asked=case.workload, asked=case.plan
    )
    return frozenset(key.removeprefix('plan.') for key in rules.inert_keys(facts) if key.startswith('plan.'))


def _without_empty(key: str, value: Any) -> Any:
    """A network's layers without what they leave empty."""
    if key != 'network':
        return value
    if isinstance(value, dict):
        rest = {name: one for name, one in value.items() if one not in _ALL}
        return {**rest, 'layers': _without_empty(key, value['layers'])}
    return [
        {kind: {name: one for name, one in keys.items() if one not in _ALL} for kind, keys in layer.items()}
        for layer in value
    ]


def _against(case: Case, settled: Schedule) -> dict[str, Any]:
    """The values of the baseline, all its choices made, that are not the plan's."""
    if case.baseline is None:
        return {}
    mine, other = written(settled), written(_settled(case.baseline))
    if set(mine['workload']) != set(other['workload']):
        return dict(case.schedule.differences)
    changes: dict[str, Any] = {}
    for part in ('workload', 'plan', 'cluster'):
        changes |= dict(_differences(mine[part], other[part], part))
    idle = {f'plan.{key}' for key in _inert(case.baseline) & _HARMLESS}
    return {key: value for key, value in changes.items() if key not in idle}


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any]]:
    for key, value in other.items():
        mine = one.get(key)
        if isinstance(mine, dict) and isinstance(value, dict) and mine.keys() == value.keys():
            yield from _differences(mine, value, f'{at}.{key}')
        elif mine != value:
            yield f'{at}.{key}', value
