"""Words of pictures: none is cut, and no two lie over one another; `python -m tests.pictures` holds all sizes to it."""

import overlap_page
import pytest
from every import some
from matplotlib.text import Annotation
from page_pictures import PAGES, WIDE, check_words, missing, shots
from pictures import JOBS, PICTURES, check
from PIL import Image

from simpar.plot.frame import SOFT, TEXT, darken
from simpar.sweep.why_not import overlaps

STEPS = [('steps', ranks) for ranks in some(JOBS, 2)]
SHOWN = [*STEPS, ('one_rank', 64), ('difference', 8), ('sweep', 8), ('front', 8)]


@pytest.mark.parametrize(('name', 'ranks'), SHOWN)
def test_no_words_are_cut_or_lie_over_one_another(name, ranks):
    figure = PICTURES[name](ranks)
    check(figure)
    darken(figure)
    # Numbers at points were black on black.
    assert {one.get_color() for one in figure.findobj(Annotation) if one.get_text()} <= {TEXT, SOFT}


def test_words_that_are_cut_or_lie_over_one_another_are_found():
    for place in ((0.995, 0.5), (0.0, 0.99)):
        figure = PICTURES['steps'](1)
        figure.text(*place, 'more words')
        with pytest.raises(AssertionError, match='more words'):
            check(figure)


@pytest.mark.parametrize('overlap', some(overlap_page.rows(), 4))
def test_the_picture_of_an_overlap_is_the_one_that_is_drawn_now(overlap):
    """`python tests/overlap_page.py` draws them."""
    figure = overlap_page.picture(overlap)
    check(figure)
    with Image.open(overlap_page.path_of(overlap)) as drawn:
        assert drawn.info['Description'] == overlap_page.words_of(figure)


def test_the_page_of_overlaps_has_a_picture_a_table_and_a_command_of_each():
    page = overlap_page.PAGE.read_text(encoding='utf-8')
    assert {one.name for one in overlaps()} == overlap_page.rows().keys()
    for overlap, (first, *_) in overlap_page.rows().items():
        path = overlap_page.path_of(overlap)
        assert path.is_file()
        assert f'](images/overlaps/{path.name})\n\n    {first.command}\n\n| {overlap}: case |' in page


@pytest.mark.skipif(bool(missing()), reason='needs Chromium, its driver and selenium')
@pytest.mark.parametrize('name', PAGES)
def test_no_words_of_a_page_are_cut_or_lie_over_one_another(name, tmp_path):
    assert set(shots(PAGES[name][0](8, tmp_path))) == {'png', 'dark.png'}


def test_words_of_a_page_that_are_cut_or_lie_over_one_another_are_found():
    whole = [WIDE * 0.1, WIDE * 0.9, 0, 900]
    words = [[f'word {at}', [200, 300, 20 * at, 20 * at + 12], whole] for at in range(8)]
    check_words(words, WIDE, 900)
    for box, holder in (([1100, 1200, 700, 712], whole), ([250, 350, 40, 52], None), ([1250, 1300, 700, 712], None)):
        with pytest.raises(AssertionError, match='other'):
            check_words([*words, ['other', box, holder]], WIDE, 900)
    with pytest.raises(AssertionError, match='pixels wide'):
        check_words(words, WIDE + 40, 900)
