"""The docs site: every page is in its navigation, every link leads somewhere, every block is run or says why not.

`make docs` builds it strictly; `make prove-docs` runs all blocks. Here a few cheap ones run; all are parsed.
"""

import re
import shlex
import subprocess
from functools import cache

import prove_docs
import pytest
import yaml
from docs_blocks import DOCS, LIST, PAGES, PROOFS, ROOT, all_blocks
from docs_size import pages, size
from docs_tables import schedule_table_keys
from prove_docs import Outcome, folder_of, row

from simpar.cli import main, parser
from simpar.commands.parser import VERBS
from simpar.schedule import load_schedule

BLOCKS = all_blocks()
CHEAP = ('simpar profiles mine.yaml', 'simpar run with_stack.yaml --quiet', 'simpar run my_order.yaml')


WITH_CODE = ('how_to_add.md', 'modules.md')
"""Pages whose schedules need the code that stands beside them."""


def navigation(part):
    """The pages of a part of the navigation."""
    if isinstance(part, str):
        return [part]
    below = part.values() if isinstance(part, dict) else part
    return [page for one in below for page in navigation(one)]


def test_the_navigation_has_every_page_once():
    listed = navigation(yaml.safe_load((ROOT / 'mkdocs.yml').read_text(encoding='utf-8'))['nav'])
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob('*.md')}
    assert sorted(listed) == sorted(set(listed)), 'a page stands twice in the nav of mkdocs.yml'
    assert there - set(listed) == set(), 'write these pages into the nav of mkdocs.yml'
    assert set(listed) - there == set(), 'the nav of mkdocs.yml names pages that are not there'


