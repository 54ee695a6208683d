"""Words of pictures: none is cut, and no two lie over one another; `python -m tests.pictures` holds all sizes to it."""

import pytest
from every import some
from pictures import JOBS, PICTURES, check

STEPS = [('steps', ranks) for ranks in some(JOBS, 2)]
SHOWN = [*STEPS, ('one_rank', 64), ('difference', 8), ('sweep', 8), ('front', 8)]


@pytest.mark.parametrize(('name', 'ranks'), SHOWN)
def test_no_words_are_cut_or_lie_over_one_another(name, ranks):
    check(PICTURES[name](ranks))


def test_words_that_are_cut_or_lie_over_one_another_are_found():
    for place in ((0.995, 0.5), (0.0, 0.99)):
        figure = PICTURES['steps'](1)
        figure.text(*place, 'more words')
        with pytest.raises(AssertionError, match='more words'):
            check(figure)
