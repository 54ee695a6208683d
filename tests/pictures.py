"""Every picture of simpar at 1, 8, 64 and 1,024 ranks, for a test of its texts and for docs/images.

    python -m tests.pictures               write all into docs/images/pictures, light and dark
    python -m tests.pictures steps_64      write one

A screenshot is small: half of the size, in 64 colours.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.text import Text

import simpar
from simpar.comparison import compare
from simpar.notebook import difference_picture
from simpar.planner.render import front_picture, sizes_picture
from simpar.plot import timeline, write_figure
from simpar.sweep.plot import bars
from simpar.trace_files import to_saved, to_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent.parent / 'docs' / 'images' / 'pictures'
SMALL = '{layers: 8, hidden: 2048, heads: 16, vocab: 51200, sequence: 2048}'
LARGE = '{layers: 96, hidden: 12288, heads: 96, vocab: 51200, sequence: 2048, tied: true}'
BATCH = ', batch: 64'
JOBS: dict[int, tuple[str, str, str, str]] = {
    1: ('{profile: h100-sxm-8, devices: 1}', SMALL, '{recompute: full}, batch: 4', 'plan.recompute: none'),
    8: ('{profile: h100-sxm-8}', SMALL, '{tensor: 8, copies: 2, sequence_parallel: true}, batch: 16', 'plan.copies: 1'),
    64: (
        '{profile: h100-sxm-8, nodes: 8}',
        LARGE.replace('96, hidden: 12288', '48, hidden: 6144'),
        '{tensor: 8, pipeline: 4, data: 2, micro_batches: 16, order: interleaved-1f1b, chunks: 4, recompute: full}'
        + BATCH,
        'plan.order: 1f1b, plan.chunks: 1',
    ),
    1024: (
        '{profile: h100-sxm-8, nodes: 128}',
        LARGE,
        '{tensor: 8, data: 8, pipeline: 16, micro_batches: 32, sequence_parallel: true, zero: 1}, batch: 512',
        'plan.sequence_parallel: false',
    ),
}
"""By ranks: cluster, model, plan with batch, and what the baseline has otherwise."""


def text_of(ranks: int) -> str:
    """The schedule of so many ranks."""
    cluster, model, plan, against = JOBS[ranks]
    plan, _, batch = plan.rpartition(', batch: ')
    return (
        f'simpar: 1\ncluster: {cluster}\nworkload: {{transformer: {model}, batch: {batch}, precision: bf16}}\n'
        f'plan: {plan}\nagainst: {{{against}}}\n'
    )


@cache
def prediction_of(ranks: int, *words: str) -> simpar.Prediction:
    """Its prediction, some keys changed."""
    return simpar.load_case(text_of(ranks), list(words)).predict()


def steps(ranks: int) -> Figure:
    """Plan below baseline, as `simpar run --plot` draws it."""
    return prediction_of(ranks).timeline()


def one_rank(ranks: int) -> Figure:
    """The streams of the last rank."""
    found = prediction_of(ranks)
    return timeline(found.trace, names=(found.name, ''), rank=ranks - 1)


def difference(ranks: int) -> Figure:
    """A prediction beside a run on links of half the rate."""
    found, slower = prediction_of(ranks), prediction_of(ranks, 'cluster.links.nvlink=0.5')
    saved = replace(to_saved(slower.trace, slower.costs), origin='measured')
    comparison = compare(found.trace, saved, costs=found.costs)
    return difference_picture(found.trace, to_trace(saved, found.program), comparison)


def sweep(ranks: int) -> Figure:
    """Rows of a sweep as bars."""
    key = 'plan.micro_batches=16,32,64' if ranks == 64 else 'plan.recompute=none,selective,full'
    return bars(simpar.load_sweep(text_of(ranks), [], [key]).predict())


def front(ranks: int) -> Figure:
    """Plans by step and memory."""
    return front_picture(planned(ranks, None).answer)


def sizes(ranks: int) -> Figure:
    """Numbers of devices by cost and time."""
    return sizes_picture(planned(ranks, (ranks, 2 * ranks)))


def planned(ranks: int, devices: tuple[int, ...] | None) -> Any:
    """A plan in a small space."""
    fixed = (
        'tensor',
        'pipeline',
        'sequence_parallel',
        'context',
        'order',
        'chunks',
        'copies',
        'tiles',
        'shard_group',
        'fusion',
    )
    free = '"plan.recompute": [none, selective, full], "plan.micro_batches": ' + (
        '[16, 32, 64]' if ranks > 8 else '[1, 2, 4]'
    )
    keys = '{' + free + ''.join(f', plan.{key}: fixed' for key in fixed) + '}'
    more = {'devices': list(devices), 'train': ['tokens=1T', 'price=2']} if devices else {}
    return simpar.plan(text_of(ranks), [f'planner.keys={keys}', 'against={}'], jobs=1, **more)


PICTURES: dict[str, Callable[[int], Figure]] = {
    one.__name__: one for one in (steps, one_rank, difference, sweep, front, sizes)
}


def boxes_of(figure: Figure) -> list[tuple[str, Any, Any]]:
    """The words that a figure shows, with their boxes in pixels."""
    figure.canvas.draw()
    for axes in figure.axes:
        # Ticks beyond the axis have labels that are never drawn.
        for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
            for tick in axis.get_major_ticks():
                inside = low <= tick.get_loc() <= high
                tick.label1.set_visible(inside and tick.label1.get_visible())
    words = figure.findobj(lambda one: isinstance(one, Text) and one.get_visible() and one.get_text().strip() != '')
    return [(one.get_text(), one.get_window_extent(), one.axes if _is_clipped(one) else None) for one in words]


def _is_clipped(text: Text) -> bool:
    # Words of a legend have the flag, but may stand outside.
    return bool(text.get_clip_on() and text.axes and text in text.axes.texts)


def check(figure: Figure) -> None:
    """No words are cut, by the picture or by their axes, and no two lie over one another."""
    check_boxes(
        [
            (text, Box(box.x0, box.x1, box.y0, box.y1), _across(clipped.bbox) if clipped else None)
            for text, box, clipped in boxes_of(figure)
        ],
        figure.bbox.width,
        figure.bbox.height,
    )


def _across(box: Any) -> Box:
    """What axes cut: left and right."""
    return Box(box.x0, box.x1, -float('inf'), float('inf'))


class Box(NamedTuple):
    """A rectangle, in pixels."""

    left: float
    right: float
    low: float
    top: float

    def holds(self, other: Box) -> bool:
        """Whether another lies in it; a pixel is the edge of a letter."""
        across = self.left - 1 <= other.left <= other.right <= self.right + 1
        return across and self.low - 1 <= other.low <= other.top <= self.top + 1


Words = tuple[str, Box, 'Box | None']
"""Words, where they stand, and what cuts them."""


def check_boxes(found: list[Words], wide: float, high: float) -> None:
    """No words are cut, by a picture of this size or by what holds them, and no two lie over one another."""
    assert len(found) > 5
    for text, box, holder in found:
        assert Box(0, wide, 0, high).holds(box), f'{text!r} leaves the picture: {box}'
        assert holder is None or holder.holds(box), f'{text!r} is cut: {box}, {holder}'
    sides = np.array([[box.left + 1, box.right - 1, box.low + 1, box.top - 1] for _, box, _ in found])
    left, right, low, top = (sides[:, [column]] for column in range(4))
    over = (left < right.T) & (right > left.T) & (low < top.T) & (top > low.T)
    pairs = np.argwhere(np.triu(over, 1))
    assert not len(pairs), [(found[one][0], found[other][0]) for one, other in pairs[:5]]


def small(figure: Figure, path: Path, words: str = '') -> None:
    """Write a figure at half its size in 64 colours, with the words that the file shall hold."""
    write_figure(path, figure)
    write_smaller(path.read_bytes(), path, 0.5, words)


def write_smaller(image: bytes, path: Path, share: float, words: str = '') -> None:
    """Write an image at a share of its size in 64 colours, with the words that the file shall hold."""
    from PIL import Image, PngImagePlugin

    held = PngImagePlugin.PngInfo()
    if words:
        held.add_itxt('Description', words)
    with Image.open(io.BytesIO(image)) as picture:
        size = int(share * picture.width), int(share * picture.height)
        smaller = picture.convert('RGB').resize(size, Image.Resampling.LANCZOS)
        smaller.quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
            path, optimize=True, pnginfo=held
        )


def main() -> int:
    """Check and write every picture, or those that are named, in light and dark."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for one in sys.argv[1:] or [f'{name}_{ranks}' for name in PICTURES for ranks in JOBS]:
        name, _, ranks = one.rpartition('_')
        figure = PICTURES[name](int(ranks))
        check(figure)
        # The dark one last: it changes the figure.
        for suffix in ('png', 'dark.png'):
            small(figure, FOLDER / f'{one}.{suffix}')
        print(one, flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
