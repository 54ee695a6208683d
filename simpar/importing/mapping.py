"""Settings of a file to keys of a schedule: each setting is mapped, or listed with its reason; none is left out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, Final

from simpar import hardware, profiles
from simpar.errors import Problem, ScheduleError
from simpar.importing import findings
from simpar.importing.first import NONE, WIDTH, Question, clean, yaml_of
from simpar.importing.settings import ACCELERATOR, DEVICE_MEMORY, NODE_SIZE, NOW, Setting, Settings, Source, shaping

BESIDE: Final = ('model-config', 'model-longest', 'model-hidden', 'model-type', NODE_SIZE, DEVICE_MEMORY)
"""What rules look at and no file has: it is given beside."""
MOST_GAPS: Final = 64
RANKS: Final = 'ranks'
NODE: Final = 'node'
"""What rules say in place of nodes and devices: ranks in all, and devices that each node gives."""


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one setting.

    Arguments: ``name`` and ``value`` as the file has them; ``where``, file:line; ``outcome``, mapped or the reason why
    it is not; ``keys`` that it says; ``note``, more of it.
    """

    name: str
    value: str
    where: str
    outcome: str
    keys: tuple[str, ...] = ()
    note: str = ''


@dataclass(frozen=True, slots=True)
class Import:
    """A file as a schedule.

    Arguments: ``kind`` of file; ``values`` by dotted key; ``comments`` of keys; ``lines``, one for each setting;
    ``assumed``, what the file does not say.
    """

    kind: str
    values: Mapping[str, Any]
    comments: Mapping[str, str]
    lines: tuple[Line, ...]
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def mapped(
    source: Source,
    settings: Settings,
    *,
    profile: hardware.Profile,
    name: str,
    skipped: Iterable[Setting] = (),
    model: str = '',
    unnamed: str = '',
) -> Import:
    """The schedule that settings come to.

    Arguments: ``profile`` of the cluster, and its ``name`` in files; ``unnamed``, why it is assumed, nothing where
    somebody names it; ``skipped``, what the file has and does not use; ``model``, the path of a config.json in the
    place of the model of the file.
    Raises ``ScheduleError`` with all that keeps it from being written.
    """
    if not any(one.name in source.table.rows or source.table.reason(one.name) for one in settings.every):
        where = settings.every[0].where.partition(':')[0] if settings.every else name
        raise ScheduleError(Problem(where, f'no setting of {source.name} is in it', 'name a file that it reads'))
    all_findings = [*settings.unreadable(), *settings.doubled(), *_copied(settings), *_of_another_model(settings)]
    all_findings += [one for rule in source.rules for one in rule(settings)]
    if model:
        all_findings = list(_beside(all_findings, model))
    if profile.device.work_queues is None:
        all_findings = list(_without_queues(all_findings))
    wrong = [_problem(settings, one) for one in all_findings if isinstance(one, findings.Mistake)]
    wrong += list(_unassigned(settings))
    if wrong:
        raise ScheduleError(list(dict.fromkeys(wrong)))
    says = [one for one in all_findings if isinstance(one, findings.Entry)]
    values = {one.key: one.value for one in says}
    ranks, node = values.pop(RANKS, 0), values.pop(NODE, 0)
    nodes, larger = _cluster(profile, name, ranks, node)
    values, more = _repeated({**nodes, **values})
    values, rounded = _rounded(values, ranks)
    said_so = source.framework
    framework, year = (said_so, NOW) if isinstance(said_so, str) else said_so(settings)
    # Behind the profile, where a reader looks for the machine.
    head = {'cluster.profile': values['cluster.profile'], 'cluster.stack': profiles.stack_of(framework, name, year)}
    comments = {one.key: _comment(settings, one) for one in says}
    comments['cluster.stack'] = f'the kernels and the host of {framework}'
    lines = [_line(settings, one, all_findings) for one in settings.every if one.name not in BESIDE]
    for one in skipped:
        is_off = one.value is None or one.value is False
        outcome, note = (findings.IDLE, 'off') if is_off else (findings.NOT_TAKEN, '')
        lines.append(Line(one.called, one.shown, one.where, outcome, note=note))
    # What the cluster is comes first: no other guess moves the answer as far.
    said = [f'{name}: {unnamed}; --cluster says another'] if unnamed else []
    guesses = sorted(
        (one for one in all_findings if isinstance(one, findings.Guess)), key=lambda one: not one.of_cluster
    )
    said += [*larger, *(one.what for one in guesses), *more, *rounded]
    # What no prediction knows of goes with the schedule, so that its answer tells it.
    gaps = [gap(line) for line in lines if line.outcome in (findings.NOT_MODELLED, findings.UNSEEN)][:MOST_GAPS]
    whole = {**head, **values, **({'gaps': gaps} if gaps else {})}
    return Import(source.name, whole, comments, tuple(lines), tuple(dict.fromkeys(said)))