@cache
def anchors(page):
    """What headings of a page are called in links."""
    headings = re.findall(r'^#+ (.+)$', page.read_text(encoding='utf-8'), re.MULTILINE)
    return {re.sub(r'[-\s]+', '-', re.sub(r'[^\w\s-]', '', heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize('page', [*PAGES, LIST], ids=lambda page: page.stem)
def test_links_lead_to_pages_headings_and_pictures(page):
    text = re.sub(r'```.*?```|`[^`\n]*`', '', page.read_text(encoding='utf-8'), flags=re.DOTALL)
    for link in re.findall(r'\]\(([^)\s]+)\)', text):
        if link.startswith(('http', 'mailto')):
            continue
        path, _, anchor = link.partition('#')
        # A picture of the reader's colours alone.
        anchor = '' if path.endswith('.png') and anchor in ('only-light', 'only-dark') else anchor
        target = page if not path else page.parent / path
        assert target.is_file(), f'{page.name}: {link}'
        assert not anchor or anchor in anchors(target), f'{page.name}: {link} has no such heading'


def test_every_block_is_listed_with_what_became_of_it():
    """`make prove-docs WORDS=--new` runs those that are missing, and lists them."""
    listed = set(LIST.read_text(encoding='utf-8').splitlines())
    assert [block.name for block in BLOCKS if row(Outcome(block)) not in listed] == []
    assert '**fails**' not in LIST.read_text(encoding='utf-8')


def test_the_command_line_knows_every_verb_and_flag_of_the_docs():
    top = parser()
    for block in BLOCKS:
        if block.kind == 'command' and block.text.startswith('simpar '):
            words = shlex.split(block.text, comments=True)[1:]
            top.parse_args(words[: words.index('>')] if '>' in words else words)


def test_every_schedule_of_the_docs_is_read(tmp_path):
    for place, block in enumerate(BLOCKS):
        if block.is_schedule and not block.reason and block.page not in WITH_CODE:
            folder = tmp_path / str(place)
            folder.mkdir()
            path = folder_of(block.page, folder) / 'schedule.yaml'
            path.write_text(block.text, encoding='utf-8')
            load_schedule(path)


def test_every_verb_stands_on_the_page_of_commands():
    text = (DOCS / 'commands.md').read_text(encoding='utf-8')
    assert [verb.name for verb in VERBS if not re.search(rf'^\| `{verb.name}\b', text, re.MULTILINE)] == []


def test_every_key_of_a_schedule_stands_on_a_page():
    pages = ''.join(page.read_text(encoding='utf-8') for page in PAGES)
    assert [key for key in schedule_table_keys() if f'`{key}`' not in pages] == []


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a block of a command in this process, which has imported what it needs."""

    def ran(words, folder):
        monkeypatch.chdir(folder)
        code = main(shlex.split(words[-1].partition(' -m simpar ')[2], comments=True))
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    monkeypatch.setattr(prove_docs, '_ran', ran)
    return prove_docs.run


@pytest.mark.parametrize('name', CHEAP)
def test_cheap_commands_do_what_their_page_says(name, tmp_path, run):
    wanted = next(block for block in BLOCKS if block.name == name)
    folder = folder_of(wanted.page, tmp_path)
    for block in BLOCKS:
        if block.page == wanted.page and block.kind == 'yaml' and block.title:
            (folder / block.title).write_text(block.text, encoding='utf-8')
    assert run(wanted, folder).wrong == ''


def test_a_wrong_command_and_a_changed_table_are_noticed(tmp_path, run):
    """The checks can fail."""
    folder = folder_of('README.md', tmp_path)
    wrong = next(block for block in BLOCKS if block.kind == 'command' and not block.reason)
    changed = type(wrong)(page='README.md', kind='command', text='simpar run nothing.yaml')
    assert 'ends with 2' in run(changed, folder).wrong
    table = type(wrong)(
        page='README.md', kind='command', text='simpar sweep schedule.yaml --markdown', below='| a table |'
    )
    assert run(table, folder).wrong.startswith('it prints another table')


def test_pages_that_messages_and_code_name_are_there():
    for folder in ('simpar', 'executor', 'benchmarks', 'hw_profiles', 'examples'):
        for path in (ROOT / folder).rglob('*'):
            if path.suffix in ('.py', '.csv', '.yaml', '.html', '.js') and 'measured' not in path.name:
                for page in re.findall(r'(?<![\w/:])docs/[\w/]+\.md', path.read_text(encoding='utf-8')):
                    assert (ROOT / page).is_file(), f'{path.relative_to(ROOT)} names {page}'


def test_the_docs_stay_short_and_their_sentences_too():
    number, count, long, every = size()
    assert number <= 28
    assert count <= 45_000
    assert len(long) <= 0.03 * every, long


@pytest.mark.parametrize('name', ['README.md', 'README.zh.md', 'docs/accuracy.md'])
def test_figures_of_accuracy_are_those_of_the_tables(name):
    """Means of unfitted rows, and of reports, are what `make accuracy` and `make prove NAME=field` wrote."""
    text = re.sub(r' ?%', '%', (ROOT / name).read_text(encoding='utf-8'))
    table = (PROOFS / 'accuracy_rows.md').read_text(encoding='utf-8').split('<!-- validate -->')[1].split('| part |')[0]
    rows = [line for line in table.splitlines() if line.startswith('|')]
    assert [row.split('|')[3].split()[0] for row in rows[2:] if row.split('|')[3].split()[0] not in text] == []
    assert name != 'docs/accuracy.md' or [row for row in rows if row not in (ROOT / name).read_text('utf-8')] == []
    reports = re.search(r'error is (\S+) % in the median \((\S+) %', (PROOFS / 'field.md').read_text(encoding='utf-8'))
    assert reports
    assert all(f'{figure}%' in text for figure in reports.groups())


@pytest.mark.parametrize(
    ('page', 'command'),
    [
        ('README.md', 'simpar run examples/transformer_ascend910a.yaml'),
        ('README.zh.md', 'simpar run examples/transformer_ascend910a.yaml'),
        ('docs/sweep.md', 'simpar sweep examples/transformer_h100.yaml --set cluster.stack=none'),
        ('docs/recordings.md', 'simpar trace tests/recorded/kineto_cases/straggler4 --what-if rank=2:0.67'),
    ],
)
def test_an_answer_that_a_page_shows_is_what_its_command_prints(page, command, monkeypatch, capsys):
    text = (ROOT / page).read_text(encoding='utf-8')
    line = next(line for line in text.splitlines() if command in line and line.startswith('    '))
    below = re.split(r'\n## |\n    (?=simpar )', text.split(f'{line}\n', 1)[1])[0]
    shown = [part.strip('\n') for part in re.split(r'\n\n+', below)]
    plain = [' '.join(re.sub('```(text)?', '', part).split()) for part in shown if part.startswith(('    ', '```text'))]
    assert plain
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(line)[1:]) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert [part for part in plain if part not in printed] == []


def test_every_page_shows_a_command_a_file_or_a_picture_near_its_top():
    for page in pages():
        top = page.read_text(encoding='utf-8').splitlines()[:20]
        assert page.name == 'changelog.md' or any(re.match(r' {4}\S|```|!\[', line) for line in top), page.name
