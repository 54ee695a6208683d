"""The stack of the executor itself: the kernels that it launches on CUDA, counted by dry runs."""

from every import EVERY, some
from executor_counts import CASES, LAUNCHES, STACK, counts, lines
from tables import load_tree

from executor.virtual.dry_run import dry_run
from simpar.case import load_case
from simpar.files import read_csv

SCHEDULE = load_tree(__file__, 'SCHEDULE')


def test_the_stack_says_what_a_dry_run_launches():
    written = STACK.read_text(encoding='utf-8').partition(LAUNCHES)[2].splitlines()
    if EVERY == 1:
        assert written == list(lines(counts()))
    else:
        found = list(lines(counts(some(CASES, 2))))
        assert len(found) > 0.8 * len(written)
        assert set(found) <= set(written)


def test_a_prediction_and_a_run_have_the_fused_kernels_of_the_one_table():
    case = load_case(SCHEDULE)
    named = {name for name, _ in dry_run(case.program).calls}
    table = {row['kernel'] for row in read_csv(STACK.parents[2] / 'executor' / 'devices' / 'kernels.csv')}
    fused = {'_scaled_dot_product_flash_attention', '_fused_rms_norm', '_fused_adamw_'}
    assert fused <= named & table
    launches = case.cluster.stack.launches
    assert all(launches[key].kernels <= 2 for key in ('rms_norm.F', 'attention.F') if key in launches)
