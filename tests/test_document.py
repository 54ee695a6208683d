"""The door: YAML 1.2's scalars, limits on what a file may do, strict dataclasses, units, settings, JSON Schema."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from every import draws
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import Field
from tables import load_table

from simpar import document
from simpar.errors import Problem, ProfileError, ScheduleError
from simpar.units import UNITS, parse

FUZZ = draws(80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    side: document.Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    radius: document.Seconds = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    count: Annotated[int, Field(alias='number', ge=1, le=9, description='how many')] = 1
    share: float = 0.5
    shapes: tuple[Annotated[Square | Circle, document.OneOf(square=Square, circle=Circle)], ...] = ()
    sizes: Mapping[Literal['small', 'large'], document.Bytes] = field(default_factory=dict)
    rate: document.Rate | None = None
    peak: document.Flops | Literal['auto'] = 'auto'
    inner: Annotated[Circle, document.Short('radius')] = Circle()
    even: bool = False

    def __post_init__(self) -> None:
        if self.share > 1:
            raise ValueError('more than the whole; write at most 1')


def load(path: Path, kind: type, *, overrides: tuple[str, ...] = (), error: Any = ScheduleError, **how: Any) -> Any:
    """A file as a dataclass, with no more problems than fit on a screen."""
    tree = document.override(document.read(path, error=error), overrides)
    try:
        return document.build(tree, kind, **how)
    except ScheduleError as wrong:
        raise error(document.one_screen(wrong.problems)) from None


def paper(tmp_path: Path, text: str, *overrides: str, **how: Any) -> Paper:
    path = tmp_path / 'paper.yaml'
    path.write_text(text, encoding='utf-8')
    return load(path, Paper, overrides=overrides, **how)


def refused(tmp_path: Path, text: str, *overrides: str, **how: Any) -> list[str]:
    """The problems of a text, without the path."""
    with pytest.raises(ScheduleError) as caught:
        paper(tmp_path, text, *overrides, **how)
    return [str(problem).replace(f'{tmp_path}/paper.yaml:', '') for problem in caught.value.problems]


def root(tmp_path: Path, text: str | bytes) -> Any:
    path = tmp_path / 'tree.yaml'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return document.read(path).root


# Text


def test_the_core_schema_of_yaml_1_2(tmp_path):
    """Example 10.9 of the specification, without the infinities, and the traps of YAML 1.1."""
    text = """
