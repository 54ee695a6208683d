"""Settings of a framework that say the keys of a schedule: the tables of import, read from right to left."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from simpar import errors, files, plans, units
from simpar.ablation.rules import facts_of, inert_keys
from simpar.case import case_of, written_out
from simpar.importing.settings import Setting, SettingRow, Settings, Source, Table
from simpar.schedule import Schedule

FOLDER: Final = Path(__file__).parent / 'tables'
T: Final = 'workload.transformer'
_OPTIMIZER: Final = 'workload.optimizer'


class Said(NamedTuple):
    """A setting of a framework.

    Arguments: ``value``, True for a bare flag; ``keys`` of the schedule that it says; ``part``, under which heading it
    is written.
    """

    name: str
    value: Any
    keys: tuple[str, ...]
    part: str = ''


@dataclass(frozen=True)
class Values:
    """What a case says, every choice made, by dotted key; keys without effect are not among them.

    Arguments: ``ranks`` in all; ``memory`` of a device in bytes, without what is reserved; ``named``, the name of the
    schedule's file.
    """

    every: Mapping[str, Any]
    ranks: int
    memory: float = 0.0
    named: str = ''

    def plan(self, key: str) -> Any:
        """A value of the plan; its default where it has no effect."""
        return self.every.get(f'plan.{key}', getattr(plans.Plan(), key))

    def model(self, key: str, default: Any = 0) -> Any:
        """A value of the transformer; a default where it has none."""
        value = self.every.get(f'{T}.{key}', default)
        return default if value is None else value

    def work(self, key: str, default: Any = 0) -> Any:
        """A value of the workload."""
        return self.every.get(f'workload.{key}', default)

    @property
    def facts(self) -> dict[str, Any]:
        """What tables of several frameworks need, and values that they have, by a word."""
        betas = [self.every.get(f'{_OPTIMIZER}.adamw.{one}') for one in ('beta1', 'beta2')]
        return {
            **{key: self.plan(key) for key in ('data', 'tensor', 'pipeline', 'context', 'expert')},
            'ranks': self.ranks,
            'nodes': self.every['cluster.nodes'],
            'batch': self.work('batch'),
            'small': self.small,
            'steps': self.plan('micro_batches'),
            'betas': None not in betas and betas,
            'clip': plain(self.work('clip_norm')),
            'fp16': self.work('precision', '') == 'fp16',
            'loss_scale': plain(self.work('loss_scale', 1)),
        }

    @property
    def optimizer(self) -> str:
        """The name of the optimizer."""
        return str(self.every.get(_OPTIMIZER, 'sgd'))

    @property
    def sharded(self) -> int:
        """How many of states, gradients and weights are sharded over the data ranks: the stage of ZeRO."""
        return len(self.every.get('plan.shard', ()))

    @property
    def small(self) -> int:
        """Samples of a data rank in a micro-batch, all copies together."""
        return max(1, int(self.work('batch')) // max(1, int(self.plan('data')) * int(self.plan('micro_batches'))))


def values_of(schedule: Schedule) -> Values:
    """The values of a schedule. Raises ``ScheduleError`` where it does not fit its cluster."""
    case = case_of(_short(schedule))
    tree = written_out(case)
    inert = inert_keys(facts_of(case.schedule, case.workload, case.plan, case.program))
    flat: dict[str, Any] = {}
    for part in ('cluster', 'workload', 'plan'):
        flat |= dict(_flat(tree[part], part))
    name = next((key.split('.')[2] for key in flat if key.startswith(f'{_OPTIMIZER}.')), '')
    # The tables of import have the keys of adamw.
    for key in [one for one in flat if one.startswith(f'{_OPTIMIZER}.{name}.')]:
        flat.setdefault(key.replace(f'.{name}.', '.adamw.'), flat[key])
    if name == 'adam':
        # It is adamw whose weights do not decay.
        flat['workload.optimizer.adamw.weight_decay'] = 0.0
    by_key = {key: value for key, value in flat.items() if key not in inert}
    if case.plan.shard_group == 1:
        # Groups of one rank share nothing out.
        by_key['plan.shard'] = []
    by_key |= {'workload.batch': schedule.workload.batch, 'plan.micro_batches': schedule.plan.micro_batches}
    origin = case.schedule.where().partition(':')[0].rpartition('/')[2]
    memory = case.cluster.profile.device.memory.size.value
    return Values({**by_key, _OPTIMIZER: name}, case.cluster.world, memory, origin)


def _short(schedule: Schedule) -> Schedule:
    """The schedule with fewer micro-batches and no baseline: which keys count does not hang on their number."""
    plan, batch = schedule.plan, schedule.workload.batch
    enough = 2 * plan.pipeline
    every = plan.pipeline if plan.micro_batches % plan.pipeline == 0 else 1
    counts = (one for one in range(enough, plan.micro_batches) if plan.micro_batches % one == 0 and one % every == 0)
    count = next(counts, plan.micro_batches)
    fewer = replace(schedule.workload, batch=batch * count // plan.micro_batches)
    return replace(schedule, plan=replace(plan, micro_batches=count), workload=fewer, against={})


def _flat(node: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Values by dotted key; what the user names, such as strategies and links, is one value."""
    if isinstance(node, Mapping) and not at.startswith('plan.') and at.count('.') < 4 and not at.endswith('.links'):
        for key, value in node.items():
            yield from _flat(value, f'{at}.{key}')
    else:
        yield at, node