def _without_queues(all_findings: list[findings.Finding]) -> Iterator[findings.Finding]:
    """What is told to a device whose streams share no queues."""
    for one in all_findings:
        if isinstance(one, findings.Entry) and one.key == 'cluster.work_queues':
            yield from (findings.Unmapped(name, 'the device has no such queues', findings.IDLE) for name in one.by)
        else:
            yield one


def _repeated(values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Heads of keys and values that every tensor rank has one of, where launchers repeat them."""
    key = 'workload.transformer.kv_heads'
    heads, tensor = values.get(key, 0), values.get('plan.tensor', 1)
    if heads < 1 or tensor < 1 or heads % tensor == 0 or tensor % heads:
        return values, []
    return {**values, key: tensor}, [f'{heads} heads of keys and values are repeated, one for each of {tensor} ranks']


def _rounded(values: dict[str, Any], ranks: int) -> tuple[dict[str, Any], list[str]]:
    """Slots of an expert that tensor and context ranks can share, where launchers round them up on each."""
    key, tensor = 'workload.transformer.experts.capacity', values.get('plan.tensor', 1)
    context = values.get('plan.context', 1)
    share, sequence = values.get(key, 0), values.get('workload.transformer.sequence', 0)
    sharing = tensor * context
    inner = sharing * values.get('plan.pipeline', 1)
    count = values.get('workload.transformer.experts.count', 0)
    # What is no count at all is told where the schedule is read.
    if not share or sharing < 2 or sequence < 1 or inner < 1 or count < 1:
        return values, []
    slices = max(1, ranks // inner) * max(1, values.get('plan.micro_batches', 1) * values.get('plan.copies', 1))
    tokens = sequence * values['workload.batch'] / slices
    mean = max(1.0, tokens * values['workload.transformer.experts.top_k'] / count)
    slots = ceil(share * mean)
    if slots % sharing == 0:
        return values, []
    even = -(-slots // sharing) * sharing
    # Half a slot less, so that no rounding makes one more of it.
    return {**values, key: (even - 0.5) / mean}, [f'{even} slots of an expert, not {slots}: {sharing} ranks share them']


def _beside(all_findings: list[findings.Finding], model: str) -> Iterator[findings.Finding]:
    """What is told of a model that a config has: its keys are the config's, but for the length of samples."""
    yield findings.Entry('workload.model', model, ('model-config',))
    for one in all_findings:
        of_model = isinstance(one, findings.Entry) and one.key.startswith('workload.transformer')
        if isinstance(one, findings.Entry) and one.key == 'workload.transformer.sequence':
            yield one._replace(key='workload.sequence')
        elif isinstance(one, findings.Entry) and one.key.startswith('workload.transformer.lora.'):
            # No config says what is trained of a model.
            yield one._replace(key=one.key.replace('transformer.', ''))
        elif of_model and isinstance(one, findings.Entry):
            for name in one.by:
                yield findings.Unmapped(name, '--model says it', findings.IDLE)
        elif not (isinstance(one, findings.Mistake) and one.by.startswith(('model.', 'tokenizer', 'vocab'))):
            yield one


def _copied(settings: Settings) -> Iterator[findings.Finding]:
    """What single settings say."""
    for one in settings.named.values():
        row = settings.table.rows.get(one.name)
        if row is None or row.rule or one.open:
            continue
        try:
            yield findings.Entry(row.key, row.copied(_single(one)), (one.name,))
        except ValueError as error:
            yield findings.Mistake(one.name, f'{error} (got {one.shown[:40]!r})', f'--set {one.name}=… says another')


def _of_another_model(settings: Settings) -> Iterator[findings.Finding]:
    """Settings that make another model or plan of it, whose numbers would be those of no file."""
    for name in settings.named:
        row = settings.table.reason(name)
        if name in settings.table.rows or name in BESIDE or settings.is_off(name):
            continue
        if row is not None and row.outcome == findings.REFUSED:
            yield findings.Mistake(name, f'not modelled: {row.note}', f'--set {name}=false takes the model without')
        elif row is None and (what := shaping(name)):
            why = f'unknown, and by its name it is of {what}, so that the step may hang on it'
            yield findings.Mistake(name, why, f'--set {name}=false leaves it out')


def _single(one: Setting) -> Any:
    if isinstance(one.value, list):
        if len(one.value) != 1:
            raise ValueError('not one value')
        return one.value[0]
    return one.value


def _unassigned(settings: Settings) -> Iterator[Problem]:
    """Settings that matter, whose value nobody assigns."""
    for one in settings.named.values():
        row = settings.table.rows.get(one.name)
        if row is None or not one.open or row.key.startswith('cluster.') or row.words.startswith('words of'):
            continue
        variable = next((name for name in one.open if not name.startswith('$')), one.name)
        what = f'{one.called}: {", ".join(f"${name}" if name.isdigit() else name for name in one.open)} is not assigned'
        behind = ', or all arguments of the script behind --' if variable.isdigit() else ''
        yield Problem(one.where, what, f'give it: --set {variable}=…{behind}')


def _problem(settings: Settings, wrong: findings.Mistake) -> Problem:
    one = settings.named.get(wrong.by)
    where = one.where if one else settings.every[0].where.partition(':')[0] if settings.every else 'file'
    return Problem(where, f'{one.called if one else wrong.by}: {wrong.what}', wrong.instead)


def _cluster(profile: hardware.Profile, name: str, ranks: int, node: int) -> tuple[dict[str, Any], list[str]]:
    """Nodes, and devices of each where these are not all; and what had to be assumed of them.

    Arguments: ``ranks`` in all; ``node``, devices that each node gives, 0 for all.
    """
    keys: dict[str, Any] = {'cluster.profile': name}
    notes = []
    if node > profile.devices:
        notes = [f'nodes of {profile.devices} devices: the file has {node} on each, {name} has {profile.devices}']
    share = node if 0 < node <= profile.devices and ranks % node == 0 else min(profile.devices, max(1, ranks))
    if ranks % share:
        # Equal shares: the largest number of a node that divides all.
        share = next(one for one in range(share, 0, -1) if ranks % one == 0)
    if ranks > share:
        keys['cluster.nodes'] = ranks // share
    if ranks and share < profile.devices:
        keys['cluster.devices'] = share
    return keys, notes


def _comment(settings: Settings, says: findings.Entry) -> str:
    by = ', '.join(
        f'{settings.named[name].called} {settings.named[name].shown}'.removesuffix(' true')
        for name in says.by
        if name in settings
    )
    return '; '.join(filter(None, (by, says.note)))


def _line(settings: Settings, one: Setting, all_findings: list[findings.Finding]) -> Line:
    line = partial(Line, one.called, one.shown, one.where)
    if settings.named[one.name] is not one:
        return line(findings.IDLE, note='given again below, where it counts')
    says = [said for said in all_findings if isinstance(said, findings.Entry) and one.name in said.by]
    keys = tuple(dict.fromkeys(said.key for said in says))
    left = next((said for said in all_findings if isinstance(said, findings.Unmapped) and said.by == one.name), None)
    if left is not None:
        return line(left.reason, keys, left.note or 'as it is without it')
    if keys:
        targets = tuple(dict.fromkeys('cluster' if key in (RANKS, NODE) else key for key in keys))
        return line(findings.MAPPED, targets, next((said.note for said in says if said.note), ''))
    if one.name in settings.table.rows:
        return line(findings.IDLE, note=settings.idle(one.name) or 'as it is without it')
    if one.name in ('devices', ACCELERATOR):
        return line(findings.MAPPED, ('cluster',))
    if one.value is None:
        return line(findings.IDLE, note='empty')
    row = settings.table.reason(one.name)
    if row is None or row.outcome != findings.IDLE:
        if settings.is_off(one.name):
            return line(findings.IDLE, note='switched off')
        return line(findings.NOT_MODELLED, note=row.note) if row else line(findings.UNSEEN)
    return line(findings.IDLE, note=row.note)


# what a reader gets of it


def schedule_text(made: Import, name: str, question: Question = NONE) -> str:
    """The schedule of an imported file.

    Arguments: ``name`` of that file, for the first line; ``question``, the baseline that the plan is compared with.
    """
    listed = [line for line in made.lines if line.outcome != findings.MAPPED]
    counts = f'{len(made.lines) - len(listed)} settings mapped, {len(listed)} listed'
    head = [f'Written by simpar import from {name} ({made.kind}): {counts}.']
    head += _guesses(made)
    # What moves the answer stands before what does not.
    for outcome in sorted(dict.fromkeys(line.outcome for line in listed), key=lambda one: one == findings.IDLE):
        head.append(f'{outcome}:')
        head += [f'  {_flag(line)}' for line in listed if line.outcome == outcome]
    return yaml_of(made.values, made.comments, tuple(clean(line)[: WIDTH + 80] for line in head), question)


def _flag(line: Line, *, with_note: bool = True) -> str:
    value = '' if line.value == 'true' else f' {line.value}'
    note = f' ({line.note})' if line.note and with_note else ''
    return f'{line.where}: {line.name}{value[:60]}{note}'


def gap(line: Line) -> str:
    """A setting that no prediction knows of, and what it is."""
    return clean(f'{line.name} {line.value}'.removesuffix(' true')[:80] + (f' ({line.note[:80]})' if line.note else ''))


def listing(made: Import, *, full: bool) -> str:
    """What a reader has to know of an import: first what was assumed, then what is not modelled.

    Arguments: ``full``, whether a line for every other setting follows, or their number.
    """
    lines = _guesses(made)
    missing = [
        line for line in made.lines if line.outcome in (findings.NOT_MODELLED, findings.UNSEEN, findings.NOT_TAKEN)
    ]
    lines += [f'{_outcome(line)}: {_flag(line, with_note=False)}' for line in missing]
    rest = [line for line in made.lines if line not in missing]
    if full:
        rows = [(line.where, f'{line.name} {line.value}'.removesuffix(' true'), _outcome(line)) for line in rest]
        widths = [min(48, max((len(row[column]) for row in rows), default=0)) for column in range(2)]
        lines += [f'{row[0]:<{widths[0]}}  {row[1][:80]:<{widths[1]}}  {row[2]}' for row in rows]
    else:
        mapped = sum(line.outcome == findings.MAPPED for line in rest)
        idle = len(rest) - mapped
        lines.append(f'{mapped} settings are mapped, {idle} have no effect on the time of a step: --full lists them')
    return '\n'.join(map(clean, lines))


def _guesses(made: Import) -> list[str]:
    """What was assumed, and what of the file could not be followed."""
    return [f'Assumed: {what}' for what in made.assumed] + [f'Not followed: {what}' for what in made.notes]


def _outcome(line: Line) -> str:
    what = f'→ {", ".join(line.keys)}' if line.outcome == findings.MAPPED else line.outcome
    return f'{what}: {line.note}' if line.note else what
