"""Methods of dataclasses that are generated when they are called first do what the others do."""

import dataclasses
import pickle
import sys

import pytest

from simpar import late_methods


def classes():
    """A class with slots, one with a default and a check, and one below it."""

    @dataclasses.dataclass(frozen=True, slots=True, order=True)
    class Point:
        """Two numbers."""

        x: int
        y: int = 2

    @dataclasses.dataclass(frozen=True)
    class Base:
        """A number with a check."""

        number: int

        def __post_init__(self):
            if self.number < 0:
                raise ValueError('negative')

    @dataclasses.dataclass(frozen=True)
    class Below(Base):
        """With a list, too."""

        items: list = dataclasses.field(default_factory=list, compare=False)

    return Point, Base, Below


@pytest.fixture
def late(monkeypatch):
    if sys.version_info >= (3, 13):
        pytest.skip('Python compiles the methods of a class at once')
    monkeypatch.setattr(dataclasses, '_create_fn', dataclasses._create_fn)
    late_methods.install()


def story(Point, Base, Below):
    """What can be asked of them, as text."""
    told = [Point(1), Point(x=3, y=4), Point(1) == Point(1, 2), Point(1) < Point(2), hash(Point(1)) == hash(Point(1))]
    told += [Point(1) == 1, dataclasses.replace(Point(5), y=6), dataclasses.astuple(Point(5)), Below(1).items]
    told += [Below(1, [2]) == Below(1), Base(1) == Below(1), {Below(3): 4}[Below(3)], Below.__init__.__qualname__]
    for wrong in (Point, lambda: Point(1, 2, 3), lambda: Below(-1), lambda: setattr(Point(1), 'x', 2)):
        with pytest.raises((TypeError, ValueError, AttributeError)) as error:
            wrong()
        told.append(str(error.value))
    return [repr(one) for one in told]


def test_late_methods_do_what_the_others_do(late, monkeypatch):
    found = classes()
    first, second = story(*found), story(*found)
    monkeypatch.undo()
    assert first == second == story(*classes())


def test_a_method_is_generated_once_and_only_where_it_is_called(late):
    Point, Base, Below = classes()
    waiting = Point.__init__, Point.__repr__
    Point(1)
    assert (Point.__init__ is waiting[0], Point.__repr__ is waiting[1]) == (False, True)
    generated = Point.__init__
    Point(2)
    assert Point.__init__ is generated
    Below(1)
    assert Base.__init__ is not Below.__init__


def test_objects_of_a_class_with_slots_can_be_pickled(late):
    Point, _, _ = classes()
    globals()['Point'] = Point
    Point.__qualname__ = 'Point'
    assert pickle.loads(pickle.dumps(Point(7))) == Point(7)


def test_a_python_with_other_insides_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(dataclasses, '_create_fn', None, raising=False)
    monkeypatch.setattr(late_methods, '_generate', lambda cls, fields: None)
    late_methods.install()
    assert dataclasses._create_fn is None
