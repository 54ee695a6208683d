"""A real browser shows the page and the notebook, and the sliders move: `make prove-browser`.

It needs Chromium with its driver (Debian: chromium, chromium-driver), selenium and JupyterLab; without one of them it
says which, and ends with code 0. It writes the screenshots of the docs, small PNG files, and prints how long the step
took to follow a slider.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / 'docs' / 'images'
FOLLOWS = 0.5
"""Seconds in which the step has to follow a slider, of a schedule of 64 devices."""
NOTEBOOK = 'does_multi_copy_pay.ipynb'


def missing() -> str:
    """What is not installed; empty: nothing."""
    programs = [name for name in ('chromium', 'chromedriver') if shutil.which(name) is None]
    wanted = ('selenium', 'jupyterlab', 'ipywidgets', 'numba', 'PIL')
    modules = [name for name in wanted if importlib.util.find_spec(name) is None]
    return ', '.join([*programs, *modules])


@contextlib.contextmanager
def browser(*, dark: bool = False, size: tuple[int, int] = (1280, 900)) -> Iterator[Any]:
    """Chromium without a window."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which('chromium') or ''
    for word in ('--headless=new', '--no-sandbox', '--disable-dev-shm-usage', f'--window-size={size[0]},{size[1]}'):
        options.add_argument(word)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which('chromedriver')))
    scheme = {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}
    driver.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': [scheme]})
    try:
        yield driver
    finally:
        driver.quit()


def shot(shown: Any, name: str) -> None:
    """A screenshot of a browser or of one element, in 256 colours, so that it stays small."""
    from PIL import Image

    path = IMAGES / f'{name}.png'
    path.write_bytes(shown.screenshot_as_png if hasattr(shown, 'screenshot_as_png') else shown.get_screenshot_as_png())
    with Image.open(path) as image:
        # Dithered or with fewer colours, one orange would look like another.
        small = image.convert('RGB').quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f'wrote {path.relative_to(ROOT)}, {path.stat().st_size // 1000} KB')


def show_page(folder: Path) -> None:
    """The page of a pipeline: drawn, without an error, zoomed by a key; light and dark."""
    page = folder / 'answer.html'
    words = ['run', str(ROOT / 'examples' / 'pipeline_h100.yaml'), '--html', str(page), '--quiet']
    subprocess.run([sys.executable, '-m', 'simpar', *words], check=True, cwd=ROOT)
    for dark in (False, True):
        with browser(dark=dark) as driver:
            driver.get(page.as_uri())
            time.sleep(1)
            errors = [entry for entry in driver.get_log('browser') if entry['level'] == 'SEVERE']
            assert errors == [], errors
            before = driver.execute_script(_COLOURS)
            assert before > 10, f'the timeline shows {before} colours'
            driver.find_element('css selector', '[data-zoom="2"]').click()
            time.sleep(0.3)
            assert driver.execute_script(_PIXELS) != 0
            driver.execute_script("document.getElementById('timeline').scrollIntoView()")
            time.sleep(0.3)
            shot(driver, f'page_{"dark" if dark else "light"}')


_COLOURS = """
const canvas = document.getElementById('steps');
const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
const seen = new Set();
for (let at = 0; at < data.length; at += 4) seen.add(data[at] * 65536 + data[at + 1] * 256 + data[at + 2]);
return seen.size;
"""
_PIXELS = "return document.getElementById('steps').width;"


@contextlib.contextmanager
def jupyter(folder: Path) -> Iterator[str]:
    """JupyterLab on a folder; yields its address."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    words = [
        '--no-browser',
        f'--port={port}',
        '--IdentityProvider.token=',
        '--ServerApp.password=',
        '--allow-root',
        '--LabApp.news_url=',
        '--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate',
    ]
    around = {**os.environ, 'PYTHONPATH': str(ROOT), 'JUPYTER_CONFIG_DIR': str(folder / 'config')}
    server = subprocess.Popen(
        [sys.executable, '-m', 'jupyterlab', *words], cwd=folder, env=around,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(120):
            with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port), 1):
                break
            time.sleep(0.5)
        yield f'http://127.0.0.1:{port}'
    finally:
        server.terminate()
        server.wait(30)


PIPELINE = """import simpar
from simpar.shipped import example_folder

case = simpar.load_case(example_folder() / 'pipeline_h100.yaml')
simpar.sliders(case, copies=[1, 2, 4], micro_batches=[16, 32, 64])
"""


def execute_all(folder: Path, name: str) -> None:
    """Run a notebook in JupyterLab from its menu: no cell fails, pictures are loaded, the timeline is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    with jupyter(folder) as address, browser(size=(1280, 6000)) as driver:
        _open(driver, address, name)
        cells = len(driver.find_elements('css selector', '.jp-Notebook .jp-CodeCell'))
        WebDriverWait(driver, 180).until(lambda d: d.execute_script(_EXECUTED) == cells)
        time.sleep(2)
        assert not driver.find_elements('css selector', '[data-mime-type="application/vnd.jupyter.error"]')
        pictures = driver.execute_script(_PICTURES)
        assert pictures
        assert min(pictures) > 100, pictures
        seen = f'{cells} cells, {len(pictures)} pictures'
        for frame in driver.find_elements('css selector', 'iframe[title="timeline"]'):
            driver.switch_to.frame(frame)
            WebDriverWait(driver, 20).until(lambda d: d.find_elements('id', 'steps'))
            time.sleep(0.5)
            colours = driver.execute_script(_COLOURS)
            assert colours > 10, f'the timeline shows {colours} colours'
            told = _pointed_at(driver)
            assert 'ms' in told or 'us' in told, told
            driver.find_element('css selector', '[data-zoom="2"]').click()
            driver.execute_script("document.getElementById('timeline').scrollIntoView()")
            time.sleep(0.3)
            driver.switch_to.default_content()
            shot(frame, 'notebook_timeline')
            seen += f', a timeline of {colours} colours; an op says: {told!r}'
    print(f'{name}: {seen}')


