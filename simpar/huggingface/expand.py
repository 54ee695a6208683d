"""``workload: {model: config.json, ...}`` written out: its keys as those of a ``transformer:``, with their own lines.

A model that simpar knows by name, as ``model: llama3-8b``, is written out in the same way.
What stands beside ``model`` goes before what the config says. The tree that comes of it is read as any other, and what
is wrong is told at the line that says it, of the config or of the schedule.
"""

import difflib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from simpar.document import Key, Tree, read
from simpar.errors import Problem, ScheduleError, refusal
from simpar.huggingface import rules
from simpar.huggingface.families import FAMILIES, IGNORED, MODELS, NOT_YET, ONLY, SAME, Family, shown
from simpar.huggingface.rules import Config, Entry, Refused
from simpar.workload import Transformer, Workload

MODEL_KEY: Final[Key] = ('workload', 'model')
TRANSFORMER: Final[Key] = ('workload', 'transformer')
KEYS: Final = frozenset(one.name for one in fields(Transformer))
"""What may stand beside ``model``."""
OWN: Final = frozenset(one.name for one in fields(Workload))
OTHERS: Final = ('transformer', 'network', 'module')
_WEIGHTS: Final = frozenset({'.safetensors', '.bin', '.pt', '.pth', '.gguf'})
_FROM_THE_HUB: Final = 'names of the hub are not looked up: download its config.json, and write the path of that file'
TEXT: Final = 'text_config'
HEADS: Final = ('ForCausalLM', 'LMHeadModel')
"""What architectures that are decoders with a head of words end with."""
BESIDE: Final = 'x-beside'
"""Marks a key that stands in the workload only where ``model`` does."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """A tree without ``model``.

    Arguments: ``notes``, keys of the config that were not read; ``words``, for keys of the ``transformer`` those that
    say them, of the config or beside ``model``; ``told``, those of the config.
    """

    tree: Tree
    notes: tuple[str, ...] = ()
    words: Mapping[Key, str] = field(default_factory=dict)
    told: frozenset[Key] = frozenset()


def expanded(tree: Tree, folder: Path) -> Expanded:
    """The tree with what its ``workload.model`` names in the place of that key; the same tree where it names none.

    Arguments: ``folder``, where the path starts, unless it was typed: then it starts where the user is.
    """
    workload = tree.get(('workload',))
    if isinstance(tree.root, dict) and 'model_type' in tree.root and workload is None:
        what = "a model's config, not a schedule"
        raise refusal(tree.where(()), what, 'write one of it: simpar init --model FILE --output YAML')
    if not isinstance(workload, dict) or 'model' not in workload:
        return Expanded(tree)
    where = tree.where(MODEL_KEY)
    typed = where.startswith(('--set ', '--sweep '))
    try:
        path = _path(workload, Path() if typed else folder)
        if workload['model'] in MODELS and not path.is_file():
            says = [Entry(*one) for one in MODELS[workload['model']].items()]
            return _put(tree, Tree(root={}, origins={(): where}), says, [], ())
        config = _config(path)
        family, wrong = _family(config)
    except ScheduleError as error:
        problems = [problem if problem.where else problem.at(where, MODEL_KEY) for problem in error.problems]
        return Expanded(_refused(tree, problems))
    says = list(_says(config, family, workload.keys() & KEYS, wrong))
    return _put(tree, config, says, wrong, _notes(config, family))


def in_its_words(problem: Problem, words: Mapping[Key, str]) -> Problem:
    """A problem of a key that a config says, told by the config's own key."""
    for key, word in words.items():
        name = '.'.join(map(str, key))
        if problem.what.startswith((f'{name}: ', f'{name}.')):
            return replace(problem, what=word + problem.what[len(name) :])
    return problem


# reading


def _path(workload: dict[str, Any], folder: Path) -> Path:
    model = workload['model']
    both = [name for name in OTHERS if name in workload]
    if both:
        what = f'stands beside {both[0]}'
        raise refusal('', what, 'write one of them; what the config does not say goes beside model')
    if not isinstance(model, str) or not model or '\0' in model:
        raise refusal('', 'not a path', 'write the path of a config.json, e.g. llama3_8b.json')
    return folder / model


