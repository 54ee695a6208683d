"""The JSON Schema of ``workload.model`` and of what may stand beside it, for completion in editors."""

from __future__ import annotations

from typing import Any

BESIDE = 'x-beside'
"""Marks a key that stands in the workload only where ``model`` does."""


def with_model(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of schedule files, and in it the ways to write a model by its config.

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
        name: {**{word: told for word, told in one.items() if word != 'default'}, BESIDE: 'model'}
        for name, one in transformer['properties'].items()
    }
    made = {
        **workload,
        'properties': {'model': model, **workload['properties'], **beside},
        'oneOf': [{'required': ['model']}, *workload['oneOf']],
        'dependentRequired': {name: ['model'] for name in beside},
    }
    return {**schema, '$defs': {**schema['$defs'], 'Workload': made}}
