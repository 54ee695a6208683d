"""Install simpar alone, without torch and extras, into fresh environments; run the README, examples, an import.

    make test-install
    make prove NAME=install

Two environments at once: the oldest Python with the lowest versions that pyproject.toml allows, and the newest Python
with the newest. Warnings of Python are errors. Commands are processes of their own; one runs the examples. Each example
runs in one of the two environments, or with the word ``every`` in both.
Interpreters that the machine lacks are told, with where they were sought.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MINORS = range(10, 15)
"""Of Python 3, those that simpar is for."""
NEEDS_TORCH = re.compile(r'simpar (measure|calibrate)|--numerics|--module')
LAUNCH_FILE = 'tests/launch_files/megatron_llama3_8b_fp8.sh'
EXAMPLES = """
import sys
from pathlib import Path
from simpar.cli import main
first, step = map(int, sys.argv[1:])
wrong = [path.name for path in sorted(Path('examples').glob('*.yaml'))[first::step] if main(['run', str(path)])]
sys.exit(', '.join(wrong) or 0)
"""
SECONDS = 900
_OF_OTHERS = [
    word
    for name in ('_fontconfig_pattern', '_mathtext')
    for word in ('-W', f'ignore::DeprecationWarning:matplotlib.{name}')
]
"""An old matplotlib calls a new pyparsing, which pip takes, by names of before."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A fresh environment.

    Arguments:
        name: what the report calls it.
        python: the interpreter.
        pins: versions that pip must take; empty: the newest.
        folder: where the environment is made.
        examples: the first that it runs, and how many further each next one is.
    """

    name: str
    python: str
    pins: tuple[str, ...]
    folder: Path
    examples: tuple[int, int]

    @property
    def own(self) -> Path:
        """Its Python."""
        return self.folder / 'venv' / 'bin' / 'python'

    def make(self) -> str:
        """Install simpar into it; returns what went wrong."""
        run([self.python, '-m', 'venv', str(self.folder / 'venv')], self.folder)
        pip = [str(self.own), '-m', 'pip', 'install', '--quiet', '--no-compile', '--disable-pip-version-check']
        done = run([*pip, *self.pins, str(ROOT)], self.folder)
        return f'pip install: {done.stderr.strip()[-800:]}' if done.returncode else ''


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would who has nothing of this checkout on any path."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith('PYTHON')}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def lowest_pins() -> tuple[str, ...]:
    """The lower bounds of the hard dependencies, as versions."""
    text = (ROOT / 'pyproject.toml').read_text(encoding='utf-8')
    listed = re.search(r'^dependencies = \[(.*?)^\]', text, re.DOTALL | re.MULTILINE)
    assert listed
    return tuple(one.replace('>=', '==') for one in re.findall(r'^\s*"(.+?)",?$', listed[1], re.MULTILINE))


def interpreter(minor: int) -> str:
    """The path of Python 3.``minor``; empty where the machine has none."""
    found = shutil.which(f'python3.{minor}')
    places = sorted((Path.home() / '.pyenv' / 'versions').glob(f'3.{minor}.*/bin/python'))
    # A shim of pyenv stands on the path for versions that are not chosen; it fails where it is called.
    for path in [*map(str, places), *([found] if found else []), sys.executable]:
        asked = run([path, '-c', 'import ensurepip, sys; print(sys.version_info[1])'], Path())
        if asked.returncode == 0 and asked.stdout.strip() == str(minor):
            return path
    return ''


def commands(examples: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    """What is run, by name: arguments of Python."""
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    shown = re.findall(r'^ {4}(?:\.venv/bin/)?(simpar .+?)(?:\s+#.*)?$', readme, re.MULTILINE)
    shown += re.findall(r'`(simpar (?:run examples/[^`A-Z]+|examples|schema|profiles))`', readme)
    for line in dict.fromkeys(shown):
        if not NEEDS_TORCH.search(line):
            yield f'README: {line}', ['-m', *line.split()]
    for number, block in enumerate(re.findall(r'(?:^ {4}.*\n)+', readme, re.MULTILINE)):
        if 'import simpar' in block and 'executor' not in block:
            yield f'README: block {number}', ['-c', re.sub(r'^ {4}', '', block, flags=re.MULTILINE)]
    yield 'examples', ['-c', EXAMPLES, *map(str, examples)]
    yield 'import', ['-m', 'simpar', 'import', LAUNCH_FILE, '--cluster', 'h100-sxm-8']
    yield 'imported', ['-m', 'simpar', 'run', 'imported.yaml']


def check(environment: Environment) -> list[str]:
    """Install and run everything; returns what went wrong."""
    begun = time.monotonic()
    environment.folder.mkdir()
    if wrong := environment.make():
        return [f'{environment.name}: {wrong}']
    installed = time.monotonic()
    for name in ('examples', 'tests/launch_files'):
        shutil.copytree(ROOT / name, environment.folder / name)
    (environment.folder / 'out').mkdir()
    problems, count = [], 0
    own = 'import importlib.util as u, numba, simpar; assert u.find_spec("torch") is None; print(simpar.__file__)'
    for name, arguments in [('no torch, and numba', ['-c', own]), *commands(environment.examples)]:
        done = run([str(environment.own), '-W', 'error', *_OF_OTHERS, *arguments], environment.folder)
        count += 1
        if name == 'import':
            (environment.folder / 'imported.yaml').write_text(done.stdout, encoding='utf-8')
        # That the imported plan does not fit its cluster is an answer, too.
        good = (0, 3) if name == 'imported' else (0,)
        if done.returncode not in good or 'Warning' in done.stderr:
            problems.append(f'{environment.name}: {name}: exit {done.returncode}: {done.stderr.strip()[-600:]}')
        elif name.startswith('no torch') and str(environment.folder) not in done.stdout:
            problems.append(f'{environment.name}: simpar is imported from {done.stdout.strip()}')
    took = f'{installed - begun:.0f} s to install, {time.monotonic() - installed:.0f} s to run'
    print(f'{environment.name}: {count} commands, {len(problems)} wrong; {took}', flush=True)
    return problems


def main(words: Sequence[str]) -> int:
    """Check all environments; returns the exit code."""
    parts = [(0, 1), (0, 1)] if 'every' in words else [(0, 2), (1, 2)]
    known = {minor: interpreter(minor) for minor in MINORS}
    for minor, path in known.items():
        if not path:
            print(f'Python 3.{minor} is not checked: no python3.{minor} on the path or in ~/.pyenv/versions')
    there = [minor for minor, path in known.items() if path]
    with tempfile.TemporaryDirectory(prefix='simpar-install-') as folder:
        of = zip(('lowest', 'newest'), (there[0], there[-1]), (lowest_pins(), ()), parts, strict=True)
        lowest, newest = (
            Environment(f'Python 3.{minor}, {name}', known[minor], pins, Path(folder) / name, examples)
            for name, minor, pins, examples in of
        )
        print(f'lowest: {" ".join(lowest.pins)}', flush=True)
        with ThreadPoolExecutor(2) as pool:
            problems = [one for found in pool.map(check, [lowest, newest]) for one in found]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f'{used.ru_utime + used.ru_stime:.0f} s of CPU')
    print('\n'.join(problems))
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
