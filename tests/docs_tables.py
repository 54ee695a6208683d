"""Tables of the docs that are made from the code; run as a program it writes them."""

import json
import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from docs_blocks import DOCS, PROOFS
from field_score import SCORE, score_table
from launch_sources import FOLDER, SOURCES, given_beside, model_beside
from overlap_page import TABLES as OF_OVERLAPS

from simpar.files import read_csv
from simpar.huggingface import families
from simpar.importing.findings import IDLE, MAPPED, NOT_MODELLED, UNSEEN
from simpar.importing.read import imported
from simpar.importing.settings import SettingRow, table_of
from simpar.model import operators
from simpar.model.operators import OPERATORS
from simpar.model.operators.base import Operator
from simpar.schedule import schedule_schema
from simpar.sweep.why_not import TABLE as overlaps_file
from simpar.torch_module.rules import TABLE as ATEN

HEAD = (
    '| layer | what it is | as MindSpore has it | inputs of its strategy | stays unsharded | bound by |',
    '|---|---|---|---|---|---|',
)
BOUND = {'matrix': 'matrix units', 'attention': 'its own table', 'streaming': 'bytes moved', 'view': 'nothing: a view'}
"""What bounds an operator, in words."""
OF_STRATEGY = {row['key']: row for row in read_csv(Path(operators.__file__).with_name('keys.csv'))}
"""By ``operator.strategy`` the inputs that it is of, and what of them stays unsharded."""


def operator_table() -> list[str]:
    """The lines of the table, a row for each operator in the order of the registry."""
    return [*HEAD, *map(_row, OPERATORS)]


def _row(kind: type[Operator]) -> str:
    told = (kind.__doc__ or '').partition('\n')[0]
    named = ', '.join(f'`{primitive.name}`' for primitive in kind.primitives.values())
    owners = (f'{base.key}.strategy' for base in kind.__mro__ if 'key' in vars(base))
    of = next((OF_STRATEGY[owner] for owner in owners if owner in OF_STRATEGY), {'inputs': '', 'unsharded': ''})
    cells = (f'`{kind.key}`', told, named, of['inputs'] or 'x', of['unsharded'], BOUND[kind.pricing()])
    return f'| {" | ".join(cells)} |'


STRATEGIES, MODELS, IMPORT = DOCS / 'strategies.md', PROOFS / 'models.md', PROOFS / 'import.md'
MODULES, SETTINGS, STACKS = PROOFS / 'modules.md', PROOFS / 'import_settings.md', PROOFS / 'stacks.md'

KEYS = PROOFS / 'all_keys.md'
LAYER_KEYS = PROOFS / 'keys_network.md'
NETWORK = 'keys of a network and its layers'
TOPICS = {
    NETWORK: r'workload\.(network|module)\b',
    'keys of experts': r'workload\.transformer\.experts\b',
    'keys of a transformer': r'workload\.transformer\b',
    'keys of the optimizer': r'workload\.optimizer\b',
    'other keys of the workload': r'workload\b',
    'keys of degrees': r'plan\.(data|tensor|sequence_parallel|context|context_\w+|expert)$',
    'keys of the pipeline': r'plan\.(pipeline|micro_batches|order|chunks|rows|stages|receive|exchange)$',
    'keys of copies, tiles and overlap': r'plan\.(copies|copies_loss|sum_loss|reduce|streams|tiles|overlap)$',
    'keys of strategies': r'plan\.(dataset|device_matrix|redistribution|all_to_all|strategies|layouts|search|compat'
    r'|objective)$',
    'keys of recomputation': r'plan\.recompute',
    'keys of optimizer parallelism': r'plan\.(shard|gather|hsdp|zero|shard_\w+|second_shards|unsharded|accumulate'
    r'|prefetch|reduce_gradients|fusion|fusion_ids)$',
    'keys of a plan': r'plan\b',
    'keys of the file': r'',
}
"""Tables by their first words, and the keys that each takes from those that the ones above leave."""

KINDS = {'integer': 'integer', 'number': 'number', 'string': 'text', 'boolean': 'true, false', 'array': 'list',
         'object': 'mapping', 'null': ''}  # fmt: skip


def in_words(schema: dict[str, Any]) -> str:
    """The type of a key, and its bounds."""
    if 'anyOf' in schema:
        return ' or '.join(filter(None, (in_words(one) for one in schema['anyOf'])))
    if 'enum' in schema:
        return ', '.join(f'`{choice}`' for choice in schema['enum'])
    bounds = (('minimum', '≥'), ('exclusiveMinimum', '>'), ('maximum', '≤'), ('exclusiveMaximum', '<'))
    told = [f'{sign} {schema[bound]:.16g}' for bound, sign in bounds if bound in schema]
    return ', '.join([KINDS[schema.get('type', 'object')], *told])


