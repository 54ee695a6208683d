"""Whole training steps as MindSpore's compiler recorded them: with its strategies, our collectives are its own.

Of every step the collectives (kind, ranks, shapes on a rank) and the slices of parameters are equal. Their order is not
compared: the compiler's dump has it as its graph is sorted. Left out are gradients of one number that the compiler did
not fold (``Recorded.of_constant``).
"""

from math import prod

import pytest
from every import some
from golden_shapes import FOLDER, SHIPPED
from golden_steps import CASES, GROUPS, recorded_of


def test_every_recorded_step_is_compared():
    files = [path for group in GROUPS for path in FOLDER.rglob(f'{group}/*.json')]
    assert len(CASES) == len(files) > 0
    if FOLDER == SHIPPED:
        assert {case['group'] for case in CASES.values()} == set(GROUPS)


@pytest.mark.parametrize('name', some(CASES))
def test_collectives_of_a_training_step_and_slices_of_parameters(name):
    recorded = recorded_of(name)
    assert recorded.ours() == recorded.theirs()
    if not recorded.cuts_weights:
        assert recorded.unlike() == []
    if CASES[name].get('parameters_after'):
        ours, theirs = recorded.parameters(), recorded.recorded_parameters()
        if recorded.cuts_weights:
            ours, theirs = (sorted(map(prod, shapes)) for shapes in (ours, theirs))
        assert ours == theirs


SLICED = {
    '2.10.0-seed000_interleave2_semi_d8': [('x', tuple(range(8)), (32, 1, 28, 28)), ('labels', tuple(range(8)), (32,))],
    '2.10.0-seed004_rec_pp2_opt_d8': [('x', (0, 1, 2, 3), (32, 1, 28, 28))],
    '2.10.0-seed004_rec_pp2_opt_d8_r4': [('target', (4, 5, 6, 7), (32, 1))],
}
"""Cases that cut copies or micro-batches of a batch in slices: the inputs of the rank's stage, its ranks, its slice."""


@pytest.mark.skipif(FOLDER != SHIPPED, reason='names cases of the shipped ones')
@pytest.mark.parametrize('name', SLICED)
def test_a_batch_in_slices_is_gathered_once_to_be_cut(name):
    recorded = recorded_of(name)
    role, program = recorded.program.role(recorded.rank), recorded.program
    ops = [program.op(role, slot) for slot in range(len(role))]
    once = [op for op in ops if any(read.endswith('.step') for read in op.reads)]
    found = [(op.reads[0].removesuffix('.step'), *next(recorded.members(op))[1:]) for op in once]
    assert found == SLICED[name]