def _config(path: Path) -> Tree:
    """The tree of a config; raises ``ScheduleError``."""
    try:
        kind = os.stat(path).st_mode
    except OSError:
        if path.suffix not in {'.json', '.yaml', '.yml', *_WEIGHTS}:
            raise ScheduleError(_unknown(path)) from None
        # ``read`` tells what is wrong with it.
        kind = stat.S_IFREG
    if path.suffix in _WEIGHTS:
        raise refusal(path, 'holds weights', 'name the config.json that lies beside it')
    # A pipe or a device would be waited for, or never end.
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise refusal(path, 'not a regular file', 'name a config.json')
    tree = read(path)
    if tree.problems:
        raise ScheduleError(list(tree.problems))
    if not isinstance(tree.root, dict):
        raise refusal(tree.where(()), 'not a mapping', 'name a config.json of Hugging Face')
    text = tree.root.get(TEXT)
    if isinstance(text, dict) and isinstance(text.get('model_type'), str):
        # The decoder of a model of texts and pictures, by itself.
        below = {key[1:]: place for key, place in tree.origins.items() if key[:1] == (TEXT,)}
        return Tree(root=text, origins={(): tree.where((TEXT,)), **below})
    return tree


def _unknown(path: Path) -> Problem:
    """What is neither a file nor the name of a model."""
    if not path.parent.is_dir():
        return Problem(str(path), 'no such file', _FROM_THE_HUB)
    near = difflib.get_close_matches(path.name[:60].lower(), MODELS, 1)
    remedy = 'write the path of a config.json, or a name, e.g. llama3-8b (docs/my_model.md has all)'
    what = f'neither a file nor a model known by name (got "{path.name[:40]}")'
    return Problem('', what, f'did you mean {near[0]}?' if near else remedy)


def _family(config: Tree) -> tuple[Family, list[Problem]]:
    """The family of a config, and what is wrong with its architecture; raises ``ScheduleError``."""
    name = config.get(('model_type',))
    silent = name is None
    name = SAME.get(name, name) if isinstance(name, str) else None
    families = ', '.join(FAMILIES)
    if name is None or name not in FAMILIES:
        place = config.where(('model_type',))
        later = next((what for what, names in NOT_YET.items() if name in names.split()), '') if name else ''
        if name is None:
            raise refusal(place, f'model_type: {"missing" if silent else "not a name"}', f'write one of {families}')
        what = f'model_type: not yet: {name} ({later})' if later else f'model_type: not known (got {name[:40]!r})'
        instead = f'one of {families}; or predict the module itself: --module PKG:FUNCTION (docs/my_model.md)'
        raise refusal(place, what, instead)
    return FAMILIES[name], list(_architecture(config))


def _architecture(config: Tree) -> Iterator[Problem]:
    names = config.get(('architectures',))
    if isinstance(names, list) and names and not any(str(name).endswith(HEADS) for name in names):
        what = f'architectures: not a decoder with a head of words (got {str(names[0])[:40]})'
        yield Problem(config.where(('architectures',)), what, 'name the config of a ...ForCausalLM')


def _says(config: Tree, family: Family, beside: Collection[str], wrong: list[Problem]) -> Iterator[Entry]:
    """What a config says, in keys of a ``transformer``; what is not modelled is added to the problems.

    Arguments: ``beside``, keys that stand beside ``model``: what the config says of them is not looked at.
    """
    read_as = Config(config.root, family.defaults)
    missing = [key for key in family.needed if read_as[key] is None and family.copied[key] not in beside]
    wrong += [Problem(config.where((key,)), f'{key}: missing', f'add {key}') for key in missing]
    for name, value in family.always.items():
        yield Entry(name, value)
    for key, name in family.copied.items():
        if read_as[key] is not None:
            yield Entry(name, read_as[key], key)
    for key, values in {**ONLY, **family.only}.items():
        value = read_as[key]
        if key in config.root and not any(_is_one(value, one) for one in values):
            what = f'{key}: not modelled (got {str(value)[:40]})'
            wrong.append(Problem(config.where((key,)), what, f'only {" or ".join(map(shown, values))} is'))
    for name, arguments in family.rules.items():
        rule = getattr(rules, name)
        says = rule(read_as, **arguments) if isinstance(arguments, dict) else rule(read_as, *arguments)
        yield from _ruled(says, config, beside, wrong)


def _ruled(says: Iterator[Entry], config: Tree, beside: Collection[str], wrong: list[Problem]) -> Iterator[Entry]:
    try:
        yield from says
    except Refused as refused:
        if refused.of not in beside:
            what = f'{refused.key}: {refused.what}'
            wrong.append(Problem(config.where((refused.key,)), what, refused.instead))


def _is_one(value: Any, modelled: Any) -> bool:
    """Whether a value is one that is modelled; of a mapping only the keys of that one are looked at."""
    if modelled and isinstance(modelled, dict):
        return isinstance(value, dict) and all(value.get(key) == one for key, one in modelled.items())
    return value is modelled or (value == modelled and value is not False)


