"""Run every command and block of the docs, and write docs/proofs/blocks.md.

    make prove-docs                                all of them
    python tests/prove_docs.py --new               those that the list lacks
    python tests/prove_docs.py --page index.md     those of a page, and list nothing
    python tests/prove_docs.py --tables            and write what `simpar sweep --markdown` prints below its command

Blocks of a page run from top to bottom in a folder of its own, in which files stand that its commands name.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from docs_blocks import DOCS, LIST, PAGES, ROOT, Block, blocks
from proof import arguments, commit, page_head
from tables import load_table

PAIR = load_table(__file__, 'PAIR')
"""A schedule for two processes."""
STAGES = load_table(__file__, 'STAGES')
TUTORIAL = (ROOT / 'examples' / 'multi_copy.yaml').read_text(encoding='utf-8')
SCHEDULES = {'sweep.md': STAGES, 'keys.md': TUTORIAL, 'run_on_cluster.md': TUTORIAL}
"""What schedule.yaml is on a page, in place of the pair."""
FOUR_RANKS = {'torchrun --nproc-per-node 4': ('devices: 2', 'devices: 4'), 'torchrun --nproc-per-node 8': ('', '')}
BESIDE = load_table(__file__, 'BESIDE')
"""Files that commands name, and what they are copied from."""
INTO_A_SOURCE = re.compile(r'(?P<path>[\w/]+\.py): before (?P<mark>.+)')
"""The title of a block that belongs into a file of the repository."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a block: the seconds that it took, and what was wrong."""

    block: Block
    seconds: float = 0.0
    wrong: str = ''


def folder_of(page: str, folder: Path) -> Path:
    """Make the folder in which the blocks of a page run."""
    for name in ('examples', 'hw_profiles', 'measured_steps', 'tests'):
        (folder / name).symlink_to(ROOT / name)
    for name, source in BESIDE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, folder / name)
    (folder / 'schedule.yaml').write_text(SCHEDULES.get(page, PAIR), encoding='utf-8')
    return folder


def run(block: Block, folder: Path) -> Outcome:
    """Run one block; ``wrong`` is empty where it does what the page says."""
    begin = time.monotonic()
    wrong = {'command': _command, 'python': _python, 'yaml': _yaml}[block.kind](block, folder)
    return Outcome(block, time.monotonic() - begin, wrong)


def _yaml(block: Block, folder: Path) -> str:
    own = 'schedule.yaml' if block.page == 'modules.md' else 'block.yaml'
    path = folder / (block.title or own)
    path.write_text(block.text + '\n', encoding='utf-8')
    if block.is_schedule and block.page != 'modules.md':
        return _told('simpar check ' + path.name, folder)
    if 'extends:' in block.text or block.page == 'modules.md':
        return ''  # the command below it reads it
    if 'file: ' in block.text:
        return _told_by([sys.executable, '-c', _PARSED.format(path=str(path))], folder)
    return _told(f'simpar profiles {path.name}', folder)


_PARSED = 'import yaml, pathlib; yaml.safe_load(pathlib.Path({path!r}).read_text())'
"""A profile whose tables are not here is YAML at least; tests/test_hardware_profiles.py reads such profiles."""


def _python(block: Block, folder: Path) -> str:
    if found := INTO_A_SOURCE.match(block.title):
        return _insert(block.text, found['path'], found['mark'], folder)
    named = re.match(r'# (\w+\.py)\n', block.text)
    path = folder / (named[1] if named else 'block.py')
    path.write_text(block.text + '\n', encoding='utf-8')
    return '' if named else _told_by([sys.executable, path.name], folder)


def _insert(text: str, name: str, mark: str, folder: Path) -> str:
    """Put a block into a copy of the repository's sources, before the first line that begins with the mark."""
    for room in ('simpar', 'executor'):
        if not (folder / room).exists():
            shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns('__pycache__'))
    path = folder / name
    lines = path.read_text(encoding='utf-8').splitlines()
    wanted = f'class {mark.removeprefix("@operator of ")}(' if mark.startswith('@operator') else mark
    at = next((place for place, line in enumerate(lines) if line.strip().startswith(wanted)), None)
    if at is None:
        return f'{name} has no line that begins with {wanted}'
    at -= mark.startswith('@operator')
    gap = ['', ''] if text.startswith(('def ', '@', 'TANH')) else []
    lines[at:at] = [*text.splitlines(), *gap]
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return ''


def _command(block: Block, folder: Path) -> str:
    if four := next((change for begin, change in FOUR_RANKS.items() if block.text.startswith(begin)), None):
        schedule = folder / 'schedule.yaml'
        schedule.write_text(schedule.read_text(encoding='utf-8').replace(*four).replace('data: 2, c', 'data: 0, c'))
    if '--markdown' in block.text:
        printed = _ran(_shell(block.text), folder).stdout
        return '' if printed.strip() == block.below.strip() else 'it prints another table; --tables writes it'
    return _told(block.text, folder)


