"""The door: YAML text becomes frozen dataclasses, or all its problems, each with file:line and a remedy."""

from simpar.document.complain import Terms as Terms
from simpar.document.load import Bytes as Bytes
from simpar.document.load import Flops as Flops
from simpar.document.load import OneOf as OneOf
from simpar.document.load import Rate as Rate
from simpar.document.load import Seconds as Seconds
from simpar.document.load import Short as Short
from simpar.document.load import build as build
from simpar.document.load import dump as dump
from simpar.document.load import json_schema as json_schema
from simpar.document.load import one_screen as one_screen
from simpar.document.tree import Source as Source
from simpar.document.tree import Tree as Tree
from simpar.document.tree import is_path as is_path
from simpar.document.tree import override as override
from simpar.document.tree import put as put
from simpar.document.tree import read as read
from simpar.document.tree import text_of as text_of
from simpar.document.tree import tree_of as tree_of
from simpar.errors import Key as Key
from simpar.errors import dotted as dotted