def _pointed_at(driver: Any) -> str:
    """What the timeline says of an op that one points at: the first place in its lower half that says anything."""
    return str(driver.execute_script(_POINT))


_EXECUTED = """return [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
    .filter(one => /\\[\\d+\\]/.test(one.textContent)).length"""
_PICTURES = """return [...document.querySelectorAll('.jp-OutputArea img')].map(one => one.naturalWidth)"""
_POINT = """
const [canvas, tip] = ['steps', 'tip'].map(name => document.getElementById(name));
const box = canvas.getBoundingClientRect();
for (let y = box.height * 0.9; y > 20; y -= 8)
  for (let x = 120; x < box.width - 20; x += 15) {
    for (const kind of ['pointermove', 'mousemove'])
      canvas.dispatchEvent(new PointerEvent(kind, {clientX: box.left + x, clientY: box.top + y, bubbles: true}));
    if (!tip.hidden && tip.children.length > 2) return tip.innerText.replaceAll('\\n', '; ');
  }
return '';
"""


def _open(driver: Any, address: str, name: str) -> None:
    """Open a notebook in JupyterLab and run all of its cells."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(f'{address}/lab/tree/{name}?reset')
    WebDriverWait(driver, 60).until(lambda d: d.find_elements('css selector', '.jp-Notebook .jp-CodeCell'))
    time.sleep(5)
    driver.execute_script("document.querySelectorAll('.bp3-dialog .jp-mod-reject').forEach(one => one.click())")
    _menu(driver, 'Run', 'Run All Cells')


def _without_outputs(notebook: Path, copy: Path) -> None:
    """So that what is seen was executed here."""
    tree = json.loads(notebook.read_text(encoding='utf-8'))
    for cell in tree['cells']:
        if cell['cell_type'] == 'code':
            cell.update(outputs=[], execution_count=None)
    copy.write_text(json.dumps(tree), encoding='utf-8')


def notebook_of(source: str) -> str:
    """A notebook of one cell."""
    cell = {'cell_type': 'code', 'id': 'one', 'execution_count': None, 'metadata': {}, 'outputs': [], 'source': source}
    kernel = {'kernelspec': {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}}
    return json.dumps({'cells': [cell], 'metadata': kernel, 'nbformat': 4, 'nbformat_minor': 5})


def move_sliders(folder: Path, name: str, image: str = '') -> list[float]:
    """Run a notebook in JupyterLab and move a slider; seconds from the key to the new step on the screen."""
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    seconds = []
    with jupyter(folder) as address, browser(size=(1280, 1000)) as driver:
        _open(driver, address, name)
        step = 'b[style*="1.3em"]'
        WebDriverWait(driver, 120).until(lambda d: d.find_elements('css selector', step))
        time.sleep(2)
        handle = driver.find_elements('css selector', '.widget-slider .noUi-handle')[0]
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
        time.sleep(1)
        for key in (Keys.ARROW_LEFT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_LEFT):
            before = driver.execute_script(_STEP)
            began = time.monotonic()
            handle.send_keys(key)
            # Where the notebook draws the step anew, for a moment there is none; at an end nothing moves.
            with contextlib.suppress(TimeoutError):
                seconds.append(_changed(driver, before, began))
        if image:
            shot(driver, image)
    return seconds


def _changed(driver: Any, before: str, began: float) -> float:
    """Seconds until the step is another; raises ``TimeoutError`` where it stays."""
    while time.monotonic() - began < 5:
        if driver.execute_script(_STEP) not in (before, ''):
            return time.monotonic() - began
        time.sleep(0.005)
    raise TimeoutError(before)


_STEP = "return document.querySelector('b[style*=\"1.3em\"]')?.textContent ?? ''"


def _menu(driver: Any, menu: str, entry: str) -> None:
    """Choose an entry of JupyterLab's menu."""
    find = "return [...document.querySelectorAll('{0}')].find(one => one.textContent.trim() === '{1}')"
    for place, text in (('.lm-MenuBar-itemLabel', menu), ('.lm-Menu-itemLabel', entry)):
        driver.execute_script(find.format(place, text)).click()
        time.sleep(1)


def main() -> int:
    """Show both."""
    if lacking := missing():
        print(f'skipped: not installed here: {lacking}')
        return 0
    with tempfile.TemporaryDirectory(prefix='simpar-browser-') as name:
        folder = Path(name)
        show_page(folder)
        for notebook in sorted((ROOT / 'notebooks').glob('*.ipynb')):
            _without_outputs(notebook, folder / notebook.name)
            if importlib.util.find_spec('torch') or 'measurement' not in notebook.name:
                execute_all(folder, notebook.name)
            else:
                print(f'{notebook.name}: skipped, it needs torch')
        shutil.copy(ROOT / 'notebooks' / NOTEBOOK, folder / NOTEBOOK)
        (folder / 'pipeline.ipynb').write_text(notebook_of(PIPELINE), encoding='utf-8')
        of_both = move_sliders(folder, NOTEBOOK, 'notebook_sliders'), move_sliders(folder, 'pipeline.ipynb')
    print('from a key on the slider to the new step on the screen:')
    for case, seconds in zip(('one stage', 'four stages'), of_both, strict=True):
        print(f'  64 GPUs, {case}:', ', '.join(f'{one:.2f} s' for one in seconds))
    return 0 if all(seconds and max(seconds) < FOLLOWS for seconds in of_both) else 1


if __name__ == '__main__':
    sys.exit(main())
