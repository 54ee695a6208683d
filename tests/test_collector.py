"""The garbage collector rests inside, and is as it was behind, also where something fails."""

import gc

import pytest

from simpar.collector import without_collector


@pytest.mark.parametrize('was', [True, False])
def test_the_collector_rests_and_is_as_it_was(was):
    before = gc.isenabled()
    (gc.enable if was else gc.disable)()
    try:
        with without_collector():
            assert not gc.isenabled()
        with pytest.raises(ValueError, match='inside'), without_collector():
            raise ValueError('inside')
        assert gc.isenabled() is was
    finally:
        (gc.enable if before else gc.disable)()