def rows(schema: dict[str, Any], root: dict[str, Any], at: str = '') -> list[str]:
    """A line of the table for each key, in the order of the schema."""
    made = []
    for name, one in schema.get('properties', {}).items():
        if 'x-beside' in one:
            continue  # told once, in its own place
        key = f'{at}{name}'
        full = {**root['$defs'][one['$ref'].split('/')[-1]], **one} if '$ref' in one else one
        forms = [
            root['$defs'][form['$ref'].split('/')[-1]] if '$ref' in form else form for form in full.get('anyOf', [])
        ]
        default = full.get('default')
        shown = '' if default in (None, '') else f'`{json.dumps(default)}`'.replace('"', '')
        shown = 'required' if name in schema.get('required', ()) else shown
        words = in_words({'anyOf': forms} if forms else full)
        description = full.get('description', '').replace('|', '\\|')
        made.append(f'| `{key}` | {words} | {shown} | {description} |')
        for form in [full, *forms]:
            made += rows(form, root, f'{key}.')
            made += [] if name == 'layers' else rows(form.get('items', {}), root, f'{key}.0.')
    return made


@cache
def keys_by_topic() -> dict[str, list[str]]:
    """Lines for the keys of a schedule file, in the order of the schema, by the first topic that takes each."""
    schema = schedule_schema()
    sorted_in: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for line in rows(schema, schema):
        key = line.split('`')[1]
        topic = next(topic for topic, taken in TOPICS.items() if re.match(taken, key))
        sorted_in[topic].append(line)
    return sorted_in


def schedule_table_keys() -> list[str]:
    """All keys of a schedule file."""
    return [line.split('`')[1] for lines in keys_by_topic().values() for line in lines]


def topic_table(topic: str) -> list[str]:
    """The table of a topic."""
    return [topic_head(topic), '|---|---|---|---|', *keys_by_topic()[topic]]


def topic_head(topic: str) -> str:
    """The first line of the table of a topic."""
    return f'| {topic} | type | default | meaning |'


def held(path: Path, first: str, more: str = '') -> tuple[int, list[str]]:
    """The lines of a table and where it begins, by the start of its first line and of the others."""
    lines = path.read_text(encoding='utf-8').split('\n')
    start = next(place for place, line in enumerate(lines) if line.startswith(first))
    end = next(place for place in range(start, len(lines)) if not lines[place].startswith(more or first))
    return start, lines[start:end]


IMPORTED = '| settings of | mapped | no effect | not modelled | unknown | what is not modelled |'


def imported_table() -> list[str]:
    """A line for each public file whose settings are read: how many are mapped, and what is listed."""
    lines = [IMPORTED, '|---|---|---|---|---|---|']
    for name, source in SOURCES.items():
        told = imported(FOLDER / name, given=given_beside(name), model=model_beside(name)).lines
        counts = [sum(line.outcome == outcome for line in told) for outcome in (MAPPED, IDLE, NOT_MODELLED, UNSEEN)]
        missing = ', '.join(dict.fromkeys(f'`{line.name}`' for line in told if line.outcome == NOT_MODELLED))
        lines.append(f'| {source} | {" | ".join(map(str, counts))} | {missing} |')
    return lines


LAUNCHERS = {
    'Megatron-LM': 'megatron', 'MindSpeed, beside these': 'mindspeed',
    'Megatron-DeepSpeed, beside these': 'megatron_deepspeed', 'torchtitan': 'torchtitan',
    'DeepSpeed': 'deepspeed', 'MindFormers': 'mindformers',
    'NeMo and Megatron-Bridge, beside Megatron-LM': 'nemo', 'GPT-NeoX, beside Megatron-DeepSpeed': 'gpt_neox',
    'Accelerate, beside DeepSpeed': 'accelerate', 'LLaMA-Factory, beside DeepSpeed': 'llama_factory',
}  # fmt: skip


def settings_table(first: str, lines: list[str]) -> list[str]:
    """The lines of a launcher's table below its first one."""
    return [first, '|---' * (first.count('|') - 1) + '|', *lines]


STACKED = '| stack | extends | what it is |'


def stack_table() -> list[str]:
    """A line for each stack that comes with simpar."""
    found = [STACKED, '|---|---|---|']
    for path in sorted(DOCS.parent.glob('hw_profiles/stacks/*.yaml')):
        told = yaml.safe_load(path.read_text(encoding='utf-8'))
        above = f'`{told["extends"]}`' if 'extends' in told else ''
        found.append(f'| `{told["name"]}` | {above} | {told["description"]} |')
    return found


OFFERED = '| overlap | frameworks (stacks) | needs | off | on | what they call it |'


def overlap_table() -> list[str]:
    """A line for each overlap that a framework offers."""
    rows = read_csv(overlaps_file)
    cells = [
        (row['name'], _listed(row['stacks']), row['needs'] and f'`{row["needs"]}`', f'`{row["off"]}`',
         ' or '.join(f'`{way}`' for way in row['on'].split(' | ')), row['called'])
        for row in rows
    ]  # fmt: skip
    return [OFFERED, '|---|---|---|---|---|---|', *(f'| {" | ".join(line)} |' for line in cells)]


