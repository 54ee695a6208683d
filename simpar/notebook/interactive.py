"""Interactive: the answer's page inside of a notebook, to zoom in and to point at ops."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass
from typing import Final

from simpar.page import answer_page
from simpar.predict import Prediction

_FRAME: Final = (
    '<iframe title="timeline" style="width:100%;height:{height}px;border:0" srcdoc="'
    "<script>const packed = Uint8Array.from(atob('{packed}'), one => one.charCodeAt(0));"
    "new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'))).text()"
    '.then(page => {{ document.open(); document.write(page); document.close(); }});</script>"></iframe>'
)
"""The page is packed, so that the notebook's file stays small: to about a fifth."""
_HEIGHT: Final = 640
"""Pixels; the page scrolls inside."""


@dataclass(frozen=True, slots=True)
class Interactive:
    """A prediction's page as the last value of a notebook's cell; it needs a notebook that is trusted.

    Arguments: ``ranks`` whose ops are shown; empty: a few that differ.
    """

    prediction: Prediction
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        world = self.prediction.program.world
        if wrong := [rank for rank in self.ranks if not 0 <= rank < world]:
            raise ValueError(f'there is no rank {wrong[0]}; write ranks from 0 to {world - 1}')

    def _repr_html_(self) -> str:
        page = answer_page(self.prediction, ranks=self.ranks).encode()
        # Without a date, so that the same answer gives the same bytes.
        packed = base64.b64encode(gzip.compress(page, mtime=0)).decode()
        return _FRAME.format(height=_HEIGHT, packed=packed)