def _shell(text: str) -> list[str]:
    """The words for a shell in which `simpar`, `python` and `torchrun` are those of this Python."""
    python = sys.executable
    made = re.sub('^simpar ', f'{python} -m simpar ', text)
    made = re.sub('^python3? ', f'{python} ', made)
    return ['bash', '-c', re.sub('^torchrun ', f'{python} -m torch.distributed.run ', made)]


def _told(command: str, folder: Path) -> str:
    return _told_by(_shell(command), folder)


def _told_by(words: list[str], folder: Path) -> str:
    ran = _ran(words, folder)
    last = (ran.stderr or ran.stdout).strip().splitlines()[-3:]
    return '' if ran.returncode == 0 else f'ends with {ran.returncode}: {" / ".join(last)}'


def _ran(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    root = folder if (folder / 'simpar').is_dir() else ROOT
    around = {**os.environ, 'PYTHONPATH': f'{root}:{folder}', 'BROWSER': 'true', 'OMP_NUM_THREADS': '1'}
    try:
        return subprocess.run(words, cwd=folder, env=around, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, -1, '', 'longer than 180 s')


def proved(page: Path, only: frozenset[str] | None = None) -> list[Outcome]:
    """Run the blocks of a page; of ``only`` these names, and the files that they may read."""
    found = list(blocks(page))
    if only is not None and not any(block.name in only for block in found):
        return []
    outcomes = []
    with tempfile.TemporaryDirectory(prefix='simpar-docs-') as name:
        folder = folder_of(page.name, Path(name))
        for block in found:
            if not block.reason and (only is None or block.kind != 'command' or block.name in only):
                outcome = run(block, folder)
                print(f'{page.name}: {block.name}: {outcome.wrong or f"{outcome.seconds:.1f} s"}', flush=True)
                outcomes.append(outcome)
            else:
                outcomes.append(Outcome(block))
    return outcomes


def listed(lines: dict[str, list[str]], at: str) -> str:
    """The text of docs/proofs/blocks.md."""
    parts = [page_head('docs', at=at)]
    for page, rows in lines.items():
        parts += [f'\n## {page}\n\n| command or block | held by |\n|---|---|\n', *(f'{row}\n' for row in rows)]
    return ''.join(parts)


def row(outcome: Outcome) -> str:
    """A line of the list."""
    name = outcome.block.name.replace('|', '\\|')
    return f'| `` {name} `` | {outcome.block.reason or ("**fails**" if outcome.wrong else "runs")} |'


def write_tables(page: Path) -> None:
    """Put what `simpar sweep --markdown` prints below its command."""
    text = page.read_text(encoding='utf-8')
    with tempfile.TemporaryDirectory(prefix='simpar-docs-') as name:
        folder = folder_of(page.name, Path(name))
        for block in blocks(page):
            if block.kind == 'yaml' and not block.reason:
                (folder / (block.title or 'schedule.yaml')).write_text(block.text + '\n', encoding='utf-8')
            if block.kind == 'command' and '--markdown' in block.text and not block.reason:
                printed = _ran(_shell(block.text), folder).stdout
                at = text.index(f'    {block.text}\n') + len(f'    {block.text}\n')
                after = text[at:].removeprefix('\n')
                after = after.removeprefix(block.below + '\n') if block.below else after
                text = f'{text[:at]}\n{printed}\n{after.lstrip()}'
    page.write_text(text, encoding='utf-8')


def main() -> int:
    """Run what is asked for."""
    asked = arguments(__doc__, page={'action': 'append', 'default': []}, new=False, tables=False)
    pages = [page for page in PAGES if not asked.page or page.name in asked.page]
    if asked.tables:
        for page in pages:
            write_tables(page)
    old = LIST.read_text(encoding='utf-8')
    lines, failed = {}, 0
    for page in pages:
        known = {line for line in old.splitlines() if line.startswith('| `` ')}
        missing = frozenset(block.name for block in blocks(page) if row(Outcome(block)) not in known)
        outcomes = proved(page, missing if asked.new else None)
        outcomes = outcomes or [Outcome(block) for block in blocks(page)]
        failed += sum(bool(outcome.wrong) for outcome in outcomes)
        if rows := list(dict.fromkeys(map(row, outcomes))):
            lines[page.name] = rows
    if not asked.page:
        kept = re.search(r' at `\w+`', old)
        at = kept[0] if asked.new and kept else f' at `{commit()}`'
        LIST.write_text(listed(lines, at), encoding='utf-8')
    return 1 if failed else 0


if __name__ == '__main__':
    assert DOCS.is_dir()
    sys.exit(main())