A null: null
Also a null: # Empty
Not a null: ""
Booleans: [ true, True, false, FALSE ]
Integers: [ 0, 0o7, 0x3A, -19 ]
Floats: [ 0., -0.0, .5, +12e03, -2E+05, 1e-6 ]
Texts: [ on, yes, No, 1_000, 0b11, 12:30:45, 2001-12-14, 0o8, 1e, ., "1", 'true' ]
"""
    assert root(tmp_path, text) == {
        'A null': None,
        'Also a null': None,
        'Not a null': '',
        'Booleans': [True, True, False, False],
        'Integers': [0, 7, 0x3A, -19],
        'Floats': [0.0, -0.0, 0.5, 12e3, -2e5, 1e-6],
        'Texts': ['on', 'yes', 'No', '1_000', '0b11', '12:30:45', '2001-12-14', '0o8', '1e', '.', '1', 'true'],
    }


letters = st.characters(exclude_categories=('Cc', 'Cs', 'Cn', 'Co', 'Zl', 'Zp'), exclude_characters='\ufeff')
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(letters, max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(letters, min_size=1, max_size=6), inner, max_size=4)
    ),
    max_leaves=15,
)


@FUZZ
@given(tree=plain.filter(lambda tree: tree is not None))
def test_json_is_yaml(tree, tmp_path):
    assert root(tmp_path, json.dumps(tree, ensure_ascii=False)) == tree


@pytest.mark.parametrize(
    ('data', 'told'),
    [
        (b'', ':1: the file is empty; start from one of the examples'),
        (b' \n\n', ':1: the file is empty; start from one of the examples'),
        (b'a: 1\nb: \xff', ':2: not text in UTF-8; save it as UTF-8'),
        ('a: 1'.encode('utf-16'), ':1: not text in UTF-8; save it as UTF-8'),
        (b'a: 1\nb: \x00', ':2: holds the character U+0000, so it is no YAML; write text in UTF-8'),
        (b'# ' + b'x' * 2**20, ': more than 1048576 bytes; keep tables in CSV files beside it'),
        (b'[' * 10**6, ':1: more than 32 levels; write it flatter'),
        (b'a: 1\n' * 10**5, ':50000: more than 100000 values; write less'),
    ],
)
def test_files_that_are_no_yaml(data, told, tmp_path):
    with pytest.raises(ScheduleError) as caught:
        root(tmp_path, data)
    assert str(caught.value) == f'{tmp_path}/tree.yaml{told}'


def test_a_mark_of_byte_order_is_no_fault(tmp_path):
    assert root(tmp_path, b'\xef\xbb\xbfa: 1') == {'a': 1}


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / 'multi_copy.yaml').write_text('a: 1')
    for path, told in (
        (tmp_path / 'multi_copi.yaml', f'no such file; did you mean {tmp_path}/multi_copy.yaml?'),
        (tmp_path / 'zzz.yaml', 'no such file; check the path'),
        (tmp_path / 'nowhere' / 'a.yaml', f'no such file; there is no folder {tmp_path}/nowhere'),
        (tmp_path, 'a folder, not a file; name a YAML file in it'),
        (tmp_path / ('x' * 300), 'cannot be read: File name too long'),
    ):
        with pytest.raises(ScheduleError) as caught:
            document.read(path)
        assert str(caught.value) == f'{path}: {told}'
    with pytest.raises(ScheduleError, match=r'cannot be read: .*embedded null'):
        document.read('a\0b')


# Dataclasses


def test_all_kinds_of_values(tmp_path):
    text = """
