"""The registry of operators: what else knows operators by kind knows these, and no others."""

import re
from dataclasses import fields

import pytest
from docs_tables import TABLES, held
from every import EVERY
from field_score import score_table
from tables import load_table
from trains import trains

from simpar import Plan, Workload
from simpar.errors import ScheduleError
from simpar.model import KINDS, OPERATORS, Dense, Flatten, Gelu, Network, Reshape, Silu, Trained, Transpose
from simpar.model.operators import OP_CLASSES, PRIMITIVES
from simpar.schedule import load_schedule, written

NETWORK = load_table(__file__, 'NETWORK')


ONE = load_table(__file__, 'ONE')


def alone(tmp_path, layer, more=''):
    """A network of one layer, read from a file."""
    path = tmp_path / 'one.yaml'
    path.write_text(ONE.format(layer=layer, more=more))
    return load_schedule(path)


def network(tmp_path, layer):
    path = tmp_path / 'schedule.yaml'
    path.write_text(NETWORK.format(layer=layer))
    return load_schedule(path)


def test_kernels_and_the_reference_know_the_registrys_operators_and_no_others():
    from executor.kernels import KERNELS
    from executor.reference.network import _RESULTS

    assert set(_RESULTS) <= set(KINDS.values())
    assert all(set(kind.__mro__) & set(_RESULTS) for kind in KINDS.values())
    forward = {operator for operator, phase in KERNELS if phase == 'F'}
    # The gradient of sinks is an op of the backward alone.
    assert set(OP_CLASSES) - {'attention_sink'} <= forward
    assert {operator for operator, _ in KERNELS} >= set(OP_CLASSES)


def test_every_operator_says_what_it_is():
    for key, kind in KINDS.items():
        assert re.fullmatch('[a-z][a-z0-9_]*', key)
        assert key == kind.key
        assert (kind.__doc__ or '').strip(), key
        assert kind.primitives, key
        assert all(PRIMITIVES[primitive.name] is primitive for primitive in kind.primitives.values()), key


def test_operators_share_the_keys_that_are_for_all():
    for kind in OPERATORS:
        names = {part.name for part in fields(kind)}
        assert {'name', 'recompute', 'pipeline_stage'} <= names, kind
        assert ('comm_fusion' in names) == issubclass(kind, Trained), kind


@pytest.mark.parametrize(
    ('path', 'first', 'more', 'made'), TABLES, ids=[f'{path.stem} {first}' for path, first, *_ in TABLES]
)
def test_the_tables_of_the_docs_are_made_from_the_code(path, first, more, made):
    """`python tests/docs_tables.py` writes them; of launchers of public files every third is imported."""
    told = held(path, first, more)[1]
    if made is score_table and EVERY > 1:
        assert set(score_table(3)[:-1]) < set(told)
    else:
        assert told == made()


def test_any_operator_begins_a_stage_and_is_recomputed():
    layers = (
        Dense(inputs=8, outputs=8),
        Gelu(pipeline_stage=1),
        Dense(inputs=8, outputs=8),
        Reshape(shape=(-1, 2, 4), recompute=True),
        Transpose(permutation=(0, 2, 1), recompute=True),
        Flatten(recompute=True),
        Silu(),
    )
    workload = Workload(model=Network(layers=layers, input=(8,)), batch=16, loss='mse')
    plan = Plan(pipeline=2, micro_batches=2)
    program = trains(workload, plan, 4, steps=2)
    stage = {op.name: op.stage for op in program.op_classes}
    assert (stage['dense0.F'], stage['gelu0.F']) == (0, 1)
    again = [op.name.partition('.')[0] for op in program.op_classes if op.name.endswith('.recompute')]
    assert again == ['reshape0', 'transpose0', 'flatten0']


def test_a_key_that_had_another_name_is_read_by_both(tmp_path):
    both = [alone(tmp_path, 'relu: {}', f', {name}: 0.5') for name in ('init_std', 'weight_deviation')]
    assert [schedule.workload.model.init_std for schedule in both] == [0.5, 0.5]
    assert written(both[1])['workload']['network']['init_std'] == 0.5
    with pytest.raises(ScheduleError, match=r'weight_deviation: too small .* write a number from 0'):
        alone(tmp_path, 'relu: {}', ', weight_deviation: -1')
