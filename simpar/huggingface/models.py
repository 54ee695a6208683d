"""Sizes of known models, as keys of a ``transformer:``: by name, and by flavour for torchtitan (``models.yaml``)."""

from typing import Any, Final

from simpar.huggingface.families import table_of

Sizes = dict[str, Any]
_TABLE: Final = table_of('models')


def _sizes(said: Sizes | str) -> Sizes:
    """A model's sizes over those of its form, in the order of the form."""
    own = _TABLE['models'][said] if isinstance(said, str) else said
    return {**_TABLE['forms'][own['form']], **{key: value for key, value in own.items() if key != 'form'}}


MODELS: Final[dict[str, Sizes]] = {name: _sizes(name) for name in _TABLE['models']}
"""All that ``workload.model`` and ``simpar init`` know by name."""
FLAVOURS: Final[dict[str, dict[str, Sizes]]] = {
    name: {size: _sizes(said) for size, said in sizes.items()} for name, sizes in _TABLE['flavours'].items()
}
"""By torchtitan's ``model.name`` and ``model.flavor``."""


def flavour(name: str, size: str) -> Sizes | None:
    """Sizes of a flavour; what stands behind ``_flex_attn`` and the like is the same model with another kernel."""
    bare = size
    for tail in ('_flex_attn', '_varlen_attn', '_flex', '_varlen'):
        bare = bare.removesuffix(tail)
    return FLAVOURS.get(name.removesuffix('_ft'), {}).get(bare)