def _notes(config: Tree, family: Family) -> tuple[str, ...]:
    """The keys that nobody read; null and false switch nothing on."""
    unread = [
        f'{config.where((key,))}: {key[:40]}'
        for key, value in config.root.items()
        if key not in family.known | IGNORED | ONLY.keys() and value is not None and value is not False
    ]
    note = f'keys of the config that were not read: {", ".join(unread)}; write what matters beside model'
    return (note,) if unread else ()


# writing


def _put(tree: Tree, config: Tree, says: list[Entry], wrong: list[Problem], notes: tuple[str, ...]) -> Expanded:
    where = tree.where(MODEL_KEY)
    workload = dict(tree.root['workload'])
    del workload['model']
    beside = {key: workload.pop(key) for key in list(workload) if key in KEYS}
    wrong = [*wrong, *_misspelt(tree, workload)]
    values = {one.key: one.value for one in says}
    origins = dict(tree.origins)
    words = {}
    for one in says:
        at = (*TRANSFORMER, one.key)
        origins[at] = config.where((one.by,)) if one.by else config.where(('model_type',))
        words[at] = one.by or one.key
    for key, value in beside.items():
        # Keys of a group stand beside those that the config says.
        said = values.get(key)
        values[key] = {**said, **value} if isinstance(said, dict) and isinstance(value, dict) else value
        below = {place: line for place, line in origins.items() if place[:2] == ('workload', key)}
        origins.update({(*TRANSFORMER, *place[1:]): line for place, line in below.items()})
        words[(*TRANSFORMER, key)] = f'workload.{key}'
    if 'sequence' not in values:
        most = config.get(('max_position_embeddings',)) or config.get(('n_positions',))
        more = f' (the config says at most {most})' if isinstance(most, int) else ''
        what = f'{".".join(map(str, MODEL_KEY))}: how many tokens a sample has is not told'
        wrong = [*wrong, Problem(where, what, f'write e.g. sequence: 2048 beside model{more}')]
    origins[TRANSFORMER] = where
    root = {**tree.root, 'workload': {'transformer': values, **workload}}
    refused = tree.refused | ({TRANSFORMER} if wrong else set())
    made = replace(tree, root=root, origins=origins, problems=(*tree.problems, *wrong), refused=frozenset(refused))
    config_keys = frozenset((*TRANSFORMER, one.key) for one in says if one.key not in beside)
    notes += tuple(f'{config.where((one.by,))}: {one.by}: {one.note}' for one in says
                   if one.note and one.key not in beside)  # fmt: skip
    return Expanded(made, notes, words, config_keys)


def _misspelt(tree: Tree, workload: dict[str, Any]) -> Iterator[Problem]:
    """Keys beside ``model`` that are nearly one of a ``transformer``; they are taken out of the workload."""
    for key in [key for key in workload if key not in OWN]:
        near = difflib.get_close_matches(key[:60], sorted(KEYS), 1, 0.75)
        if near:
            del workload[key]
            at = ('workload', key)
            yield Problem(at, 'unknown key', f'did you mean {near[0]}?').at(tree.where(at))


def _refused(tree: Tree, problems: list[Problem]) -> Tree:
    """A tree whose model cannot be read: nothing more is told of it."""
    workload = {key: value for key, value in tree.root['workload'].items() if key != 'model' and key not in KEYS}
    root = {**tree.root, 'workload': {'transformer': None, **workload}}
    refused = tree.refused | {TRANSFORMER}
    return replace(tree, root=root, problems=(*tree.problems, *problems), refused=frozenset(refused))


# the schema


def with_model(schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of schedule files, and in it, for completion in editors, the ways to write a model by its config.

    Arguments: ``schema``, without them.
    """
    workload, transformer = (schema['$defs'][name] for name in ('Workload', 'Transformer'))
    model = {
        'type': 'string',
        'description': 'path of a Hugging Face config.json, from the folder of this file, or a name such as llama3-8b; '
        'beside it any key of transformer, which goes before what the config says',
        'examples': ['llama3-8b', 'llama3_8b.json'],
    }
    # Not defaults, for the config comes before these.
    beside = {
        name: {**{word: entry for word, entry in one.items() if word != 'default'}, BESIDE: 'model'}
        for name, one in transformer['properties'].items()
    }
    made = {
        **workload,
        'properties': {'model': model, **workload['properties'], **beside},
        'oneOf': [{'required': ['model']}, *workload['oneOf']],
        'dependentRequired': {name: ['model'] for name in beside},
    }
    return {**schema, '$defs': {**schema['$defs'], 'Workload': made}}