number: 3
share: 1
shapes: [{square: {side: 2 ms}}, {circle: {}}]
sizes: {small: 1 KiB, large: 1.5 GB}
rate: 100 Gbit/s
peak: 256 TFLOP/s
inner: {radius: 0 s}
even: true
"""
    assert paper(tmp_path, text) == Paper(
        count=3,
        share=1.0,
        shapes=(Square(side=2e-3), Circle()),
        sizes={'small': 1024.0, 'large': 1.5e9},
        rate=12.5e9,
        peak=256e12,
        inner=Circle(radius=0.0),
        even=True,
    )
    assert paper(tmp_path, 'number: 1') == Paper()


@pytest.mark.parametrize(('text', 'told'), load_table(__file__, 'test_strict_about_kinds'))
def test_strict_about_kinds(text, told, tmp_path):
    [problem] = refused(tmp_path, text)
    assert re.fullmatch('.*'.join(re.escape(part) for part in told.split('…')), problem)


def test_prepare_and_check_and_the_error_of_the_caller(tmp_path):
    def prepare(tree: Any) -> Any:
        return {**tree, 'inner': {'radius': tree['inner']}} if isinstance(tree.get('inner'), str) else tree

    def check(value: Paper) -> Iterator[Problem]:
        if value.inner.radius > 1:
            yield Problem(('inner', 'radius'), 'too wide', 'write at most 1 s')
        if not value.shapes:
            yield Problem(('shapes',), 'no shapes', 'add one')

    assert paper(tmp_path, 'inner: 1 ms', prepare=prepare).inner == Circle(radius=1e-3)
    (tmp_path / 'paper.yaml').write_text('even: true\ninner: 2 s\n')
    with pytest.raises(ProfileError) as caught:
        load(tmp_path / 'paper.yaml', Paper, prepare=prepare, check=check, error=ProfileError)
    assert [str(problem).replace(f'{tmp_path}/paper.yaml:', '') for problem in caught.value.problems] == [
        '1: shapes: no shapes; add one',
        '2: inner.radius: too wide; write at most 1 s',
    ]


# Settings


def test_settings_go_deep_and_into_lists(tmp_path):
    (tmp_path / 'tree.yaml').write_text('a: {b: 1}\nc: [1, {d: 2}]\n')
    tree = document.override(
        document.read(tmp_path / 'tree.yaml'), ['a.x.y=[1, 2]', 'c.1.d=1e-6', 'c.0={e: on}', 'new=', 'a.b="1"']
    )
    assert tree.root == {'a': {'b': '1', 'x': {'y': [1, 2]}}, 'c': [{'e': 'on'}, {'d': 1e-6}], 'new': None}
    assert tree.where(('c', 1, 'd')) == '--set c.1.d=1e-6'
    assert tree.where(('c', 1)) == f'{tmp_path}/tree.yaml:2'
    assert tree.where(('a', 'x', 'y', 0)) == '--set a.x.y=[1, 2]'


def test_all_settings_that_are_wrong_are_told(tmp_path):
    (tmp_path / 'tree.yaml').write_text('a: {b: 1}\nc: [1]\n')
    with pytest.raises(ScheduleError) as caught:
        document.override(
            document.read(tmp_path / 'tree.yaml'), ['a', 'a.b.c=1', 'c.x=1', 'c.1=1', 'a={', 'a=*x', '=1']
        )
    assert [problem.what for problem in caught.value.problems] == [
        'not a key and a value',
        'a.b: not a mapping',
        'c: has no item x',
        'c: has no item 1',
        'not YAML: did not find expected node content',
        'a: *x refers to itself or to no anchor',
        'not a key and a value',
    ]


# Out again, and the schema

quantities = st.floats(0, 1e30, allow_subnormal=False)
PROPERTIES = {**document.json_schema(Paper)['properties'], **document.json_schema(Square)['properties']}
PROPERTIES['small'] = PROPERTIES['sizes']['additionalProperties']


@FUZZ
@given(
    value=st.builds(
        Paper,
        count=st.integers(1, 9),
        share=st.floats(-1e300, 1),
        shapes=st.lists(st.builds(Square, side=quantities) | st.builds(Circle, radius=quantities)).map(tuple),
        sizes=st.dictionaries(st.sampled_from(['small', 'large']), quantities),
        rate=st.none() | quantities.filter(bool),
        peak=st.just('auto') | quantities.filter(bool),
        inner=st.builds(Circle, radius=quantities),
        even=st.booleans(),
    )
)
def test_what_is_dumped_is_read_as_the_same(value, tmp_path):
    assert paper(tmp_path, json.dumps(document.dump(value))) == value


@FUZZ
@given(
    text=st.from_regex(r'[0-9.e+-]{1,4} ?(GB|Gbit|GiB|b|kB|us|s|min|TFLOP/s)(/s|ps)?', fullmatch=True)
    | st.builds(
        '{}{}{}'.format, st.sampled_from(['1', '.5', '1.', '1e9', '-1', '']), st.sampled_from(['', ' ']),
        st.sampled_from(sorted({unit for units in UNITS.values() for unit in units})),
    ),
    kind=st.sampled_from(['side', 'rate', 'peak', 'small']),
)  # fmt: skip
def test_the_schema_accepts_the_quantities_that_are_read(text, kind):
    schema = PROPERTIES[kind]
    pattern = next(one['pattern'] for one in [schema, *schema.get('anyOf', [])] if 'pattern' in one)
    name = {'side': 'time', 'rate': 'rate', 'peak': 'flops', 'small': 'size'}[kind]
    try:
        read_as = parse(text, name)
    except ValueError:
        read_as = math.nan
    assert (re.search(pattern, text) is not None) == (not math.isnan(read_as))
