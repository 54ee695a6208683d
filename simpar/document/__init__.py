"""The door: YAML text becomes frozen dataclasses, or all its problems, each with file:line and a remedy."""

from simpar.document.load import Bytes, Flops, OneOf, Rate, Seconds, Short, Terms, build, dump, json_schema, one_screen
from simpar.document.tree import Source, Tree, is_path, override, put, read, text_of, tree_of
from simpar.errors import Key, dotted
