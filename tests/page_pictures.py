"""The pages of simpar at 1, 8, 64 and 1,024 ranks in Chromium: screenshots, light and dark, and the boxes of all words.

    python -m tests.page_pictures              write all, and docs/proofs/pictures.md
    python -m tests.page_pictures trace_64     write one

It needs Chromium with its driver (Debian: chromium, chromium-driver) and selenium. A screenshot is of what stands on
the page before anything is opened, down to a bound, and is smaller than the page.
"""

import base64
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.pictures import FOLDER, JOBS, PICTURES, Box, Words, check_boxes, prediction_of, text_of, write_smaller
from tests.proof import printed
from tests.prove_browser import browser

WIDE: Final = 1280
LONG: Final = 2600
"""Pixels of a page that a screenshot has at most."""
SHRUNK: Final = 0.7
LONELY: Final = {1024: 'plan.tensor=8'}
"""Of a recording of 1,024 ranks, whose files would be too many for a large model."""


def run_page(ranks: int, folder: Path) -> Path:
    """The answer, as `simpar run --html` writes it."""
    return _written(folder, ['run', _schedule(ranks, folder), '--quiet', '--html'])


def why_not_page(ranks: int, folder: Path) -> Path:
    """Sets of overlaps, as `simpar why-not --html` writes them."""
    return _written(folder, ['why-not', _schedule(ranks, folder), '--html'])


def trace_page(ranks: int, folder: Path) -> Path:
    """Ranks side by side, as `simpar trace --html` writes them: of a step that was predicted, in files of Kineto."""
    from simpar.kineto import write_kineto

    found = prediction_of(ranks) if ranks < 1024 else _small(ranks)
    write_kineto(folder / 'kineto', found.trace.last(1), library='nccl', ranks=range(ranks))
    shutil.rmtree(folder / 'kineto' / 'merged')
    return _written(folder, ['trace', str(folder / 'kineto'), '--html'])


def _small(ranks: int) -> Any:
    import simpar

    model = '{layers: 2, hidden: 2048, heads: 16, vocab: 51200, sequence: 2048}'
    return simpar.load_case(
        f'simpar: 1\ncluster: {{profile: h100-sxm-8, nodes: {ranks // 8}}}\n'
        f'workload: {{transformer: {model}, batch: {ranks}, precision: bf16}}\nplan: {{tensor: 8}}\n'
    ).predict()


def _schedule(ranks: int, folder: Path) -> str:
    path = folder / 'schedule.yaml'
    path.write_text(text_of(ranks), encoding='utf-8')
    return str(path)


def _written(folder: Path, words: list[str]) -> Path:
    page = folder / 'page.html'
    printed([*words, str(page)])
    return page


PAGES: Final[dict[str, tuple[Callable[[int, Path], Path], str]]] = {
    'run': (run_page, '`simpar run --html`: the answer'),
    'why_not': (why_not_page, '`simpar why-not --html`: which overlap pays'),
    'trace': (trace_page, '`simpar trace --html`: ranks side by side'),
}

HOOK: Final = """
window.noted = [];
const pen = CanvasRenderingContext2D.prototype, {fillText, clearRect, rect, clip, restore} = pen;
pen.clearRect = function (x, y, w, h) {
  window.noted = window.noted.filter(one => one.canvas !== this.canvas);
  clearRect.call(this, x, y, w, h);
};
pen.rect = function (x, y, w, h) { this.last = [x, x + w, y, y + h]; rect.call(this, x, y, w, h); };
pen.clip = function () { this.within = this.last; clip.call(this); };
pen.restore = function () { this.within = null; restore.call(this); };
pen.fillText = function (text, x, y) {
  const size = this.measureText(text);
  window.noted.push({canvas: this.canvas, text, within: this.within, left: x - size.actualBoundingBoxLeft,
    right: x + size.actualBoundingBoxRight, top: y - size.actualBoundingBoxAscent,
    low: y + size.actualBoundingBoxDescent});
  fillText.call(this, text, x, y);
};
"""
"""Notes the box of each word that is drawn, and what cuts it."""
BOXES: Final = """
const found = [];
for (const one of window.noted) {
  const at = one.canvas.getBoundingClientRect(), x = at.left + scrollX, y = at.top + scrollY;
  const own = one.within || [0, at.width, 0, at.height];
  found.push([one.text, [x + one.left, x + one.right, y + one.top, y + one.low],
    [x + own[0], x + own[1], y + own[2], y + own[3]]]);
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, range = document.createRange();
  if (!node.textContent.trim() || ['SCRIPT', 'STYLE'].includes(node.parentElement.tagName)) continue;
  if (!node.parentElement.checkVisibility()) continue;
  range.selectNodeContents(node);
  let holder = node.parentElement;
  while (holder && getComputedStyle(holder).overflowX === 'visible') holder = holder.parentElement;
  const at = holder && holder !== document.body ? holder.getBoundingClientRect() : null;
  for (const box of range.getClientRects())
    if (box.width && box.height) found.push([node.textContent.trim(),
      [box.left + scrollX, box.right + scrollX, box.top + scrollY, box.bottom + scrollY],
      at && [at.left + scrollX, at.right + scrollX, at.top + scrollY, at.bottom + scrollY]]);
}
return [found, document.documentElement.scrollWidth, document.documentElement.scrollHeight];
"""


