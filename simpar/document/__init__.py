"""The door: YAML text becomes frozen dataclasses, or all its problems, each with file:line and a remedy."""

from simpar.document.complain import Terms
from simpar.document.kinds import Bytes, Flops, OneOf, Quantity, Rate, Seconds, Short
from simpar.document.load import Complaint, build, dump, json_schema, load, one_screen
from simpar.document.tree import Key, Tree, dotted, override, put, read

__all__ = [
    'Bytes',
    'Complaint',
    'Flops',
    'Key',
    'OneOf',
    'Quantity',
    'Rate',
    'Seconds',
    'Short',
    'Terms',
    'Tree',
    'build',
    'dotted',
    'dump',
    'json_schema',
    'load',
    'one_screen',
    'override',
    'put',
    'read',
]
