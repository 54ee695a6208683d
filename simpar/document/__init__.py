"""The door: YAML text becomes frozen dataclasses, or all its problems, each with file:line and a remedy."""

from simpar.document.complain import Terms
from simpar.document.kinds import Bytes, Flops, OneOf, Quantity, Rate, Seconds, Short
from simpar.document.load import build, dump, json_schema, load, one_screen
from simpar.document.tree import Source, Tree, is_path, override, put, read
from simpar.errors import Key, dotted

__all__ = [
    'Bytes',
    'Flops',
    'Key',
    'OneOf',
    'Quantity',
    'Rate',
    'Seconds',
    'Short',
    'Source',
    'Terms',
    'Tree',
    'build',
    'dotted',
    'dump',
    'is_path',
    'json_schema',
    'load',
    'one_screen',
    'override',
    'put',
    'read',
]