def missing() -> str:
    """What is not installed; empty: nothing."""
    programs = [name for name in ('chromium', 'chromedriver') if shutil.which(name) is None]
    return ', '.join([*programs, *(name for name in ('selenium', 'PIL') if importlib.util.find_spec(name) is None)])


def shots(page: Path) -> dict[str, bytes]:
    """Check the words of a page, light and dark; its pictures by the ending of their names."""
    found = {}
    with browser(size=(WIDE, 900)) as driver:
        driver.execute_cdp_cmd('Page.addScriptToEvaluateOnNewDocument', {'source': HOOK})
        driver.get(page.as_uri())
        for scheme, ending in (('light', 'png'), ('dark', 'dark.png')):
            media = {'features': [{'name': 'prefers-color-scheme', 'value': scheme}]}
            driver.execute_cdp_cmd('Emulation.setEmulatedMedia', media)
            words, wide, high = driver.execute_script(BOXES)
            check_words(words, wide, high)
            # Above the line of words that the bound would cut.
            high = min([high, LONG, *(top for _, (_, _, top, low), _ in words if top < LONG < low)])
            clip = {'x': 0, 'y': 0, 'width': wide, 'height': high, 'scale': 1}
            shot = driver.execute_cdp_cmd('Page.captureScreenshot', {'clip': clip, 'captureBeyondViewport': True})
            found[ending] = base64.b64decode(shot['data'])
        errors = [entry for entry in driver.get_log('browser') if entry['level'] == 'SEVERE']
        assert not errors, errors
    return found


def check_words(words: list[Any], wide: float, high: float) -> None:
    """No word of a page is cut by what holds it, the page is no wider than its window, no two lie over one another."""
    assert wide <= WIDE, f'the page is {wide} pixels wide'
    found: list[Words] = [(text, Box(*box), Box(*holder) if holder else None) for text, box, holder in words]
    check_boxes(found, wide, high)


def page() -> str:
    """docs/proofs/pictures.md."""
    head = (Path(__file__).parent / 'pages' / 'pictures.md').read_text(encoding='utf-8')
    parts: list[str] = []
    for name, title in (
        *((name, f'{name}: {_TITLES[name]}') for name in PICTURES),
        *((f'page_{name}', title) for name, (_, title) in PAGES.items()),
    ):
        parts.append(f'\n## {title}\n')
        for ranks in JOBS:
            many = '1 rank' if ranks == 1 else f'{ranks:,} ranks'
            if not (FOLDER / f'{name}_{ranks}.png').exists():
                draws = (
                    f'page_pictures {name.removeprefix("page_")}' if name.startswith('page_') else f'pictures {name}'
                )
                parts.append(f'\nAt {many} it is not drawn yet: `python -m tests.{draws}_{ranks}`.\n')
                continue
            for ending, scheme in (('png', 'light'), ('dark.png', 'dark')):
                parts.append(f'\n![{many}, {scheme}](../images/pictures/{name}_{ranks}.{ending}#only-{scheme})\n')
    return head + ''.join(parts)


_TITLES: Final = {
    'steps': 'a plan beside its baseline',
    'one_rank': 'the streams of one rank',
    'difference': 'a measured step beside the predicted one',
    'sweep': 'the rows of a sweep',
    'front': "the planner's plans by step and memory",
    'sizes': 'step by number of devices',
}


def main() -> int:
    """Check and write every page, or those that are named."""
    if lacking := missing():
        print(f'pages are left out; not installed here: {lacking}')
        return 0
    for one in sys.argv[1:] or [f'{name}_{ranks}' for name in PAGES for ranks in JOBS]:
        name, _, ranks = one.rpartition('_')
        with tempfile.TemporaryDirectory() as folder:
            for ending, shot in shots(PAGES[name][0](int(ranks), Path(folder))).items():
                write_smaller(shot, FOLDER / f'page_{one}.{ending}', SHRUNK)
        print(one, flush=True)
    if not sys.argv[1:]:
        (Path(__file__).parent.parent / 'docs' / 'proofs' / 'pictures.md').write_text(page(), encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