def _listed(words: str) -> str:
    return ', '.join(f'`{word}`' for word in words.split())


WORD = '| word of the screen | meaning |'


def legend_table() -> list[str]:
    """A line for each word that `--legend` explains."""
    rows = read_csv(DOCS.parent / 'simpar' / 'commands' / 'legend.csv')
    return [WORD, '|---|---|', *(f'| `{row["word"]}` | {row["meaning"]} |' for row in rows)]


READ = '| `model_type` | keys that are read | only with these values | what all its models have |'
WITHOUT = '| keys without effect | why |'
LATER = '| `model_type` that is refused | what it has |'


def read_table() -> list[str]:
    """A line for each family."""
    return [READ, '|---|---|---|---|', *(_line(name, family) for name, family in families.FAMILIES.items())]


def ignored_table() -> list[str]:
    """A line for each reason to read no key."""
    return [
        WITHOUT,
        '|---|---|',
        *(f'| {_keys(keys.split())} | {why} |' for why, keys in families.WITHOUT_EFFECT.items()),
    ]


def later_table() -> list[str]:
    """A line for each part that is not modelled yet."""
    return [LATER, '|---|---|', *(f'| {_keys(names.split())} | {what} |' for what, names in families.NOT_YET.items())]


def _line(name: str, family: families.Family) -> str:
    values = {**family.only, **families.ONLY, **family.only}
    only = ', '.join(f'`{key}`: {" or ".join(map(families.shown, modelled))}' for key, modelled in values.items())
    has = ', '.join(f'`{key}: {families.shown(value)}`' for key, value in family.always.items())
    return f'| `{name}` | {_keys(dict.fromkeys((*family.copied, *family.reads)))} | {only} | {has} |'


def _keys(keys: Iterable[str]) -> str:
    return ', '.join(f'`{key}`' for key in keys)


def mapped_table(head: str, launcher: str) -> list[str]:
    """A line for each setting of a launcher that has a key."""
    rows = [
        (f'`{row.setting}`', f'`{row.key}`', _conversion(row), row.default, row.since, row.idle, row.note)
        for row in table_of(launcher).rows.values()
    ]
    return settings_table(head, [f'| {" | ".join(row)} |' for row in rows])


def _conversion(row: SettingRow) -> str:
    """How the value of a key comes about."""
    if row.value.startswith(('count', 'number')):
        return row.words or 'the same number'
    return row.words or {'switch': 'true'}.get(row.value, row.value.removeprefix('= ').partition(', *: ')[0])


def listed_table(head: str, launcher: str) -> list[str]:
    """A line for each setting that has none."""
    named = [(row, ', '.join(f'`{one}`' for one in row.setting.split())) for row in table_of(launcher).listed]
    return settings_table(head, [f'| {names} | {row.outcome} | {row.note} |' for row, names in named])


def aten_table() -> list[str]:
    """The lines of the table in the docs: operators of one rule in one row."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, row in ATEN.items():
        bound = {'streaming': 'bytes moved', 'view': 'nothing: a view', 'product': 'matrix units',
                 'attention': 'its own table', 'convolution': 'matrix units'}[row.price]  # fmt: skip
        alike.setdefault((row.sharded, row.saves, bound), []).append(f'`{name}`')
    head = [
        '| aten operators | what may be sharded | the backward keeps of its inputs | bound by |',
        '|---|---|---|---|',
    ]
    return [*head, *(f'| {", ".join(names)} | {" | ".join(told)} |' for told, names in alike.items())]


TABLES = (
    (DOCS / 'reading.md', WORD, '|', legend_table),
    (DOCS / 'overlaps.md', OFFERED, '|', overlap_table),
    *OF_OVERLAPS,
    *(
        (LAYER_KEYS if topic == NETWORK else KEYS, topic_head(topic), '|', partial(topic_table, topic))
        for topic in TOPICS
    ),
    (STRATEGIES, HEAD[0], '|', operator_table),
    (MODELS, READ, '|', read_table),
    (MODELS, WITHOUT, '|', ignored_table),
    (MODELS, LATER, '|', later_table),
    (IMPORT, IMPORTED, '|', imported_table),
    (IMPORT, SCORE, '|', score_table),
    (STACKS, STACKED, '|', stack_table),
    *(
        (SETTINGS, head, '|', partial(made, head, launcher))
        for name, launcher in LAUNCHERS.items()
        for head, made in (
            (f'| {name} | key | conversion | default | since | no effect | note |', mapped_table),
            (f'| {name}: listed | reason | what it is |', listed_table),
        )
    ),
    (MODULES, '| aten operators', '|', aten_table),
)


def write(tables: Iterable[tuple[Path, str, str, Callable[[], list[str]]]]) -> None:
    """Write tables into their pages."""
    for path, first, more, made in tables:
        lines = path.read_text(encoding='utf-8').split('\n')
        start, old = held(path, first, more)
        lines[start : start + len(old)] = made()
        path.write_text('\n'.join(lines), encoding='utf-8')


if __name__ == '__main__':
    write(TABLES)
