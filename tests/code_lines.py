"""Code lines of the house: those with a token that is no comment, blank or docstring.

python -m tests.code_lines              by package, with files, the longest and the imports
python -m tests.code_lines --since REV  what a change takes out and puts in, by package
"""

import argparse
import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
PRODUCT: Final = ('simpar', 'executor')
LINES_AT_MOST, FUNCTION_AT_MOST = 800, 80


class File(NamedTuple):
    """One source file. Arguments: ``code`` and ``imports``, the numbers of its lines of code and of imports."""

    path: str
    lines: int
    code: frozenset[int]
    imports: frozenset[int]
    functions: tuple[tuple[str, int], ...]

    @property
    def package(self) -> str:
        """Its folder below the top, or the top itself."""
        parts = self.path.split('/')
        return '/'.join(parts[:2]) if len(parts) > 2 and parts[0] in PRODUCT else parts[0]


def file_of(path: str, text: str) -> File:
    """Read one file's text."""
    code = {number for number, line in enumerate(text.split('\n'), 1) if line.strip() and line.lstrip()[0] != '#'}
    strings: set[int] = set()
    imports: set[int] = set()
    functions = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(_span(node))
        elif isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno:
            # In a string, an empty line or one with # is of its token.
            code.update(_span(node))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.update(_span(node))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.append((node.name, len(_span(node))))
    return File(path, text.count('\n'), frozenset(code - strings), frozenset(imports), tuple(functions))


def _span(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@cache
def syntax(path: Path) -> ast.Module:
    """The syntax of a file, which every test of the house reads once."""
    return ast.parse(path.read_text(encoding='utf-8'))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of it."""
    return tuple(ast.walk(syntax(path)))


def files(*tops: str) -> list[File]:
    """All source files below the tops, as they are in the working tree."""
    paths = sorted(path for top in tops for path in (ROOT / top).rglob('*.py') if '__pycache__' not in path.parts)
    return [file_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding='utf-8')) for path in paths]


def table(of: list[File]) -> Iterator[str]:
    """A line a package, the largest first, and one for all."""
    packages = {one.package for one in of}
    rows = {name: [one for one in of if one.package == name] for name in packages}
    for name in sorted(packages, key=lambda name: -sum(len(one.code) for one in rows[name])):
        yield _row(name, rows[name])
    yield _row('all', of)


def _row(name: str, of: list[File]) -> str:
    code, imports = (sum(map(len, sets)) for sets in zip(*((one.code, one.imports) for one in of), strict=True))
    longest = max(of, key=lambda one: one.lines)
    median = statistics.median(one.lines for one in of)
    return (
        f'{name:24}{code:7} code{len(of):5} files, median {median:4.0f} lines, longest {longest.lines:4}'
        f' {longest.path.rpartition("/")[2]}, imports {imports / max(code, 1):.1%}'
    )


def change(since: str) -> Iterator[str]:
    """By package, code lines out and in since a revision, by the lines that git says."""
    names = git('diff', '--name-only', '--no-renames', since, '--', '*.py').splitlines()
    out: dict[str, list[int]] = {}
    for name in names:
        old, new = _text(since, name), (ROOT / name).read_text(encoding='utf-8') if (ROOT / name).exists() else ''
        sums = out.setdefault(file_of(name, '').package, [0, 0])
        for place, text in enumerate((old, new)):
            sums[place] += len(file_of(name, text).code) if text else 0
    for package, (before, after) in sorted(out.items(), key=lambda row: row[1][1] - row[1][0]):
        yield f'{package:24}{before:7} → {after:6} code lines ({after - before:+})'
    yield f'{"all":24}{sum(after - before for before, after in out.values()):+}'


def _text(revision: str, name: str) -> str:
    # A file that the revision has not yet has no text there.
    shown = subprocess.run(['git', 'show', f'{revision}:{name}'], cwd=ROOT, capture_output=True, text=True, check=False)
    return shown.stdout


def git(*words: str) -> str:
    """What git prints; raises CalledProcessError where it fails."""
    return subprocess.run(['git', *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog='python -m tests.code_lines', description=__doc__)
    parser.add_argument('--since', metavar='REV', help='only what changed since this revision')
    options = parser.parse_args()
    if options.since:
        print(*change(options.since), sep='\n')
        return 0
    for tops in (PRODUCT, ('tests', 'benchmarks')):
        print(*table(files(*tops)), sep='\n', end='\n\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
