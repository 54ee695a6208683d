"""Sliders follow while one drags."""

import time
from pathlib import Path

import simpar

EXAMPLES = Path(__file__).parent.parent / 'examples'


def test_a_slider_follows_within_half_a_second_for_64_gpus():
    sliders = simpar.sliders(simpar.load_case(EXAMPLES / 'llama3_8b_h100.yaml'), copies=[1, 2])
    seconds = []
    for copies in (1, 2, 1):
        began = time.process_time()
        sliders.chosen['copies'].value = copies
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.5
