"""The executor's command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from executor.net import USAGE, Net, parse_net
from executor.streams_faults import Fault
from simpar.units import parse

DTYPES: Final = ('fp64', 'fp32', 'fp16', 'bf16')