def spoken(row: SettingRow, values: Values, part: str = '', form: str = '') -> Said | None:
    """The setting of a row that says what its key is; None where it says nothing, or a rule has to say it.

    Arguments: ``form`` of its value, as tables of import write it, in the place of the row's.
    """
    value, form = values.every.get(row.key), form or row.value
    kind, _, least = form.partition(' > ')
    if value is None or not form:
        return None
    if kind in ('count', 'number'):
        return None if least and not value > 0 else Said(row.setting, value, (row.key,), part)
    if kind == 'switch':
        return Said(row.setting, True, (row.key,), part) if value else None
    wanted = str(value).lower() if isinstance(value, bool) else str(value)
    if form.startswith('= '):
        return Said(row.setting, True, (row.key,), part) if form[2:] == wanted else None
    words = (pair.split(': ') for pair in form.split(', '))
    word = next((word for word, of_word in words if of_word == wanted and word != '*'), None)
    return Said(row.setting, word, (row.key,), part) if word is not None else None


def direct(table: str, values: Values, facts: Mapping[str, Any], of_import: Table | None = None) -> Iterator[Said]:
    """What single settings say, in the order of a table of export.

    A row with keys has a fact as its value, or what it says itself; others what import's table says of their key.
    Arguments: ``table``, its name; ``facts``, what rows need, by a word, and values; ``of_import``, what settings are.
    """
    for row in files.read_csv(FOLDER / f'{table}.csv'):
        needs = row['needs'].split(' & ') if row['needs'] else []
        if not all(bool(facts[one.removeprefix('!')]) != one.startswith('!') for one in needs):
            continue
        if row['keys'] or of_import is None:
            value = facts[row['value']] if row['value'] in facts else json.loads(row['value'])
            keys = tuple(row['keys'].split()) if row['keys'] != '-' else ()
            yield Said(row['setting'], value, keys, row['part'])
        else:
            said = spoken(of_import.rows[row['setting']], values, row['part'], row['value'])
            # A degree of one is what every framework has where nothing is said.
            if said and not (said.keys[0].startswith('plan.') and said.value is not True and said.value == 1):
                yield said


def read_as(said: Iterable[Said], table: Table) -> Settings:
    """What import makes of settings: its rules then say what they come to."""
    return Settings([Setting(one.name, one.value, 'export') for one in said], table)


def plain(value: Any) -> Any:
    """A number without a needless point; all else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def bytes_of(value: Any) -> float:
    """A size in bytes; 0 for a word, or where there is none."""
    if isinstance(value, str):
        try:
            return units.parse(value, 'size')
        except ValueError:
            return 0.0
    return float(value or 0)


def word_of(value: Any) -> str:
    """A value as one word of a command."""
    value = plain(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Target:
    """A framework that a plan is written for.

    Arguments:
        name: on the command line.
        title: as its users say it.
        suffix: of the file.
        source: how a file of it is read back; None where simpar reads none.
        settings: what it says of the values of a case.
        text: a file of settings, with a head of comments.
        beside: further files, by name.
        is_modelless: whether the model is in the program, not in the file.
    """

    name: str
    title: str
    suffix: str
    source: Source | None
    settings: Callable[[Values], list[Said]]
    text: Callable[[list[Said], Values, tuple[str, ...]], str]
    beside: Callable[[list[Said], Values], Mapping[str, str]] = field(default=lambda _said, _values: {})
    is_modelless: bool = False


def need_transformer(values: Values, title: str) -> None:
    """Raise ``ScheduleError`` where the model is one of layers or a module, which a framework has no settings for."""
    if f'{T}.layers' not in values.every:
        what = f'a model of layers or a module, and {title} has settings for transformers alone'
        raise errors.refusal('workload', what, 'write --to mindspore, which has lines for a plan of any model')
