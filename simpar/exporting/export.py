"""Export: a case in a framework's own words, read back as import reads it; what comes back otherwise is listed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from simpar import errors, files, plans, profiles, schedule
from simpar.case import Case
from simpar.exporting import megatron, mindspore
from simpar.exporting.deepspeed import accelerate_keys, deepspeed_keys, json_text, toml_text, torchtitan_keys, yaml_text
from simpar.exporting.mindformers import mindformers_keys, speed_up
from simpar.exporting.settings import FOLDER, Said, Target, Values, bytes_of, values_of
from simpar.importing import accelerate, deepspeed, mapping, read, torchtitan
from simpar.importing.megatron import MEGATRON
from simpar.importing.mindformers import MINDFORMERS
from simpar.importing.mindspeed import MINDSPEED
from simpar.importing.mindspore import plan_of

_ALL: Final = (
    Target('megatron', 'Megatron-LM', '.sh', MEGATRON, partial(megatron.flags, source=MEGATRON), megatron.script),
    Target('mindspeed', 'MindSpeed-LLM', '.sh', MINDSPEED, partial(megatron.flags, source=MINDSPEED), megatron.script),
    Target('mindformers', 'MindFormers', '.yaml', MINDFORMERS, mindformers_keys, yaml_text, beside=speed_up),
    Target('mindspore', 'MindSpore', '.py', None, mindspore.mindspore_lines, mindspore.mindspore_text, beside=speed_up),
    Target('torchtitan', 'torchtitan', '.toml', torchtitan.TORCHTITAN, torchtitan_keys, toml_text),
    Target('deepspeed', 'DeepSpeed', '.json', deepspeed.DEEPSPEED, deepspeed_keys, json_text, is_modelless=True),
    Target('accelerate', 'Accelerate', '.yaml', accelerate.ACCELERATE, accelerate_keys, yaml_text, is_modelless=True),
)
TARGETS: Final = {one.name: one for one in _ALL}
OF_FRAMEWORK: Final = ('cluster.stack', 'cluster.profile', 'cluster.nodes', 'cluster.devices', 'workload.model')
"""What a file of a framework never says, or says by the number of ranks."""


_MODELS: Final = ('workload.transformer.', 'workload.network', 'workload.module')
_PLAIN_ORDERS: Final = {'mindspore-2.10/1f1b': '1f1b', 'mindspore-2.10/gpipe': '1f1b'}


@dataclass(frozen=True, slots=True)
class Unsaid:
    """A key that a framework cannot say as it is.

    Arguments: ``value`` of the schedule; ``nearest``, what the written file comes to; ``note``, why, or what to do.
    """

    key: str
    value: Any
    nearest: Any
    note: str = ''

    def __str__(self) -> str:
        note = f' ({self.note})' if self.note else ''
        return f'{self.key}: {_text(self.value)} is not said; what is written is {_text(self.nearest)}{note}'


@dataclass(frozen=True, slots=True)
class Export:
    """A plan in a framework's own words.

    Arguments: ``framework``, its title; ``text`` of the file, ``suffix`` of its name; ``settings`` that it has;
    ``unsaid``, what it cannot say; ``needs``, the versions that have its settings; ``beside``, further files by name;
    ``back``, what import makes of it, where simpar reads such files.
    """

    framework: str
    text: str
    suffix: str
    settings: tuple[Said, ...]
    unsaid: tuple[Unsaid, ...] = ()
    needs: tuple[str, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    back: schedule.Schedule | None = None

    def __str__(self) -> str:
        return self.text


def export(case: Case | schedule.Schedule, to: str) -> Export:
    """The plan of a case or schedule as a framework's own flags, file or lines of code.

    Arguments: ``to``, one of ``TARGETS``.
    Raises ``ScheduleError`` where the framework has no words for the model, or none for what the model needs of the
    plan, or is none that simpar writes for.
    """
    target = target_of(to)
    values = values_of(case if isinstance(case, schedule.Schedule) else case.schedule)
    said = target.settings(values)
    try:
        back, values_back = read_back(target, said, values)
        unsaid = tuple(different(values, values_back, target=target))
    except (errors.Infeasible, errors.ScheduleError) as wrong:
        what = f'{target.title} cannot say all of it, and what is left cannot be: {str(wrong).splitlines()[0]}'
        raise errors.refusal('plan', what, 'name another framework, e.g. --to mindspore') from wrong
    needs = tuple(needs_of(target, said))
    text = target.text(said, values, _head(target, values, unsaid, needs))
    return Export(target.title, text, target.suffix, tuple(said), unsaid, needs, target.beside(said, values), back)


def target_of(to: str) -> Target:
    """A framework by its name. Raises ``ScheduleError``."""
    if to not in TARGETS:
        what = f'no framework that simpar writes for (got {to[:40]!r})'
        raise errors.refusal('--to', what, f'write one of {", ".join(TARGETS)}')
    return TARGETS[to]


def read_back(target: Target, said: list[Said], values: Values) -> tuple[schedule.Schedule | None, Values]:
    """What the settings come to: as import makes it of the file, or where simpar reads none, all keys that are said.

    Raises ``ScheduleError`` where it is no schedule.
    """
    if target.source is None:
        return None, _of_lines(target, said, values)
    made = reimported(target, target.text(said, values, ()), values, target.beside(said, values))
    back = schedule.load_schedule(mapping.schedule_text(made, target.name))
    return back, values_of(back)


def _of_lines(target: Target, said: list[Said], values: Values) -> Values:
    """What lines around a network come to, which have none: all keys but those of the plan are as they are.

    Marks of layers stand in comments, for the layers are the user's: what they say counts as said, and so do
    strategies of operators where they come back as they went out.
    """
    with _folder(target, target.beside(said, values)) as path:
        plan, strategies = plan_of(target.text(said, values, ()), path, values.ranks)
    sent = {one.name: one.value for one in said if one.part == 'shard'}
    is_same = {name: mindspore.tuples(one) for name, one in strategies.items()} == sent
    by_hand = ('', 'marks', '2.3', *(['shard'] if is_same else []))
    hand_keys = {key for one in said if one.part in by_hand for key in one.keys}
    # What a call says, it says whole or not: a key that shares a call with others is as the call comes back.
    spoken = {key for one in said for key in one.keys if set(one.keys) & plan.keys()}
    back = {
        key: value for key, value in values.every.items() if not key.startswith('plan.') or key in hand_keys | spoken
    }
    return replace(values, every={**framework_defaults(target.title), **back, **plan})


def framework_defaults(title: str) -> dict[str, Any]:
    """What a framework does where nothing is said, as the table of stacks has it."""
    rows = (row for row in files.read_csv(profiles.stack_folder() / 'defaults.csv') if row['framework'] == title)
    # YAML reads off as false.
    return {row['key']: 'off' if row['value'] == 'off' else yaml.safe_load(row['value']) for row in rows}


def reimported(target: Target, text: str, values: Values, beside: Mapping[str, str]) -> mapping.Import:
    """What import makes of a file of the framework, with those beside it, on the cluster of the case."""
    with _folder(target, beside) as path:
        path.write_text(text, encoding='utf-8')
        profile = str(values.every['cluster.profile'])
        if not target.is_modelless:
            return read.imported(path, given={}, profile=profile)
        config, sequence = path.with_name('model.json'), values.model('sequence', 2048)
        config.write_text(json.dumps({'max_position_embeddings': sequence}), encoding='utf-8')
        settings = {'devices': str(values.ranks), 'sequence': str(sequence)}
        made = read.imported(path, given=settings, profile=profile, model=str(config))
    # The model is that of the case: its file has none.
    rest = {key: value for key, value in made.values.items() if key not in ('workload.model', 'workload.sequence')}
    own = {key: value for key, value in values.every.items() if key.startswith(_MODELS)}
    return replace(made, values={**rest, **own})


@contextmanager
def _folder(target: Target, beside: Mapping[str, str]) -> Iterator[Path]:
    """Where a file of the framework goes as long as it is read; those beside it are there."""
    with TemporaryDirectory() as folder:
        for name, text in beside.items():
            (Path(folder) / name).write_text(text, encoding='utf-8')
        yield Path(folder) / f'{target.name}{target.suffix}'


def different(values: Values, back: Values, *, target: Target | None = None, full: bool = False) -> Iterator[Unsaid]:
    """Keys of a case that come back with another value.

    Arguments: ``target``, whose notes are told; ``full``, whether keys that only the other one has count, too.
    """
    rows = files.read_csv(FOLDER / 'unsaid.csv')
    notes = {row['key']: row['note'] for row in rows if target is not None and target.name in row['frameworks'].split()}
    for key in dict.fromkeys([*values.every, *(back.every if full else ())]):
        if key in OF_FRAMEWORK or (key.startswith('workload.optimizer.') and '.adamw.' not in key):
            continue
        mine, other = (_value(one, key) for one in (values, back))
        if not same(key, mine, other, values):
            yield Unsaid(key, mine, other, notes.get(key, ''))


def _value(values: Values, key: str) -> Any:
    """A value; of a key of the plan that has no effect its default."""
    if key in values.every:
        return values.every[key]
    return getattr(plans.Plan(), key.removeprefix('plan.'), None) if key.startswith('plan.') else None


def same(key: str, one: Any, other: Any, values: Values) -> bool:
    """Whether two values of a key come to the same."""
    if key == 'workload.transformer.pad_vocab':
        words = values.model('vocab')
        return bool(-(-words // one) * one == -(-words // other) * other)
    if key in ('plan.zero', 'plan.hsdp'):
        # Words for what is sharded and when it is gathered, which have keys of their own.
        return True
    if key == 'workload.optimizer' and {one, other} == {'adam', 'adamw'}:
        return not bool(values.work('optimizer.adamw.weight_decay'))
    if key == 'workload.transformer.positions':
        return bool((one or values.model('sequence')) == (other or values.model('sequence')))
    is_list = isinstance(one, (list, tuple)) or isinstance(other, (list, tuple))
    is_size = key == 'plan.fusion' and not is_list and bytes_of(one) > 0 < bytes_of(other)
    if is_size or key in ('cluster.reserve', 'plan.shard_threshold'):
        one, other = bytes_of(one), bytes_of(other)
        return bool(abs(one - other) <= 1e-3 * max(one, other))
    if key == 'plan.order' and values.plan('chunks') < 2:
        # One chunk a rank: MindSpore's order is 1F1B.
        one, other = (_PLAIN_ORDERS.get(word, word) for word in (one, other))
    if isinstance(one, float) or isinstance(other, float):
        return bool(one == other) or (bool(one) and bool(other) and abs(one - other) <= 1e-9 * abs(one))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return list(one) == list(other)
    return bool(one == other)


def needs_of(target: Target, said: list[Said]) -> Iterator[str]:
    """The versions that first had the settings that are written, as the tables of import have them."""
    if target.source is None:
        return
    rows = target.source.table.rows
    since: dict[str, list[str]] = {}
    for one in said:
        if one.name in rows and rows[one.name].since:
            since.setdefault(rows[one.name].since, []).append(one.name)
    yield from (f'{version}: {", ".join(names)}' for version, names in since.items())


def _head(target: Target, values: Values, unsaid: tuple[Unsaid, ...], needs: tuple[str, ...]) -> tuple[str, ...]:
    """Comments before all: where it comes from, what the framework cannot say, and which versions have its settings."""
    lines = [f'Written by simpar export from {values.named or "a schedule"} for {target.title}.']
    lines += [f'Not said: {one}' for one in unsaid]
    return (*lines, *(f'Since {one}' for one in needs))


def _text(value: Any) -> str:
    return 'nothing' if value is None else json.dumps(value, default=str)
