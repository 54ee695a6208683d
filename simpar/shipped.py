"""Shipped: the schedules that come with simpar, in the package or beside it in a checkout."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from simpar.errors import Problem, refusal, refuse
from simpar.files import write_atomically


@dataclass(frozen=True, slots=True)
class Example:
    """A schedule that comes with simpar, and the comment that it begins with."""

    path: Path

    @property
    def name(self) -> str:
        """What it is called."""
        return self.path.stem

    @property
    def text(self) -> str:
        """The file."""
        return self.path.read_text(encoding='utf-8')

    @property
    def about(self) -> str:
        """What it asks: the comment at its top, in one line."""
        lines = []
        for line in self.text.splitlines():
            if not line.startswith('#'):
                break
            lines.append(line.lstrip('# ').rstrip())
        return ' '.join(lines)

    @property
    def beside(self) -> tuple[Path, ...]:
        """Other files that it reads."""
        return tuple(path for path in sorted(self.path.parent.glob('*.json')) if path.name in self.text)


def example_folder() -> Path:
    """Where they are."""
    return folder('examples')


def measured_folder() -> Path:
    """Where the published steps are that `simpar validate` reads."""
    return folder('measured_steps')


def notebooks() -> list[Path]:
    """The notebooks that come with simpar."""
    return sorted(folder('notebooks').glob('*.ipynb'))


def folder(name: str) -> Path:
    """A folder that comes with simpar."""
    here = Path(__file__).parent
    # A wheel has the folder inside the package, a checkout beside it.
    return next((place for place in (here / name, here.parent / name) if place.is_dir()), here)


def examples() -> list[Example]:
    """All of them, by name."""
    return [Example(path) for path in sorted(example_folder().glob('*.yaml'))]


def example(name: str) -> Example:
    """One by its name, with or without ``.yaml``; raises ``ScheduleError`` that names the nearest."""
    by_name = {one.name: one for one in examples()}
    wanted = name.removesuffix('.yaml')
    if wanted not in by_name:
        near = difflib.get_close_matches(wanted, by_name, 1)
        hint = f'did you mean {near[0]}?' if near else 'write one of those that `simpar examples` lists'
        raise refusal('simpar examples', f'no example of this name (got {name})', hint)
    return by_name[wanted]


def copy_examples(wanted: list[Example], folder: Path, more: list[Path] | None = None) -> list[Path]:
    """Write examples, what they read, and ``more`` files into a folder, which is made.

    Raises ``ScheduleError`` that names all files that are there already, before any is written.
    """
    sources = sorted({path for one in wanted for path in (one.path, *one.beside)} | set(more or ()))
    targets = [folder / path.name for path in sources]
    there = [
        Problem(str(path), 'this file is there already', 'name another folder') for path in targets if path.exists()
    ]
    refuse(there)
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in zip(sources, targets, strict=True):
        write_atomically(target, source.read_bytes())
    return targets
