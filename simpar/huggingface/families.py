"""Families of models: what the configs of a ``model_type`` say by which key (``families.yaml``); known sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simpar.document.tree import parse

_PARTS: Final = ('copied', 'always', 'defaults', 'only')
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Configs of one ``model_type``.

    Arguments:
        copied: keys whose value a key of ``transformer:`` takes as it is; null leaves that at its default.
        needed: of these, those that have no default.
        always: keys of ``transformer:`` that all models have.
        defaults: of keys that a file may leave out, as transformers has them.
        only: keys that change the model, and the values of them that are modelled.
        rules: functions of ``rules.py`` for all other keys that are read, with what they are told.
        reads: those keys.
    """

    copied: Mapping[str, str]
    needed: tuple[str, ...]
    always: Mapping[str, Any]
    defaults: Mapping[str, Any]
    only: Mapping[str, list[Any]]
    rules: Mapping[str, Any]
    reads: tuple[str, ...]

    @property
    def known(self) -> frozenset[str]:
        """Every key that it looks at."""
        return frozenset((*self.copied, *self.only, *self.reads))


def table_of(name: str) -> dict[str, Any]:
    """A table of this folder."""
    root: dict[str, Any] = parse((_HERE / f'{name}.yaml').read_text(encoding='utf-8'), name).root
    return root


def _families(table: Mapping[str, Any]) -> dict[str, Family]:
    made: dict[str, Family] = {}
    for name, own in table['families'].items():
        base, without = made.get(own.get('extends')), own.get('without', ())
        parts: dict[str, dict[str, Any]] = {}
        for part in _PARTS:
            inherited = getattr(base, part) if base else {}
            parts[part] = {key: value for key, value in inherited.items() if key not in without} | own.get(part, {})
        needed = tuple(own['needed']) if base is None else base.needed
        rules = own['rules'].values()
        reads = [key for one in rules for key in (one.values() if isinstance(one, dict) else one)]
        reads += [key for rule in own['rules'] for key in table['read by'].get(rule, ())]
        reads += own.get('reads', [])
        made[name] = Family(**parts, needed=needed, rules=own['rules'], reads=tuple(dict.fromkeys(reads)))
    return made


TABLE: Final = table_of('families')
FAMILIES: Final[Mapping[str, Family]] = _families(TABLE)
"""By ``model_type``."""
ONLY: Final[Mapping[str, list[Any]]] = TABLE['only']
"""Keys of any config that change the model, and the values of them that are modelled."""
WITHOUT_EFFECT: Final[Mapping[str, str]] = TABLE['without effect']
"""Keys that change nothing of a training step, by why."""
IGNORED: Final = frozenset(' '.join(WITHOUT_EFFECT.values()).split())
SAME: Final[Mapping[str, str]] = {one: of for of, names in TABLE['same as'].items() for one in names.split()}
"""Other values of ``model_type``, and the family that has the same keys and the same model."""
NOT_YET: Final[Mapping[str, str]] = TABLE['not yet']
"""Known values of ``model_type`` that cannot be read yet, by what they have."""


def shown(value: Any) -> str:
    """A value as a config has it."""
    if isinstance(value, dict):
        return f'{{{", ".join(f"{key}: {one}" for key, one in value.items())}}}'
    if isinstance(value, list):
        return f'[{", ".join(value)}]'
    return 'null' if value is None else str(value).lower()


# sizes of known models, as keys of a ``transformer:``: by name, and by flavour for torchtitan (``models.yaml``)

Sizes = dict[str, Any]
_SIZES: Final = table_of('models')


def _sizes(said: Sizes | str) -> Sizes:
    """A model's sizes over those of its form, in the order of the form."""
    own = _SIZES['models'][said] if isinstance(said, str) else said
    return {**_SIZES['forms'][own['form']], **{key: value for key, value in own.items() if key != 'form'}}


MODELS: Final[dict[str, Sizes]] = {name: _sizes(name) for name in _SIZES['models']}
"""All that ``workload.model`` and ``simpar init`` know by name."""
FLAVOURS: Final[dict[str, dict[str, Sizes]]] = {
    name: {size: _sizes(said) for size, said in sizes.items()} for name, sizes in _SIZES['flavours'].items()
}
"""By torchtitan's ``model.name`` and ``model.flavor``."""


def flavour(name: str, size: str) -> Sizes | None:
    """Sizes of a flavour; what stands behind ``_flex_attn`` and the like is the same model with another kernel."""
    bare = size
    for tail in ('_flex_attn', '_varlen_attn', '_flex', '_varlen'):
        bare = bare.removesuffix(tail)
    return FLAVOURS.get(name.removesuffix('_ft'), {}).get(bare)
