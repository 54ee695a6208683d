"""The answer as one HTML page: it stands alone, holds every op that it says, and a real browser draws it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from simpar import cli, load_case
from simpar.headline import short_time
from simpar.page import answer_page

EXAMPLES = Path(__file__).parent.parent / 'examples'
FEW = ['plan.micro_batches=8']
"""So that a pipeline takes a moment."""
BROWSER = shutil.which('chromium') or shutil.which('google-chrome')


@pytest.fixture(scope='module')
def pages():
    """The page of a case without stages, and of a pipeline over 64 GPUs."""
    found = {}
    for name, settings in (('multi_copy', []), ('pipeline_h100', FEW)):
        prediction = load_case(EXAMPLES / f'{name}.yaml', settings).predict()
        found[name] = (prediction, answer_page(prediction, schedule='# a < b </script>\nsimpar: 1\n'))
    return found


def data_of(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_a_page_stands_alone_and_is_small(pages):
    for _, page in pages.values():
        assert len(page) < 3e6
        # Nothing is fetched: no address, no other file.
        assert not re.search(r'(src|href)=|https?://|@import|url\(', page)
        assert page.count('</script>') == 2
        assert '# a &lt; b &lt;/script&gt;' in page


def test_every_op_of_the_rank_is_there_at_its_time(pages):
    prediction, page = pages['multi_copy']
    found = data_of(page)
    trace, unit = prediction.trace, found['unit']
    begin = trace.step_ends[-1] - trace.step
    side = found['sides'][0]
    assert side['name'] == 'copies 2'
    drawn = sorted(
        (side['ops'][op][0], start + wait, run)
        for row in side['groups'][0]['rows']
        for op, start, wait, run in zip(row['op'], row['begin'], row['wait'], row['run'], strict=True)
    )
    spans = [span for span in trace.spans(0) if span.end > span.arrive and span.arrive >= begin]
    wanted = sorted(
        (span.op.name, round((span.start - begin) / unit), round((span.end - begin) / unit)) for span in spans
    )
    told = {(name, start): run for name, start, run in drawn}
    for name, start, end in wanted:
        assert told[name, start] == end - start
    assert len(drawn) >= len(wanted)
    # What an op costs alone is told with it.
    assert all(why for _, kind, _, why in side['ops'] if kind == 'communication')


def test_a_pipeline_has_its_actions_and_says_which_ranks_are_left_out(pages):
    prediction, page = pages['pipeline_h100']
    side = data_of(page)['sides'][0]
    assert [row['label'] for row in side['boxes']] == [f'{rank}: stages {rank}, {rank + 4}' for rank in range(4)]
    micro_batches = prediction.program.micro_batches
    forwards = [text for text in side['boxes'][0]['text'] if text.startswith('0F')]
    assert sorted(forwards) == sorted(f'0F{number}' for number in range(micro_batches))
    assert side['left'] == len(prediction.trace.representatives) - len(side['groups'])


def test_a_page_says_first_what_one_must_know_and_folds_the_rest(pages):
    prediction, _ = pages['pipeline_h100']
    page = answer_page(prediction, about='22 G parameters · 2026-11-28', notes=['one more <note>'])
    head, _, rest = page.partition('</header>')
    low = prediction.interval.low
    for words in (
        '22 G parameters · 2026-11-28', '64 × H100 SXM 80 GB (h100-sxm-8)', 'simpar ', f'within {short_time(low)}'
    ):  # fmt: skip
        assert words in head.partition('<h1>')[2]
    shown = re.sub('<details>.*?</details>', '', rest, flags=re.DOTALL)
    assert 'one more &lt;note&gt;' in rest
    assert 'one more &lt;note&gt;' not in shown
    assert 'tokens a second' in shown
    assert 'first step, from cold' not in shown


def test_an_action_is_drawn_by_its_parts_and_not_as_one_box():
    """With everything recomputed a backward has parts of both, which fill its height together."""
    prediction = load_case(EXAMPLES / 'pipeline_h100.yaml', ['plan.recompute=full', 'against={}', *FEW]).predict()
    row = data_of(answer_page(prediction))['sides'][0]['boxes'][0]
    kinds = {kind for _, _, kind, _, _ in row['parts']}
    assert kinds == {'F', 'R', 'B'}
    for begin, run, kind, top, share in row['parts']:
        assert any(
            left <= begin and begin + run <= left + length + 1
            for left, length in zip(row['begin'], row['run'], strict=True)
        )
        assert (top == 0) == (kind != 'B')
        assert 0 < share <= 1


def test_rows_of_a_rank_with_too_many_ops_go_on_to_the_end(monkeypatch, pages):
    """Neighbours of one kind become one bar; nothing is left out."""
    prediction, page = pages['multi_copy']
    whole = data_of(page)['sides'][0]['groups'][0]
    monkeypatch.setattr('simpar.page.page.MOST_SPANS', 40)
    few = data_of(answer_page(prediction))['sides'][0]['groups'][0]
    assert few['merged']
    assert not whole['merged']
    assert sum(len(row['begin']) for row in few['rows']) <= 40 < sum(len(row['begin']) for row in whole['rows'])
    for mine, other in zip(few['rows'], whole['rows'], strict=True):
        ends = [
            max(b + w + r for b, w, r in zip(one['begin'], one['wait'], one['run'], strict=True))
            for one in (mine, other)
        ]
        assert ends[0] == ends[1]


def test_memory_adds_up_to_the_peak(pages):
    prediction, page = pages['pipeline_h100']
    for side, wanted in zip(data_of(page)['memory'], (prediction, prediction.baseline), strict=True):
        totals = [sum(held) for held in zip(*(layer['bytes'] for layer in side['layers']), strict=True)]
        assert max(totals) == wanted.memory.peak


@pytest.mark.skipif(BROWSER is None, reason='no Chromium here (Debian: apt install chromium)')
@pytest.mark.parametrize('what', ['answer', 'recording'])
def test_a_browser_draws_it(what, pages, put):
    path = put('page.html', pages['pipeline_h100'][1])
    if what == 'recording':
        folder = Path(__file__).parent / 'recorded' / 'kineto_cases' / 'straggler4'
        assert cli.main(['trace', str(folder), '--html', str(path)]) == 0
    words = ['--headless', '--no-sandbox', '--disable-gpu', '--virtual-time-budget=3000', '--dump-dom', path.as_uri()]
    done = subprocess.run([BROWSER, *words], capture_output=True, text=True, check=True, timeout=60)
    # The script says so at its very end: nothing failed before.
    assert re.search(r'<body data-rows="\d\d+"', done.stdout)


def test_run_writes_it_and_show_opens_only_pages(tmp_path, capsys, refused, monkeypatch):
    page = tmp_path / 'new' / 'answer.html'
    assert cli.main(['run', str(EXAMPLES / 'multi_copy.yaml'), '--set', 'plan.copies=1', '--html', str(page)]) == 0
    assert '# --set plan.copies=1' in page.read_text()
    opened = []
    monkeypatch.setattr('webbrowser.open', lambda address: bool(opened.append(address)) or True)
    assert cli.main(['show', str(page)]) == 0
    assert opened == [page.as_uri()]
    capsys.readouterr()
    assert 'not a page' in refused('show', EXAMPLES / 'multi_copy.yaml')
    assert cli.main(['show', str(tmp_path / 'none.html')]) == 2
