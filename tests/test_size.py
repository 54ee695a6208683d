"""The size of a prediction: estimated from small programs, and refused over the limit before anything is built."""

import pytest
from size_cases import EXAMPLES, cases

from simpar import cli
from simpar.case import _one, cluster_of, load_case
from simpar.errors import Infeasible, ScheduleError
from simpar.session import Session
from simpar.size import LIMIT, Limit, at_most, estimate, parse_limit

PIPELINE = str(EXAMPLES / 'pipeline_h100.yaml')


def slots_of(case):
    return sum(map(len, case.program.roles))


def test_slots_are_estimated_within_a_factor_of_2():
    """50 larger cases, and memory, by `make prove-sizes`."""
    for path, *words in cases(12, seed=7, most=1e5):
        case = load_case(path, [*words, 'against={}'])
        schedule = case.schedule
        found = estimate(schedule, cluster_of(schedule).world, lambda small: _one(small, Session()).program)
        assert 0.5 < found.slots / slots_of(case) < 2, words
        assert at_most(schedule, cluster_of(schedule).world).slots >= slots_of(case), words
        assert 0.5 < found.classes / len(case.program.op_classes) < 2, words


def test_a_limit_is_raised_or_lowered_by_the_user():
    assert parse_limit([]) == LIMIT
    assert parse_limit(['64GB', '3600s']) == Limit(memory=64e9, seconds=3600.0)
    assert parse_limit(['64 GB', '32 GB']).memory == 32e9
    for wrong in ('much', '12', '-1GB', '1e999 s', ''):
        with pytest.raises(ValueError, match='not a limit'):
            parse_limit([wrong])
    with pytest.raises(Infeasible, match=r'the limit is 8 GB and 1 us'):
        load_case(PIPELINE, limit=parse_limit(['1us']))
    assert slots_of(load_case(PIPELINE, limit=parse_limit(['64GB', '1s']))) > 10_000


def test_degrees_that_do_not_fit_the_cluster_are_wrong_however_large_it_is():
    """The estimate, of small programs that cannot be made, once advised a larger limit."""
    with pytest.raises(ScheduleError, match=r'64 ranks, but the cluster has 131072; write data: 65536'):
        load_case(EXAMPLES / 'llama3_8b_h100.yaml', ['cluster.nodes=16384', 'workload.batch=262144'])


def test_of_many_divisors_those_near_to_what_was_written_are_advised():
    """The largest up to 4,096 once were, of 131,072 devices."""
    words = ['cluster.nodes=16384', 'workload.batch=262144', 'plan.data=0', 'plan.pipeline=5']
    with pytest.raises(ScheduleError, match=r'a divisor of 131072 as pipeline: 1, 2, 4, 8, 16, 32, 64, 128'):
        load_case(EXAMPLES / 'llama3_8b_h100.yaml', words)


@pytest.mark.parametrize('flag', ['12', 'much'])
def test_a_limit_without_a_unit_is_a_wrong_use(flag, capsys):
    with pytest.raises(SystemExit) as code:
        cli.main(['run', PIPELINE, '--limit', flag])
    assert code.value.code == 2
    assert '32GB or 3600s' in capsys.readouterr().err


def test_a_tensor_of_more_bytes_than_can_be_counted_is_named():
    model = '{layers: 2, hidden: 1048576, heads: 65536, vocab: 32000, sequence: 1048576, attention: unfused}'
    case = load_case(
        'simpar: 1\ncluster: h100-sxm-8\n'
        f'workload: {{transformer: {model}, batch: 1048576, precision: bf16}}\nplan: {{tensor: 8}}\n'
    )
    with pytest.raises(Infeasible, match=r'layer0.attention.scores has 1.89e\+22 bytes on a rank'):
        case.program.sizes  # noqa: B018
