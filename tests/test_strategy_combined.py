"""Strategies with pipelines, optimizer parallelism, recomputation and all that ends a step, against autograd."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from strategy_cases import random_case

from simpar.errors import NumericsWrong
from simpar.lower import lower
from simpar.plan import Plan
from simpar.workload import Adam, AdamW, Dense, Momentum, Network, Relu, Sgd

torch = pytest.importorskip('torch', reason='needs the extra torch')

from pipeline_cases import left_over
from sabotage import drop_sum

from executor.inprocess import InProcess
from executor.numerics import check
from executor.validate import validate

pytestmark = pytest.mark.torch
CASES = 120
ORDERS = [('1f1b', 0), ('gpipe', 0), ('interleaved', 2), ('zb-h1', 0), ('zbv', 0)]
OPTIMIZERS = [
    Sgd(learning_rate=0.1),
    Momentum(learning_rate=0.1, nesterov=True, weight_decay=0.01),
    Adam(learning_rate=0.01),
    AdamW(learning_rate=0.01, master_weights=True),
]
CUT = [
    {},
    {'zero': 1},
    {'zero': 2},
    {'zero': 3},
    {'hsdp': 'level1', 'shard_threshold': 0.0},
    {'hsdp': 'level2', 'shard_threshold': 300.0},
    {'hsdp': 'level3', 'shard_threshold': 0.0},
    {'shard': ('state', 'weights'), 'gather': 'on-use'},
]
