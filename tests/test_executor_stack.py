"""The stack of the executor itself: the kernels that it launches on CUDA, counted by dry runs."""

import pytest

pytest.importorskip('torch', reason='needs the extra torch')

from executor_counts import LAUNCHES, STACK, counts, lines

from executor.virtual.dry_run import dry_run
from simpar.case import load_case
from simpar.files import read_csv

pytestmark = pytest.mark.torch
SCHEDULE = {
    'simpar': 1,
    'cluster': {'profile': 'h100-sxm-8', 'devices': 1, 'stack': 'simpar-executor'},
    'workload': {
        'transformer': {
            'layers': 1, 'hidden': 256, 'heads': 4, 'vocab': 512, 'sequence': 64, 'norm': 'rms_norm', 'bias': [],
        },
        'batch': 2, 'precision': 'bf16', 'optimizer': {'adamw': {'master_weights': True}},
    },
}  # fmt: skip


def test_the_stack_says_what_a_dry_run_launches():
    written = STACK.read_text(encoding='utf-8').partition(LAUNCHES)[2].splitlines()
    assert written == list(lines(counts()))


def test_a_prediction_and_a_run_have_the_fused_kernels_of_the_one_table():
    case = load_case(SCHEDULE)
    named = {name for name, _ in dry_run(case.program).calls}
    table = {row['kernel'] for row in read_csv(STACK.parents[2] / 'executor' / 'devices' / 'kernels.csv')}
    fused = {'_scaled_dot_product_flash_attention', '_fused_rms_norm', '_fused_adamw_'}
    assert fused <= named & table
    launches = case.cluster.stack.launches
    assert all(launches[key].kernels <= 2 for key in ('rms_norm.F', 'attention.F') if key in launches)
